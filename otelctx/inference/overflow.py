"""What happens when a turn does not fit into the window: decided before anything is touched. Pure.

Terms: *overflow* is demand over a limit, before acting; *truncation* is what is removed before feeding; *eviction* is
what leaves the window. The *reserve* for output is ``min(max_tokens, window/4)``: a huge ``max_tokens`` never makes a
prompt too long, and output may go on until the window is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal

from otelctx.errors import TokenLimitExceeded

__all__ = ["ENDLESS", "MIN_OUTPUT", "Fits", "Mode", "Reject", "Truncate", "plan", "reserve_for"]

Mode = Literal["reject", "turns", "slide"]

# A turn that leaves less room than this for an answer is too long, whatever is dropped.
MIN_OUTPUT: Final = 16

# Tokens of an answer that makes room for itself and has no limit of its own.
ENDLESS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fits:
    """The prompt has ``prompt`` tokens and ``output`` tokens may follow."""

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop the ``turns`` oldest exchanges (``dropped`` tokens). ``before`` is the rendered prompt, ``after`` what is
    fed: ``after + dropped = before``. ``output`` tokens may follow."""

    turns: int
    dropped: int
    before: int
    after: int
    limit: int
    output: int
    reason: str = "window"
    action: str = "turns"

    @property
    def prompt(self) -> int:
        return self.after


@dataclass(frozen=True, slots=True)
class Reject:
    """The turn can't be served. ``prompt`` is its exact length, ``allowed`` the output that was possible (0 or less:
    none), ``needed`` the room for output that it had to leave: ``prompt + needed > limit``.
    """

    prompt: int
    limit: int
    requested: int | None
    allowed: int
    mode: Mode
    needed: int = MIN_OUTPUT
    reason: str = "window"
    action: str = "reject"

    def error(self, param: str = "messages") -> TokenLimitExceeded:
        """The error with exact numbers, in the words that clients and routers look for."""
        return too_long(self.limit, self.mode, self.requested, {"n_prompt_tokens": self.prompt}, param, self.needed)


def too_long(
    window: int,
    mode: Mode,
    requested: int | None,
    prompt: dict[str, Any],
    param: str = "messages",
    needed: int = MIN_OUTPUT,
) -> TokenLimitExceeded:
    """:class:`~otelctx.errors.TokenLimitExceeded` for a prompt of ``{"n_prompt_tokens": n}`` or
    ``{"n_prompt_tokens_at_least": n}`` tokens that had to leave room for ``needed`` tokens of output."""
    ((kind, count),) = prompt.items()
    about = "at least " if kind.endswith("at_least") else ""
    # "maximum context length" and "prompt is too long" are what routers and LangChain look for in the text.
    return TokenLimitExceeded(
        f"This model's maximum context length is {window} tokens and the prompt is too long: it has {about}{count} "
        f"tokens, and {needed} are needed for an answer. Please shorten the {param}.",
        param=param,
        max_context=window,
        max_new_tokens_requested=requested,
        max_new_tokens_allowed=max(0, window - count),
        policy=mode,
        **prompt,
    )


def reserve_for(max_tokens: int | None, window: int) -> int:
    """Tokens kept free for the answer: ``min(max_tokens, window/4)``."""
    quarter = window // 4
    return quarter if max_tokens is None else min(max_tokens, quarter)


def plan(
    *, window: int, pinned: int, turns: Sequence[int], new: int, max_tokens: int | None, mode: Mode
) -> Fits | Truncate | Reject:
    """Decide on a turn. All counts are tokens.

    ``pinned``: the head that never leaves; ``turns``: each exchange that is in the window, oldest first; ``new``: what
    this turn adds, the opening of the answer included; ``max_tokens``: as the request has it, ``None`` for no limit of
    its own.

    With exchanges in the window, ``reject`` refuses what does not fit with its reserve; ``turns`` and ``slide`` drop
    the oldest exchanges whole, and once they must, drop on down to 3/4 of the window, so that the cut does not move
    with every turn. The output is what is left of the window; ``slide`` will make room for more. Without exchanges, or
    once all are dropped, nothing more can be had: then the reserve is only a wish, and a turn is too long if its own
    text leaves less than 16 tokens for an answer (fewer, if it asks for fewer).
    """
    kept = sum(turns)
    prompt = pinned + kept + new
    reserve = reserve_for(max_tokens, window)
    least = min(reserve, MIN_OUTPUT)
    hard = pinned + new + least > window
    if prompt + reserve <= window or (not kept and not hard):
        return Fits(prompt, _output(max_tokens, window - prompt, mode))
    if hard or mode == "reject":
        return Reject(prompt, window, max_tokens, window - prompt, mode, least if hard else reserve)
    goal = window * 3 // 4  # with any reserve: that is a quarter at most
    gone = list(accumulate(turns))
    count = next((n for n, dropped in enumerate(gone, 1) if prompt - dropped <= goal), len(gone))
    dropped = gone[count - 1]
    after = prompt - dropped
    return Truncate(count, dropped, prompt, after, window, _output(max_tokens, window - after, mode))


def _output(max_tokens: int | None, room: int, mode: Mode) -> int:
    if mode == "slide":
        return ENDLESS if max_tokens is None else max_tokens
    return room if max_tokens is None else min(max_tokens, room)
