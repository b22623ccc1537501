"""``observe()`` gives a loop of one's own the same spans, events and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from otelctx.context.current import session
from otelctx.errors import Overloaded, TokenLimitExceeded
from otelctx.inference import observe
from otelctx.inference.guard import Guard
from otelctx.inference.observing import Observed
from otelctx.testing import Captured

MS = 1_000_000


class Ticks:
    """Nanoseconds, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def later(self, ms: int) -> None:
        self.now += ms * MS


def test_phases_follow_one_another_without_a_gap(otelctx_capture: Captured) -> None:
    ticks = Ticks()
    start = ticks.now
    with Observed("mine", clock=ticks) as turn:
        ticks.later(10)
        turn.prefill(100, cached_tokens=60)
        ticks.later(30)
        for _ in range(5):
            turn.token()
            ticks.later(20)
        turn.finish("length")
    chat = otelctx_capture.span("chat mine")
    phases = [otelctx_capture.span(name) for name in ("queue", "prefill", "decode")]
    assert [((p.start - start) // MS, (p.end - start) // MS) for p in phases] == [(0, 10), (10, 40), (40, 140)]
    assert {p.parent_id for p in phases} == {chat.span_id}
    assert (chat.start, chat.end, chat.kind, chat.status) == (start, start + 140 * MS, "INTERNAL", "UNSET")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "otelctx",
        "gen_ai.request.model": "mine",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.response.finish_reasons": ("length",),
        "otelctx.outcome": "length",
    }
    assert expected.items() <= chat.attributes.items()
    assert phases[1].attributes["otelctx.tokens.prefilled"] == 40
    assert phases[2].attributes["gen_ai.usage.output_tokens"] == 5
    assert otelctx_capture.metric("gen_ai.server.time_to_first_token").value == pytest.approx(0.040)
    assert otelctx_capture.metric("gen_ai.server.time_per_output_token").value == pytest.approx(0.020)
    assert otelctx_capture.metric("gen_ai.server.request.duration").value == pytest.approx(0.140)
    assert otelctx_capture.metric("otelctx.requests", otelctx__outcome="length").value == 1


def test_one_token_has_no_time_per_token(otelctx_capture: Captured) -> None:
    with observe("mine") as turn:
        turn.prefill(3)
        turn.token()
    assert otelctx_capture.metrics("gen_ai.server.time_per_output_token") == []
    assert otelctx_capture.span("chat mine").attributes["otelctx.outcome"] == "completed"


@pytest.mark.parametrize(
    ("error", "outcome", "kind"),
    [
        (ValueError("x"), "error", "ValueError"),
        (asyncio.CancelledError(), "cancelled", None),
        (Overloaded("x"), "shed", "overloaded"),
        (KeyboardInterrupt(), "cancelled", None),
    ],
)
def test_an_exception_ends_the_turn_once_and_goes_on(
    otelctx_capture: Captured, error: BaseException, outcome: str, kind: str | None
) -> None:
    def failing() -> None:
        with observe("mine") as turn:
            turn.prefill(3)
            raise error

    with pytest.raises(type(error)):
        failing()
    chat = otelctx_capture.span("chat mine")
    assert chat.attributes["otelctx.outcome"] == outcome
    assert chat.attributes.get("error.type") == kind
    assert chat.status == ("UNSET" if kind is None else "ERROR")
    assert otelctx_capture.span("prefill").parent_id == chat.span_id
    assert otelctx_capture.metric("otelctx.requests").value == 1
    assert otelctx_capture.metrics("gen_ai.server.time_to_first_token") == []


def test_a_prompt_that_the_guard_refuses_is_an_overflow(otelctx_capture: Captured, chatml: Any) -> None:
    guard = Guard(chatml, window=64)
    with pytest.raises(TokenLimitExceeded), observe("mine") as turn:
        turn.prefill(len(guard.admit([{"role": "user", "content": "z" * 60}])))
    chat = otelctx_capture.span("chat mine")
    event = chat.event("otelctx.overflow")
    assert event.attributes["otelctx.tokens.limit"] == 64
    assert event.attributes["otelctx.tokens.before"] > 64
    assert event.attributes["otelctx.action"] == "reject"
    assert chat.attributes["otelctx.overflow"] is True
    assert chat.attributes["otelctx.outcome"] == "rejected"
    assert otelctx_capture.metric("otelctx.requests", otelctx__outcome="rejected").value == 1


def test_an_event_marks_what_ends_after_it(otelctx_capture: Captured) -> None:
    """A tail sampler may decide before the root ends, so the flag is on the children that end early too."""
    with observe("mine") as turn:
        turn.event("otelctx.truncation", {"otelctx.tokens.before": 9, "otelctx.tokens.after": 5})
        turn.prefill(5)
        turn.token()
    assert otelctx_capture.span("prefill").attributes["otelctx.truncated"] is True
    assert otelctx_capture.metric("otelctx.truncations").value == 1
    with observe("mine") as turn, pytest.raises(KeyError):
        turn.event("otelctx.nonsense")


def test_the_session_is_the_contexts_and_usage_goes_up(otelctx_capture: Captured) -> None:
    with session("s1") as scope, observe("mine") as turn:
        turn.prefill(7)
        turn.token(3)
    chat = otelctx_capture.span("chat mine")
    assert chat.attributes["session.id"] == chat.attributes["gen_ai.conversation.id"] == "s1"
    assert (scope.up("usage.tokens.input"), scope.up("usage.tokens.output")) == (7, 3)


def test_around_a_generator_that_is_left_half_way(otelctx_capture: Captured) -> None:
    def answer() -> Iterator[int]:
        with observe("mine") as turn:
            turn.prefill(2)
            for token in range(10):
                turn.token()
                yield token

    running = answer()
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert otelctx_capture.span("chat mine").attributes["otelctx.outcome"] == "cancelled"


async def test_turns_side_by_side_keep_their_own_children(otelctx_capture: Captured) -> None:
    async def one(model: str) -> None:
        with observe(model) as turn:
            turn.prefill(1)
            await asyncio.sleep(0)
            turn.token()
            await asyncio.sleep(0)

    await asyncio.gather(one("a"), one("b"))
    parents = sorted(s.parent_id for s in otelctx_capture.spans if s.name == "decode")
    assert parents == sorted(otelctx_capture.span(f"chat {m}").span_id for m in "ab")


def test_misuse_is_said(otelctx_capture: Captured) -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        observe("mine").prefill(3)
    with pytest.raises(ValueError, match="stop"), observe("mine") as turn:
        turn.finish("done")
