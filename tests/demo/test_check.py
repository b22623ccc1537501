"""The checks of the demo find what is wrong, each by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otelctx import semconv
from otelctx.context.state import EMPTY, entry
from otelctx.delta.messages import Ack, AckKind
from otelctx.demo import check
from otelctx.demo.client import Reply
from otelctx.demo.figures import Hop, Tokens, tokens
from otelctx.demo.ledger import Ledger
from otelctx.demo.script import TOO_LONG, TURNS
from otelctx.testing.spans import SeenEvent, SeenSpan

TURN = TURNS[0]


def span(span_id: str, parent: str, service: str, name: str, kind: str, **attributes: Any) -> SeenSpan:
    return SeenSpan("t", span_id, parent, name, kind, service, 0, 2_000_000, "UNSET", attributes)


def trace() -> list[SeenSpan]:
    frame = {semconv.FRAME_KIND: "full"}
    prefill = span("6", "5", "worker", "prefill", "INTERNAL", **{semconv.TOKENS_PREFILLED: 4})
    return [
        span("1", "", "client", "turn 1", "INTERNAL"),
        span("2", "1", "frontend", "POST /", "SERVER", **frame),
        span("3", "2", "worker", "POST /", "SERVER", **frame),
        span(
            "5", "3", "worker", "chat m", "INTERNAL",
            **{
                semconv.GEN_AI_INPUT_TOKENS: 10, semconv.GEN_AI_CACHE_READ_TOKENS: 6, semconv.GEN_AI_OUTPUT_TOKENS: 3,
                semconv.WINDOW_USED: 13, semconv.OUTCOME: "completed",
            },
        ),
        prefill,
    ]  # fmt: skip


REPLY = Reply(
    "t",
    text="hello",
    usage={"prompt_tokens": 10, "completion_tokens": 3},
    extension={"reused": 6, "dropped": 0, "window": {"used": 13}},
)


def answered(reply: Reply = REPLY, spans: list[SeenSpan] | None = None) -> list[str]:
    ledger = Ledger()
    found = trace() if spans is None else spans
    check.answered(ledger, TURN, reply, tokens(found))
    check.whole_trace(ledger, TURN.name, found)
    return ledger.verdict()


def test_a_turn_as_it_should_be() -> None:
    assert answered() == []
    assert check.complete(trace())


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("usage", {"prompt_tokens": 10, "completion_tokens": 4}, "output tokens"),
        ("usage", {"prompt_tokens": 11, "completion_tokens": 3}, "prompt tokens"),
        ("extension", {"reused": 5, "dropped": 0, "window": {"used": 13}}, "reused tokens"),
        ("extension", {"reused": 6, "dropped": 2, "window": {"used": 13}}, "dropped tokens"),
        ("extension", {"reused": 6, "dropped": 0, "window": {"used": 14}}, "tokens in the window"),
        ("status", 500, "status 200"),
        ("text", "", "an answer"),
    ],
)
def test_a_figure_that_differs_is_told(field: str, value: Any, what: str) -> None:
    assert any(what in line for line in answered(replace(REPLY, **{field: value})))


def test_a_trace_with_a_hole_or_a_span_too_many_is_told() -> None:
    spans = trace()
    assert not check.complete(spans[:1] + spans[2:])
    assert not check.complete(spans[1:])
    assert not check.complete(spans[:3])
    assert any("one tree" in line for line in answered(spans=spans[:1] + spans[2:]))
    twice = [*spans, span("9", "1", "frontend", "POST /", "SERVER")]
    assert any("one SERVER span" in line for line in answered(spans=twice))


def hop(frame: str = "full", *, signed: bool = True, spent: int = 3) -> Hop:
    ack = Ack(AckKind.ACK, EMPTY.root[:8], ups=(entry(semconv.USAGE_OUTPUT_TOKENS, spent),))
    return Hop(frame, signed, 300, 80, 0, 340, 12, ack, 200)


@pytest.mark.parametrize(
    ("hops", "what"),
    [
        ([hop(), hop()], None),
        ([hop("ref"), hop()], "a full frame to the frontend, not ref"),
        ([hop(), hop(signed=False)], "a signed frame to the worker"),
        ([hop()], "one exchange on each hop"),
    ],
)
def test_frames_are_of_the_kind_that_the_step_is_about(hops: list[Hop], what: str | None) -> None:
    ledger = Ledger()
    check.on_the_wire(ledger, TURN, hops, tokens(trace()))
    if what is None:
        assert ledger.verdict() == []
    else:
        assert any(what in line for line in ledger.verdict())


@pytest.mark.parametrize(("known", "acked", "wrong"), [(3, 3, 0), (4, 3, 3), (3, 2, 1)])
def test_tokens_on_their_way_up_are_summed_three_times(known: int, acked: int, wrong: int) -> None:
    ledger = Ledger()
    check.spent(ledger, known, [tokens(trace())], [[hop(), hop(spent=acked)]])
    assert len(ledger.verdict()) == wrong


def test_a_refusal_needs_its_status_its_numbers_and_its_event() -> None:
    event = SeenEvent(semconv.EVENT_OVERFLOW, 1, {semconv.TOKENS_BEFORE: 900})
    right = Reply("t", 400, error={"code": "context_length_exceeded", "n_prompt_tokens": 900})
    for reply, found, wrong in (
        (right, Tokens(outcome="rejected", events=(event,)), 0),
        (right, Tokens(outcome="completed", events=(event,)), 1),
        (right, Tokens(outcome="rejected"), 1),
        (replace(right, status=200, error={}), Tokens(outcome="rejected", events=(event,)), 3),
    ):
        ledger = Ledger()
        check.refused(ledger, TOO_LONG, reply, found)
        assert len(ledger.verdict()) == wrong
