"""The ladder in a real engine: climbed and come down by real turns, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.errors import OtelctxError, Overloaded, StreamRequired, TokenLimitExceeded
from otelctx.inference.engines import transformers as module
from otelctx.inference.pressure import Limits, Threshold
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from otelctx.testing import Captured

Make = Callable[..., Any]
GREEDY = Params(temperature=0)
LONG = "word " * 80
# Half of the rows are enough to climb two levels.
EARLY = Limits(memory=(Threshold(0.40, 0.20), Threshold(0.45, 0.30), Threshold(0.97, 0.90)))


class Clock:
    """Turned by hand; with ``pace``, each step of the model takes that many seconds too."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = 0.0

    def __call__(self) -> float:
        return self.now

    def slow(self, engine: Any) -> None:
        real = engine._runner.step

        def step(work: Any) -> Any:
            self.now += self.pace
            return real(work)

        engine._runner.step = step


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(make_engine: Make, clock: Clock) -> Make:
    def build(**options: Any) -> Any:
        engine = make_engine(clock=clock, **options)
        clock.slow(engine)
        return engine

    return build


async def climb(engine: Any, clock: Clock, ask: Make, level: int) -> None:
    """To ``level`` of latency: twenty slow first tokens for each."""
    while engine._ladder.level < level:
        clock.pace = 25.0
        for _ in range(20):
            await ask(engine, "x", max_tokens=1)
        clock.pace = 0.0
        await ask(engine, "x", max_tokens=1)  # whose arrival ends the period


def request(text: str = "x", **options: Any) -> TurnRequest:
    return TurnRequest((Message("user", text),), params=GREEDY, **options)


async def whole(engine: Any, turn: TurnRequest) -> Any:
    async for chunk in await engine.admit(turn):
        result = chunk.result
    return result


async def test_slow_first_tokens_climb_one_level_a_period_and_fast_ones_come_down_again(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    engine = make()
    clock.pace = 25.0  # 2.5 times the target
    levels = [(await ask(engine, "x", max_tokens=1)).result.window.level for _ in range(61)]
    assert levels == [0] * 20 + [1] * 20 + [2] * 20 + [3]
    clock.pace = 0.0
    for expected in (3, 2, 1, 0, 0):  # the last slow one belongs to the first of these periods
        clock.now += 10
        assert (await ask(engine, "x", max_tokens=1)).result.window.level == expected
    moves = [r.getMessage() for r in caplog.records if r.name == "otelctx.inference.ladder"]
    assert moves[0].startswith("pressure: latency climbs from level 0 to 1 at 2.")
    assert moves[0].endswith("max_tokens begins")
    assert moves[-1].endswith("from level 1 to 0 at 0.00: max_tokens ends")
    assert len(moves) == 6
    for reason in ("rise", "fall"):
        for action in ("max_tokens", "stream", "shed"):
            assert (
                otelctx_capture.metric("otelctx.degradations", otelctx__reason=reason, otelctx__action=action).value
                == 1
            )


async def test_without_any_turn_the_sweeper_brings_it_down(
    make: Make, clock: Clock, ask: Make, until: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SWEEP", 0.001)
    engine = make()
    await climb(engine, clock, ask, 2)

    def calm() -> bool:
        clock.now += 10
        return engine._ladder.level == 0

    await until(calm)
    assert engine._ladder.signals() == {"memory": 0.0, "latency": 0.0}


async def test_at_level_1_an_answer_gets_an_eighth_of_the_window_and_says_so(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make
) -> None:
    engine = make(window=128)
    await climb(engine, clock, ask, 1)
    turn = await engine.admit(request(max_tokens=60))
    assert turn.window.level == 1  # known before the first token: a stream's head has it
    async for chunk in turn:
        result = chunk.result
    assert (result.usage.completion_tokens, result.finish_reason, result.limit) == (16, "length", "output")
    assert (result.degraded, result.outcome, result.window.level) == ("max_tokens", "length", 1)
    assert (await whole(engine, request())).usage.completion_tokens == 16
    chat = [s for s in otelctx_capture.spans if s.name == "chat tiny"][-2]
    assert chat.attributes["gen_ai.request.max_tokens"] == 60  # as it was asked for
    assert chat.attributes["otelctx.degraded"] is True
    assert chat.attributes["otelctx.pressure.level"] == 1
    told = chat.event("otelctx.degradation").attributes
    value = told.pop("otelctx.pressure.value")
    assert 2.3 < value <= 2.5
    assert told == {
        "otelctx.reason": "turn",
        "otelctx.action": "max_tokens",
        "otelctx.pressure.signal": "latency",
        "otelctx.pressure.level": 1,
        "otelctx.tokens.limit": 16,
    }
    children = [s for s in otelctx_capture.spans if s.parent_id == chat.span_id]
    assert [s.attributes["otelctx.degraded"] for s in children] == [True] * 3
    assert otelctx_capture.metric("otelctx.degradations", otelctx__reason="turn").value == 2


@pytest.mark.parametrize("options", [{"max_tokens": 16}, {"max_tokens": 60, "priority": 1}])
async def test_a_turn_that_asks_for_little_or_has_priority_is_left_alone(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make, options: dict[str, Any]
) -> None:
    engine = make(window=128)
    await climb(engine, clock, ask, 1)
    result = await whole(engine, request(**options))
    assert (result.usage.completion_tokens, result.degraded) == (options["max_tokens"], None)
    chat = [s for s in otelctx_capture.spans if s.name == "chat tiny"][-1]
    assert "otelctx.degraded" not in chat.attributes
    assert not chat.events
    assert chat.attributes["otelctx.pressure.level"] == 1


async def test_where_the_window_has_less_room_than_the_cap_nothing_was_degraded(
    make: Make, clock: Clock, ask: Make
) -> None:
    engine = make(window=256)
    await climb(engine, clock, ask, 1)
    tokens = (await whole(engine, request("y" * 40, max_tokens=1))).usage.prompt_tokens
    result = await whole(engine, request("y" * (40 + 236 - tokens)))  # twenty tokens are left, the cap is 32
    assert (result.usage.completion_tokens, result.limit, result.degraded) == (20, "context", None)


async def test_at_level_2_a_long_request_must_be_streamed_and_is_told_so(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make
) -> None:
    engine = make()
    await climb(engine, clock, ask, 1)
    assert (await whole(engine, request(LONG, max_tokens=1))).usage.prompt_tokens > 128
    await climb(engine, clock, ask, 2)
    with pytest.raises(StreamRequired) as refused:
        await engine.admit(request(LONG, max_tokens=1))
    error = refused.value
    assert (error.status, error.code, error.param) == (422, "stream_required", "stream")
    assert (error.details["max_prompt_tokens"], error.details["level"]) == (128, 2)
    assert error.details["n_prompt_tokens"] > 128
    chat = [s for s in otelctx_capture.spans if s.name == "chat tiny"][-1]
    assert (chat.attributes["otelctx.outcome"], chat.attributes["error.type"]) == ("shed", "stream_required")
    assert chat.attributes["otelctx.degraded"] is True
    assert chat.event("otelctx.degradation").attributes["otelctx.action"] == "stream"
    for served in ({"stream": True}, {"priority": 1}):
        assert (await whole(engine, request(LONG, max_tokens=1, **served))).degraded is None
    with pytest.raises(TokenLimitExceeded):  # the guard comes first: too long is too long
        await engine.admit(request("z" * 600))


async def test_a_short_question_in_a_long_session_is_no_long_request(make: Make, clock: Clock, ask: Make) -> None:
    engine = make()
    await whole(engine, request(LONG, session="s", max_tokens=1))
    await climb(engine, clock, ask, 2)
    result = await whole(engine, request("and?", session="s", max_tokens=1))
    assert result.usage.prompt_tokens > 128
    with pytest.raises(StreamRequired):
        await engine.admit(request(LONG, session="new", max_tokens=1))
    assert engine.stats().sessions == 1  # and nothing is left of it


async def test_at_level_3_low_priority_is_shed_before_anything_is_done_for_it(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make
) -> None:
    engine = make()
    await climb(engine, clock, ask, 2)
    assert (await whole(engine, request(priority=-1, max_tokens=1))).degraded is None
    await climb(engine, clock, ask, 3)
    lookups = len(otelctx_capture.metrics("otelctx.session.lookups"))
    with pytest.raises(Overloaded) as shed:
        await engine.admit(request("z" * 600, priority=-1, session="s"))  # too long, but nobody looked
    assert (shed.value.status, shed.value.headers()) == (503, [("retry-after", "10")])
    assert shed.value.body()["error"]["level"] == 3
    assert len(otelctx_capture.metrics("otelctx.session.lookups")) == lookups
    chat = [s for s in otelctx_capture.spans if s.name == "chat tiny"][-1]
    assert chat.attributes["otelctx.outcome"] == "shed"
    assert chat.event("otelctx.degradation").attributes["otelctx.action"] == "shed"
    for priority in (0, 1):
        assert (await whole(engine, request(priority=priority, max_tokens=1))).finish_reason == "length"


async def test_every_turn_ends_in_exactly_one_outcome_under_pressure_too(
    otelctx_capture: Captured, make: Make, clock: Clock, ask: Make
) -> None:
    engine = make()
    await climb(engine, clock, ask, 3)
    asked = [
        request(priority=-1),
        request(LONG),
        request("z" * 600),
        request(max_tokens=500),
        request(LONG, stream=True, max_tokens=1),
    ]
    for turn in asked:
        try:
            await whole(engine, turn)
        except OtelctxError:
            continue
    ended = {p.attributes["otelctx.outcome"]: p.value for p in otelctx_capture.metrics("otelctx.requests")}
    assert ended == {"shed": 2, "rejected": 1, "length": 63 + 2}
    assert engine._ladder._waiting == {}


async def test_full_rows_are_memory_pressure_and_at_level_2_idle_kv_is_dropped(
    otelctx_capture: Captured, make: Make, make_gate: Make, clock: Clock, ask: Make, until: Make
) -> None:
    engine = make(rows=2, pressure=EARLY)
    kept = (await ask(engine, "something to keep", session="idle", max_tokens=5)).result.usage
    held = kept.prompt_tokens + kept.completion_tokens - 1  # the last token drawn was not fed
    assert sum(engine._runner.kv.lengths) == held
    gate = make_gate(engine)
    long = asyncio.create_task(ask(engine, "w" * 400, max_tokens=100))
    await until(lambda: engine._core.active == 1)
    for level in (1, 2):
        clock.now += 10
        with pytest.raises(TokenLimitExceeded):
            await engine.admit(request("z" * 600))
        assert engine._ladder.level == level
    assert 0.45 <= engine._ladder.signals()["memory"] < 0.6
    gate.open()
    await long
    await until(lambda: engine._runner.kv.lengths.count(0) >= 1)
    assert otelctx_capture.metric("otelctx.kv.tokens", otelctx__action="dropped").value >= held
    assert otelctx_capture.metric("otelctx.degradations", otelctx__action="drop_idle").value == 1
    # The session's tokens are all there; only its KV is computed again.
    again = (await ask(engine, "and?", session="idle", max_tokens=5)).result.usage
    assert again.cached_tokens < kept.prompt_tokens  # no more than what the other turn's row has in common with it
    assert again.prompt_tokens > kept.prompt_tokens


async def test_a_turn_without_a_limit_of_its_own_in_each_row_is_not_yet_memory_pressure(
    make: Make, make_gate: Make
) -> None:
    """What counts is the reserve: if it were all that they may use, a busy server would always be at its limit."""
    engine = make(rows=2)
    await engine.start()
    gate = make_gate(engine)
    asked = [asyncio.create_task(engine.admit(request())) for _ in range(2)]
    while engine._core.active < 2:  # admission happens between two steps
        await gate.allow(1)
    assert 0.25 < engine._reserved.share() < 0.5
    assert engine._core.reserved_tokens == engine._core.budget_tokens
    gate.open()
    for turn in asked:
        await (await turn).aclose()
    assert engine._reserved.share() == 0


async def test_a_full_arena_is_memory_pressure_but_idle_sessions_in_it_are_not(
    make: Make, make_gate: Make, ask: Make, until: Make
) -> None:
    engine = make(pages=20)
    for name in "abc":
        await ask(engine, "m" * 200, session=name, max_tokens=1)
    assert engine.stats().pages_used > 10
    assert engine._reserved.share() == 0
    gate = make_gate(engine)
    turn = await engine.admit(request("m" * 200, session="d"))
    await until(lambda: engine._core.active == 1)
    assert 0.4 < engine._reserved.share() < 0.7
    gate.open()
    await turn.aclose()


async def test_turns_that_everybody_gives_up_on_count_while_they_wait(
    make: Make, make_gate: Make, clock: Clock
) -> None:
    engine = make(rows=1)
    await engine.start()
    gate = make_gate(engine)
    asked = [asyncio.create_task(engine.admit(request())) for _ in range(21)]
    while len(engine._ladder._waiting) < 20:
        await gate.allow(1)
    clock.now += 15
    with pytest.raises(TokenLimitExceeded):
        await engine.admit(request("z" * 600))
    assert engine._ladder.level == 1
    gate.open()
    await asyncio.gather(*[(await turn).aclose() for turn in asked])
    assert engine._ladder._waiting == {}


async def test_waiting_for_ones_own_sessions_turn_is_no_pressure(make: Make, make_gate: Make, clock: Clock) -> None:
    engine = make()
    await engine.start()
    gate = make_gate(engine)
    first = await engine.admit(request(session="s", max_tokens=2))
    second = asyncio.create_task(engine.admit(request(session="s", max_tokens=1)))
    await gate.allow(1)  # the first token of the first turn is there at once, the second turn waits for its end
    clock.now += 5
    gate.open()
    async for _ in first:
        pass
    async for chunk in await second:
        result = chunk.result
    assert result.time_to_first_token == 5
    clock.now += 10
    engine._ladder.tick()
    assert engine._ladder.signals()["latency"] == 0


async def test_level_signals_and_kv_bytes_are_gauges(
    otelctx_capture: Captured, make: Make, make_gate: Make, clock: Clock, ask: Make, until: Make
) -> None:
    engine = make(rows=2)
    await climb(engine, clock, ask, 1)
    assert otelctx_capture.metric("otelctx.pressure.level").value == 1
    assert otelctx_capture.metric("otelctx.pressure.ratio", otelctx__pressure__signal="latency").value > 2
    gate = make_gate(engine)
    turn = await engine.admit(request(max_tokens=10))
    await until(lambda: engine._core.active == 1)
    each = engine._runner.kv.bytes_per_token
    tokens = {
        state: otelctx_capture.metric("otelctx.kv.bytes", otelctx__kv__state=state).value / each
        for state in ("predicted", "reserved", "budget", "actual")
    }
    assert tokens["budget"] == 1024 == engine._core.budget_tokens
    assert tokens["predicted"] == tokens["reserved"] == turn.prompt_tokens + 10 == engine._core.reserved_tokens
    assert tokens["actual"] == sum(engine._runner.kv.lengths) > 0  # what idle rows still hold is filled too
    gate.open()
    await turn.aclose()


async def test_nor_is_it_where_the_template_has_the_whole_conversation_rendered_anew(
    make: Make, clock: Clock, ask: Make, make_tokenizer: Make
) -> None:
    """What is in the window already is not what the turn adds."""
    template = (
        "{{ '<|im_start|>' + messages | length | string + '\n' }}{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    engine = make(tokenizer=make_tokenizer(template))
    assert not engine._chat.concatenative
    await whole(engine, request(LONG, session="s", max_tokens=1))
    await climb(engine, clock, ask, 2)
    assert (await whole(engine, request("and?", session="s", max_tokens=1))).usage.prompt_tokens > 128
    with pytest.raises(StreamRequired):
        await engine.admit(request(LONG + "and?", session="new", max_tokens=1))
