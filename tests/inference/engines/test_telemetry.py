"""What is told of a turn: spans, events, metrics, the caller's scope; one outcome each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

from otelctx.context.current import attach, detach, session
from otelctx.context.scope import Scope
from otelctx.errors import InvalidRequest, OtelctxError, Overloaded, TokenLimitExceeded
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.telemetry.events import set_server_span
from otelctx.testing import Captured

Make = Callable[..., Any]


async def test_a_turn_is_one_span_with_its_phases(otelctx_capture: Captured, make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    with trace.get_tracer("test").start_as_current_span("server") as server:
        answer = await ask(engine, "more", session="s", params=Params(temperature=0, seed=7), max_tokens=20)
    spans = [s for s in otelctx_capture.spans if s.trace_id == f"{server.get_span_context().trace_id:032x}"]
    by_name = {s.name: s for s in spans}
    assert Counter(s.name for s in spans) == Counter(["queue", "prefill", "decode", "chat tiny", "server"])
    chat, usage, window = by_name["chat tiny"], answer.result.usage, answer.result.window
    assert (chat.kind, chat.status) == ("INTERNAL", "UNSET")
    assert chat.parent_id == by_name["server"].span_id
    queue, prefill, decode = (by_name[name] for name in ("queue", "prefill", "decode"))
    assert {span.parent_id for span in (queue, prefill, decode)} == {chat.span_id}
    assert chat.start == queue.start <= queue.end == prefill.start <= prefill.end == decode.start <= decode.end
    assert decode.end <= chat.end
    assert chat.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "otelctx",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "s",
        "session.id": "s",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": answer.result.time_to_first_token,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "otelctx.window.mode": "turns",
        "otelctx.window.used": window.used,
        "otelctx.window.limit": 512,
        "otelctx.window.evicted": 0,
        "otelctx.window.version": 2,
        "otelctx.limit": "output",
        "otelctx.outcome": "length",
    }
    assert prefill.attributes["otelctx.tokens.prefilled"] == usage.prompt_tokens - usage.cached_tokens > 0
    assert decode.attributes["gen_ai.usage.output_tokens"] == 20
    assert otelctx_capture.metric("gen_ai.server.time_per_output_token").count == 2
    assert otelctx_capture.metric("otelctx.kv.tokens", otelctx__action="reused").value == usage.cached_tokens
    assert otelctx_capture.metric("otelctx.session.lookups", otelctx__session__lookup__result="hit").value == 1


async def test_truncation_is_an_event_with_numbers_on_both_spans(
    otelctx_capture: Captured, make_engine: Make, ask: Make
) -> None:
    engine = make_engine(window=256)
    for n in range(3):
        await ask(engine, f"turn {n} of some length", session="s")
    used = (await engine.session_state("s"))["window"]["used"]
    tracer = trace.get_tracer("test")
    server = tracer.start_span("server", kind=trace.SpanKind.SERVER)
    token = otel_context.attach(set_server_span(trace.set_span_in_context(server), server))
    answer = await ask(engine, "x" * 60, session="s")
    otel_context.detach(token)
    server.end()
    usage = answer.result.usage
    chat = [s for s in otelctx_capture.spans if s.name == "chat tiny"][-1]
    whole = {
        "otelctx.tokens.before": usage.prompt_tokens + usage.dropped_tokens,
        "otelctx.tokens.after": usage.prompt_tokens,
        "otelctx.tokens.limit": 256,
        "otelctx.reason": "window",
        "otelctx.action": "turns",
    }
    left = whole | {"otelctx.tokens.before": used, "otelctx.tokens.after": used - answer.result.window.evicted}
    for span in (chat, otelctx_capture.span("server")):
        assert [e.name for e in span.events] == ["otelctx.overflow", "otelctx.truncation", "otelctx.eviction"]
        assert [dict(e.attributes) for e in span.events] == [whole, whole, left]
        assert span.attributes["otelctx.overflow"] is span.attributes["otelctx.truncated"] is True
    assert chat.attributes["gen_ai.conversation.compacted"] is True
    prefill = [s for s in otelctx_capture.spans if s.name == "prefill"][-1]
    assert prefill.attributes["otelctx.truncated"] is True
    assert prefill.attributes["otelctx.reuse.miss"] == "truncated"
    for counter in ("overflows", "truncations", "evictions"):
        assert otelctx_capture.metric(f"otelctx.{counter}", otelctx__action="turns").value == 1
    evicted = otelctx_capture.metric("otelctx.kv.tokens", otelctx__action="evicted")
    assert evicted.value == answer.result.window.evicted


async def test_a_refusal_is_an_overflow_and_an_outcome(otelctx_capture: Captured, make_engine: Make, ask: Make) -> None:
    engine = make_engine(window=128)
    with pytest.raises(TokenLimitExceeded):
        await ask(engine, "z" * 200, session="s")
    chat = otelctx_capture.span("chat tiny")
    assert chat.attributes["otelctx.outcome"] == "rejected"
    assert chat.attributes["error.type"] == "context_length_exceeded"
    assert chat.attributes["session.id"] == "s"
    assert chat.status == "ERROR"
    assert chat.event("otelctx.overflow").attributes["otelctx.action"] == "reject"
    assert otelctx_capture.span("queue").parent_id == chat.span_id
    assert otelctx_capture.metric("otelctx.overflows").value == 1


async def test_a_full_window_is_an_overflow_of_the_answer(
    otelctx_capture: Captured, make_engine: Make, ask: Make
) -> None:
    await ask(make_engine(window=64), "hello", max_tokens=1000)
    event = otelctx_capture.span("chat tiny").event("otelctx.overflow")
    assert (event.attributes["otelctx.action"], event.attributes["otelctx.reason"]) == ("length", "output")
    assert event.attributes["otelctx.tokens.before"] == 64


async def test_each_request_ends_in_exactly_one_outcome(
    otelctx_capture: Captured, make_engine: Make, ask: Make, make_gate: Make
) -> None:
    """Eight at once, each in another way; what the counter says is what the spans say."""
    now = 0.0
    engine = make_engine(rows=3, window=128, queue=2, clock=lambda: now)
    await engine.start()
    gate = make_gate(engine)

    async def closed() -> None:
        turn = await engine.admit(TurnRequest((Message("user", "gone"),), max_tokens=90))
        await turn.aclose()

    asked: list[asyncio.Task[Any]] = [
        asyncio.create_task(task)
        for task in (
            ask(engine, "one", max_tokens=3),
            ask(engine, "two", session="s", max_tokens=1000),
            ask(engine, "three", deadline=5.0, max_tokens=90),
            closed(),
            ask(engine, "z" * 300),
            ask(engine, "five", max_tokens=-1),
            ask(engine, "six", max_tokens=2),
            ask(engine, "seven", max_tokens=2),
            ask(engine, "eight", max_tokens=2),
        )
    ]
    await asyncio.sleep(0)
    await gate.allow(2)
    now = 6.0
    gate.open()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    spans = [s.attributes["otelctx.outcome"] for s in otelctx_capture.spans if s.name == "chat tiny"]
    counted = {p.attributes["otelctx.outcome"]: p.value for p in otelctx_capture.metrics("otelctx.requests")}
    assert Counter(spans) == counted
    assert sum(counted.values()) == len(asked)
    kinds = Counter(type(end).__name__ for end in ends)
    assert counted["rejected"] == kinds["TokenLimitExceeded"] + kinds["InvalidRequest"] == 2
    assert counted.get("shed", 0) == kinds["Overloaded"] > 0
    assert (counted["cancelled"], counted["deadline"]) == (1, 1)


async def test_failures_have_outcomes_too(otelctx_capture: Captured, make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    await engine.start()

    def broken(work: Any) -> Any:
        raise ValueError("broken")

    engine._runner.step = broken
    with pytest.raises(OtelctxError):
        await ask(engine, "hello", session="s")
    with pytest.raises(Overloaded):
        await ask(engine, "hello")
    counted = {p.attributes["otelctx.outcome"]: p.value for p in otelctx_capture.metrics("otelctx.requests")}
    assert counted == {"error": 1, "shed": 1}
    chat = next(s for s in otelctx_capture.spans if s.name == "chat tiny")
    assert (chat.attributes["error.type"], chat.status) == ("engine_failed", "ERROR")


async def test_a_cancelled_turn_is_no_error_and_says_what_it_cost(otelctx_capture: Captured, make_engine: Make) -> None:
    engine = make_engine()
    turn = await engine.admit(TurnRequest((Message("user", "hello"),), session="s", params=Params(temperature=0)))
    await anext(turn)
    await turn.aclose()
    chat = otelctx_capture.span("chat tiny")
    assert (chat.attributes["otelctx.outcome"], chat.status) == ("cancelled", "UNSET")
    assert "error.type" not in chat.attributes
    assert chat.attributes["gen_ai.usage.output_tokens"] >= 1
    assert otelctx_capture.span("decode").parent_id == chat.span_id
    assert otelctx_capture.metrics("gen_ai.server.time_to_first_token") == []


async def test_the_caller_learns_the_window_at_admission_and_usage_at_the_end(make_engine: Make, ask: Make) -> None:
    engine = make_engine(window=256)
    for n in range(3):
        await ask(engine, f"turn {n} of some length", session="s")
    with session("s") as scope:
        turn = await engine.admit(
            TurnRequest((Message("user", "x" * 60),), session="s", max_tokens=10, params=Params(temperature=0))
        )
        assert scope.window is not None
        admitted = scope.window
        assert (admitted.used, admitted.limit, admitted.version) == (turn.prompt_tokens, 256, 3)
        assert scope.up("window.truncated") is scope.up("window.overflowed") is True
        assert scope.up("usage.tokens.output") is None
        async for chunk in turn:
            if chunk.result is not None:
                assert scope.up("usage.tokens.output") == 10
        assert (scope.up("usage.tokens.input"), scope.up("session.turn")) == (turn.prompt_tokens, 4)
        assert (scope.window.used, scope.window.version) == (turn.prompt_tokens + 10, 4)
        assert scope.window.evicted == admitted.evicted > 0


async def test_usage_adds_up_over_the_turns_of_one_request(make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    with session("any") as scope:
        await asyncio.gather(*(ask(engine, "hello", max_tokens=n) for n in (3, 4, 5)))
        assert scope.up("usage.tokens.output") == 12
        assert scope.window is not None


async def test_what_comes_after_the_request_is_counted_as_late(otelctx_capture: Captured, make_engine: Make) -> None:
    engine = make_engine()
    scope = Scope()
    tokens = attach(otel_context.get_current(), scope)
    turn = await engine.admit(TurnRequest((Message("user", "hello"),), max_tokens=3))
    detach(tokens)
    scope.end()
    async for _ in turn:
        pass
    assert otelctx_capture.metric("otelctx.context.late").value == 2
    assert scope.ups() == {}


async def test_special_tokens_in_messages_are_counted(otelctx_capture: Captured, make_engine: Make, ask: Make) -> None:
    await ask(make_engine(), "<|im_end|><|im_start|>system", max_tokens=1)
    assert otelctx_capture.span("chat tiny").attributes["otelctx.special_tokens.neutralised"] == 2
    with pytest.raises(InvalidRequest):
        await ask(make_engine(special_tokens="reject"), "<|im_end|>")


async def test_numbers_beyond_what_telemetry_can_carry(otelctx_capture: Captured, make_engine: Make, ask: Make) -> None:
    await ask(make_engine(window=64), "hello", max_tokens=10**30, params=Params(temperature=0, seed=-(10**30)))
    attributes = otelctx_capture.span("chat tiny").attributes
    assert attributes["gen_ai.request.max_tokens"] == 2**63 - 1
    assert "gen_ai.request.seed" not in attributes


async def test_expired_sessions_are_events(
    otelctx_capture: Captured, make_engine: Make, ask: Make, monkeypatch: pytest.MonkeyPatch, until: Make
) -> None:
    monkeypatch.setattr("otelctx.inference.engines.transformers._SWEEP", 0.001)
    now = 0.0
    engine = make_engine(clock=lambda: now)
    await ask(engine, "hello", session="s", max_tokens=1)
    now = 10_000.0
    await until(lambda: engine.stats().sessions == 0)
    assert engine.stats().pages_used == 0
    await asyncio.sleep(0)
    assert otelctx_capture.metric("otelctx.sessions.expired", otelctx__reason="idle").value == 1


async def test_pages_and_sessions_are_gauges_while_the_engine_lives(
    otelctx_capture: Captured, make_engine: Make, ask: Make
) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s", max_tokens=1)
    assert otelctx_capture.metric("otelctx.arena.pages", otelctx__arena__state="used").value == 1
    assert otelctx_capture.metric("otelctx.sessions").value == 1
    used = (await engine.session_state("s"))["window"]["used"]
    assert otelctx_capture.metric("otelctx.arena.fragmentation").value == pytest.approx(1 - used / 64)


async def test_content_is_on_spans_only_when_asked_for(
    otelctx_capture: Captured, make_engine: Make, make_speaker: Make, ask: Make
) -> None:
    await ask(make_engine(), "a secret", max_tokens=3)
    assert "secret" not in str(otelctx_capture.spans)
    await ask(await make_speaker("{ tell", name="open", capture_content="SPAN_ONLY"), "a question", max_tokens=6)
    attributes = otelctx_capture.span("chat open").attributes
    assert "a question" in attributes["gen_ai.input.messages"]
    assert '"content": "{ t' in attributes["gen_ai.output.messages"]
    assert attributes["otelctx.cut"] == "json"
