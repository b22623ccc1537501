"""Turns of every outcome, of an engine and of a loop of somebody's own, against the GenAI conventions and our table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import MeterProvider as ApiMeterProvider
from opentelemetry.sdk.trace import ReadableSpan

from otelctx import semconv
from otelctx.errors import OtelctxError
from otelctx.inference.observing import observe
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest

Make = Callable[..., Any]
LATENCIES = (semconv.TIME_TO_FIRST_TOKEN, semconv.TIME_PER_OUTPUT_TOKEN)


class Seen:
    def __init__(self, exports: Any) -> None:
        self.exporter, self.reader = exports.exporter, exports.reader
        self._exports = exports

    def chat(self) -> ReadableSpan:
        (span,) = (s for s in self._exports.spans() if s.name.startswith("chat "))
        return span

    def count(self, name: str) -> int:
        return len(self._exports.durations(name))

    def exemplars(self, name: str) -> list[tuple[int, int]]:
        return [(e.trace_id, e.span_id) for point in self._exports.points(name) for e in point.exemplars]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, checked_exports: Any) -> Seen:
    """What is reported of the turns of a test."""
    meters: ApiMeterProvider = checked_exports.meters
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: checked_exports.tracers)
    return Seen(checked_exports)


async def test_a_turn_with_everything_a_request_can_ask_for(seen: Seen, make_engine: Make, ask: Make) -> None:
    params = Params(temperature=0.5, top_p=0.9, top_k=5, seed=7, frequency_penalty=0.5, presence_penalty=-0.5)
    await ask(make_engine(), "hello <|im_end|>", session="s", params=params, max_tokens=4)
    attributes = dict(seen.chat().attributes or {})
    asked = {key: value for key, value in attributes.items() if key.startswith("gen_ai.request.")}
    assert asked == {
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.5,
        "gen_ai.request.presence_penalty": -0.5,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.stream": True,
    }
    assert semconv.GEN_AI_COMPACTED not in attributes


async def test_a_turn_says_where_it_was_to_stop_and_by_which_id_its_client_knows_the_answer(
    seen: Seen, make_engine: Make
) -> None:
    stops = ("never\ud800", "x" * 1000, *(f"<{n}>" for n in range(30)))
    request = TurnRequest((Message("user", "hello"),), max_tokens=4, stop=stops, response_id="chatcmpl-1")
    async for _ in (await make_engine(capture_content="SPAN_ONLY").admit(request)).chunks():
        pass
    attributes = dict(seen.chat().attributes or {})
    shown: Any = attributes[semconv.GEN_AI_STOP_SEQUENCES]
    assert shown[:3] == ("never\ufffd", "x" * 127 + "…", "<0>")
    assert len(shown) == 16
    assert attributes[semconv.GEN_AI_RESPONSE_ID] == "chatcmpl-1"


async def test_where_it_was_to_stop_are_words_of_the_request(seen: Seen, make_engine: Make) -> None:
    request = TurnRequest((Message("user", "hello"),), max_tokens=4, stop=("never",))
    async for _ in (await make_engine().admit(request)).chunks():
        pass
    assert semconv.GEN_AI_STOP_SEQUENCES not in dict(seen.chat().attributes or {})


async def test_what_is_refused_has_no_response(seen: Seen, make_engine: Make) -> None:
    request = TurnRequest((Message("user", "word " * 400),), response_id="chatcmpl-1")
    with pytest.raises(OtelctxError):
        await make_engine(window=256, when_full="reject").admit(request)
    assert semconv.GEN_AI_RESPONSE_ID not in dict(seen.chat().attributes or {})


@pytest.mark.parametrize("name", [semconv.REQUEST_DURATION, *LATENCIES, semconv.WINDOW_TOKENS])
async def test_a_point_of_a_turn_leads_to_its_span(seen: Seen, make_engine: Make, ask: Make, name: str) -> None:
    await ask(make_engine(), "hello", session="s", max_tokens=4)
    context = seen.chat().context
    assert seen.exemplars(name) == [(context.trace_id, context.span_id)]


async def test_a_turn_that_drops_what_was_said_is_compacted(seen: Seen, make_engine: Make, ask: Make) -> None:
    engine = make_engine(window=256)
    for n in range(6):
        seen.exporter.clear()
        await ask(engine, f"turn {n} of some length", session="s")
    attributes = dict(seen.chat().attributes or {})
    assert attributes[semconv.GEN_AI_COMPACTED] is True
    assert attributes[semconv.TRUNCATED] is True


async def test_a_refused_turn_has_a_duration_and_no_latencies(seen: Seen, make_engine: Make, ask: Make) -> None:
    with pytest.raises(OtelctxError):
        await ask(make_engine(window=256, when_full="reject"), "word " * 400)
    attributes = dict(seen.chat().attributes or {})
    assert attributes[semconv.GEN_AI_FINISH_REASONS] == ("error",)
    assert attributes[semconv.OUTCOME] == "rejected"
    assert seen.count(semconv.REQUEST_DURATION) == 1
    assert [seen.count(name) for name in LATENCIES] == [0, 0]


async def test_a_cancelled_turn_is_no_error_and_has_no_latencies(seen: Seen, make_engine: Make, until: Make) -> None:
    engine = make_engine()
    stream = engine.chat([{"role": "user", "content": "hello"}], max_tokens=200)
    await anext(stream)
    await stream.aclose()
    await until(lambda: not engine.stats().rows_busy)
    attributes = dict(seen.chat().attributes or {})
    assert (attributes[semconv.OUTCOME], attributes[semconv.GEN_AI_FINISH_REASONS]) == ("cancelled", ("error",))
    assert semconv.ERROR_TYPE not in attributes
    assert [seen.count(name) for name in LATENCIES] == [0, 0]


def test_the_session_survives_more_attributes_than_an_sdk_keeps(seen: Seen) -> None:
    """It lets the oldest go, and the session is among those that are set first."""
    with observe("mine", session="s", attributes={f"app.a{n}": n for n in range(200)}):
        pass
    attributes = dict(seen.chat().attributes or {})
    assert len(attributes) == 128
    assert attributes[semconv.SESSION_ID_ATTRIBUTE] == "s"
    assert attributes[semconv.OUTCOME] == "completed"


@pytest.mark.parametrize(("tokens", "per_token"), [(1, 0), (2, 1)])
async def test_time_per_token_is_of_answers_with_more_than_one(
    seen: Seen, make_engine: Make, ask: Make, tokens: int, per_token: int
) -> None:
    await ask(make_engine(), "hello", max_tokens=tokens)
    assert [seen.count(name) for name in LATENCIES] == [1, per_token]


@given(
    session=st.none() | st.text(st.characters(), min_size=1, max_size=20),
    attributes=st.dictionaries(st.text("abc", min_size=1, max_size=8).map("app.{}".format), st.text() | st.integers()),
    prompt=st.integers(0, 5000),
    tokens=st.integers(0, 4),
    end=st.sampled_from(["stop", "length", "tool_calls", "content_filter", "deadline", "cancelled", "raise", "leave"]),
)
@example(session="\ud800", attributes={"app.a": 2**70, "app.b": "\udfff"}, prompt=1, tokens=1, end="stop")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_loop_of_ones_own_conforms_whatever_it_tells(
    seen: Seen,
    conventions: Any,
    session: str | None,
    attributes: dict[str, Any],
    prompt: int,
    tokens: int,
    end: str,
) -> None:
    seen.exporter.clear()
    with suppress(RuntimeError), observe("mine", session=session, attributes=attributes) as turn:
        if prompt:
            turn.prefill(prompt)
        for _ in range(tokens):
            turn.token()
        if end == "raise":
            raise RuntimeError("broken")
        if end != "leave":
            turn.finish(end)
    spans = seen.exporter.get_finished_spans()
    assert len(spans) <= 4
    assert conventions.spans(spans) == []
    assert encode_spans(spans).SerializeToString()
    labels = {key for _, point in conventions.series(seen.reader.get_metrics_data()) for key, _ in point}
    assert labels
    assert labels <= {
        semconv.GEN_AI_OPERATION,
        semconv.GEN_AI_PROVIDER,
        semconv.GEN_AI_REQUEST_MODEL,
        semconv.ERROR_TYPE,
        semconv.OUTCOME,
    }
