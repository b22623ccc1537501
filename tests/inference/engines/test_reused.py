"""What of a prompt is not computed again, and the reason on the span when that is less than it might be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.testing import Captured

Make = Callable[..., Any]
ANSWER = "hello there, all of it"


@pytest.fixture
async def told(otelctx_capture: Captured, make_speaker: Make, chatml: Any) -> Any:
    """``await told(*messages, **request) → (tokens reused, reason)`` of an engine with ``rows`` rows."""
    length = len(chatml.encode(ANSWER, add_special_tokens=False))

    class Told:
        async def start(self, **options: Any) -> None:
            self.engine = await make_speaker(ANSWER, **options)

        async def __call__(self, *texts: str, system: str | None = None, **options: Any) -> tuple[int, str | None]:
            self.engine._core._sampler._at.clear()
            messages = [Message(("user", "assistant")[n % 2], text) for n, text in enumerate(texts)]
            if system is not None:
                messages.insert(0, Message("system", system))
            request = TurnRequest(tuple(messages), max_tokens=length, params=Params(temperature=0), **options)
            result = None
            async for chunk in await self.engine.admit(request):
                result = chunk.result
            assert result is not None
            span = [span for span in otelctx_capture.spans if span.name == "prefill"][-1]
            return result.usage.cached_tokens, span.attributes.get("otelctx.reuse.miss")

    return Told()


async def test_a_history_that_is_sent_again_is_reused_without_a_session(told: Any) -> None:
    await told.start()
    assert await told("one") == (0, "cold")
    reused, why = await told("one", ANSWER, "two")
    assert (reused > 40, why) == (True, None)
    longer, why = await told("one", ANSWER, "two", ANSWER, "three")
    assert (longer > reused + 20, why) == (True, None)
    assert (await told("one", ANSWER, "two", ANSWER, "three"))[1] is None  # the same once more


async def test_a_history_that_was_edited_is_reused_up_to_there(told: Any) -> None:
    await told.start()
    await told("one and only")
    whole, _ = await told("one and only", ANSWER, "two")
    reused, why = await told("one and more", ANSWER, "two")
    assert (0 < reused < whole, why) == (True, "edited")


async def test_another_system_prompt_leaves_nothing_to_reuse(told: Any) -> None:
    await told.start()
    await told("one", system="Be brief.")
    assert (await told("one", ANSWER, "two", system="Talk!"))[1] == "prefix_mismatch"


async def test_a_session_goes_on_and_says_why_it_could_not(told: Any) -> None:
    await told.start(rows=1)
    assert await told("one", session="s") == (0, "cold")
    reused, why = await told("two", session="s")
    assert (reused > 40, why) == (True, None)
    await told("other", owner="b")
    assert await told("three", session="s") == (0, "row_taken")
    told.engine._core._rows.drop_idle()
    assert await told("four", session="s") == (0, "dropped")
    assert (await told("five", session="s"))[1] is None


async def test_of_another_owner_nothing_is_reused_and_nothing_told(told: Any) -> None:
    await told.start()
    await told("one", owner="a")
    assert await told("one", ANSWER, "two", owner="b") == (0, "cold")
    told.engine._core._rows.drop_idle()
    assert await told("one", ANSWER, "two", owner="c") == (0, "cold")
    assert await told("one", ANSWER, "two", owner="a") == (0, "dropped")
