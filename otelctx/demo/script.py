"""What is said in the demo, and what each step must show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from otelctx.context.current import ContextKey, UpKey

__all__ = ["AFTER", "GONE", "KEYS", "SESSION", "SPENT", "TIER", "TOO_LONG", "TURNS", "WINDOW", "Turn"]

Via = Literal["httpx", "openai", "openai, streamed"]

WINDOW: Final = 512  # tokens
SESSION: Final = "demo-7f3a91c2"

TIER: Final = ContextKey("user.tier", str)
SPENT: Final = UpKey("usage.tokens.output", int, rule="sum")
LOCALE: Final = ContextKey("client.locale", str, visibility="public")

# What a chat product might carry with every call; twelve keys with the session and the tier.
KEYS: Final[tuple[tuple[ContextKey[Any], Any], ...]] = (
    (TIER, "free"),
    (LOCALE, "en-GB"),
    (ContextKey("tenant.id", str), "acme-industries"),
    (ContextKey("user.id", str), "u-48210937"),
    (ContextKey("gen_ai.conversation.id", str), "conv-0c5e2b7d9a41"),
    (ContextKey("gen_ai.agent.name", str), "travel-helper"),
    (ContextKey("deployment.environment.name", str), "demo"),
    (ContextKey("cloud.region", str), "eu-west-1"),
    (ContextKey("service.origin", str), "web"),
    (ContextKey("feature.flags", str), "citations,short-answers,search-v2"),
    (ContextKey("limit.tokens.total", int), 20000),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """``frame`` is the kind that both hops must show; ``tier`` is set before it; ``max_tokens`` for the answer."""

    name: str
    via: Via
    text: str
    frame: Literal["full", "delta", "ref"]
    tier: str | None = None
    max_tokens: int = 40


TURNS: Final = (
    Turn("turn 1", "httpx", "Hello! I am planning a week in Norway in June. Which three places should I see?", "full"),
    Turn("turn 2", "openai", "I like hiking and quiet villages. Does that change your answer?", "full"),
    Turn("turn 3", "openai, streamed", "How would I travel between them without a car?", "full"),
    Turn("turn 4", "httpx", "What should I pack for a week of rain and midnight sun?", "ref"),
    Turn("turn 5", "httpx", "I have just upgraded to gold. Which cabin should I book first?", "delta", tier="gold"),
    Turn("turn 6", "openai", "Write me a short plan for the first two days, please.", "ref"),
    Turn("turn 7", "httpx", "And now the remaining five days, one line for each of them.", "ref", max_tokens=64),
    Turn("turn 8", "httpx", "What would all of that cost for two people who eat a lot?", "ref", max_tokens=64),
)
# More than the window holds, whatever is dropped: refused before the model is touched.
TOO_LONG: Final = Turn("too long", "httpx", "Tell me everything about every fjord. " * 120, "ref")
GONE: Final = Turn("client gone", "httpx", "Tell me a long story about a troll.", "ref", max_tokens=200)
AFTER: Final = Turn("after it", "httpx", "Never mind the troll. Thank you, and goodbye!", "ref", max_tokens=24)
