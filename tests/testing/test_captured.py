"""``capture()``: what users' tests see of spans and metrics, and what they are told if it is not there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from threading import Thread

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk.metrics import MeterProvider

from otelctx.telemetry import events
from otelctx.testing import Captured, SeenSpan, capture


def span(name: str) -> None:
    with trace.get_tracer("test").start_as_current_span(name) as current:
        current.set_attribute("answer", 42)
        current.add_event("otelctx.truncation", {"otelctx.tokens.before": 9})


@pytest.fixture
def meter() -> metrics.Meter:
    with capture():  # sets the providers, if nobody has
        return metrics.get_meter("test")


def test_a_span_its_attributes_and_events_are_seen() -> None:
    with capture() as seen:
        span("POST /chat")
    found = seen.span("POST /chat")
    assert found.attributes["answer"] == 42
    assert found.event("otelctx.truncation").attributes == {"otelctx.tokens.before": 9}
    assert found.has_event("otelctx.truncation")
    assert not found.has_event("otelctx.overflow")
    assert found.duration >= 0


def test_ids_parents_and_kinds_are_those_of_the_span() -> None:
    tracer = trace.get_tracer("test")
    with (
        capture() as seen,
        tracer.start_as_current_span("server", kind=trace.SpanKind.SERVER) as server,
        tracer.start_as_current_span("child"),
    ):
        pass
    parent, child = seen.span("server"), seen.span("child")
    assert parent.trace_id == child.trace_id == f"{server.get_span_context().trace_id:032x}"
    assert (parent.parent_id, child.parent_id) == ("", parent.span_id)
    assert (parent.kind, child.kind) == ("SERVER", "INTERNAL")


def test_what_is_not_there_is_said_with_what_is() -> None:
    with capture() as seen:
        span("a")
        span("b")
        span("b")
    with pytest.raises(LookupError, match=r"no span 'c'; seen: a, b"):
        seen.span("c")
    with pytest.raises(LookupError, match="2 times span 'b'"):
        seen.span("b")
    with pytest.raises(LookupError, match=r"no event 'otelctx\.overflow' on 'a'; seen: otelctx\.truncation"):
        seen.span("a").event("otelctx.overflow")


def test_a_block_sees_its_own_part_and_what_nested_blocks_see() -> None:
    span("before")
    with capture() as outer:
        span("outer")
        with capture() as inner:
            span("inner")
    span("after")
    assert [s.name for s in outer.spans] == ["outer", "inner"]
    assert [s.name for s in inner.spans] == ["inner"]


def test_a_block_that_raises_is_closed_and_readable() -> None:
    open_captures: list[Captured] = []

    def fail() -> None:
        with capture() as seen:
            open_captures.append(seen)
            span("kept")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    span("after")
    assert [s.name for s in open_captures[0].spans] == ["kept"]


def test_spans_that_end_on_other_threads_are_seen() -> None:
    with capture() as seen:
        threads = [Thread(target=span, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {s.name for s in seen.spans} == {"t0", "t1", "t2", "t3"}


def test_counters_and_histograms_count_from_the_blocks_start_to_its_end(meter: metrics.Meter) -> None:
    counter, histogram = meter.create_counter("test.counter"), meter.create_histogram("test.histogram")
    counter.add(5, {"kind": "x"})
    counter.add(5, {"kind": "quiet"})
    with capture() as seen:
        counter.add(2, {"kind": "x"})
        histogram.record(1.5)
        assert seen.metric("test.counter").value == 2
    counter.add(7, {"kind": "x"})
    assert seen.metric("test.counter", kind="x").value == 2
    assert (seen.metric("test.histogram").value, seen.metric("test.histogram").count) == (1.5, 1)
    assert [dict(p.attributes) for p in seen.metrics("test.counter")] == [{"kind": "x"}]
    with pytest.raises(LookupError, match=r"no point of 'test\.nothing'; seen: .*test\.counter\{kind=x\}"):
        seen.metric("test.nothing")
    with pytest.raises(LookupError, match=r"with \{'kind': 'y'\}"):
        seen.metric("test.counter", kind="y")


def test_gauges_and_up_down_counters_are_as_they_stand(meter: metrics.Meter) -> None:
    gauge, updown = meter.create_gauge("test.gauge"), meter.create_up_down_counter("test.updown")
    gauge.set(10)
    updown.add(3)
    with capture() as seen:
        gauge.set(12)
        updown.add(-1)
    assert seen.metric("test.gauge").value == 12
    assert seen.metric("test.updown").value == 2


def test_the_same_name_in_two_scopes_is_two_points(meter: metrics.Meter) -> None:
    with capture() as seen:
        for number, scope in enumerate(("one", "two")):
            metrics.get_meter(scope).create_counter("test.twice").add(number + 1)
    assert sorted(p.value for p in seen.metrics("test.twice")) == [1, 2]


def test_log_records_are_seen_with_their_trace_and_only_in_the_block() -> None:
    logger = _logs.get_logger("test")
    with capture() as seen, trace.get_tracer("test").start_as_current_span("work"):
        logger.emit(body="out of stock", severity_number=SeverityNumber.WARN, attributes={"item": 7}, timestamp=5)
        logger.emit(event_name="shop.paid")
    logger.emit(body="later")
    found = seen.log("out of stock")
    assert (found.severity, found.attributes, found.time) == ("WARN", {"item": 7}, 5)
    assert (found.trace_id, found.span_id) == (seen.span("work").trace_id, seen.span("work").span_id)
    assert (seen.log("shop.paid").body, seen.log("shop.paid").severity) == (None, "")
    assert len(seen.logs) == 2
    with pytest.raises(LookupError, match=r"no log record 'later'; seen: out of stock, shop\.paid"):
        seen.log("later")


@pytest.mark.parametrize("mode", ["span", "log", "both"])
def test_our_own_events_are_seen_however_they_go_out(mode: events.Mode) -> None:
    events.set_mode(mode)
    try:
        events.emit("otelctx.eviction", {"otelctx.tokens.before": 1})
        with capture() as seen, trace.get_tracer("test").start_as_current_span("work"):
            events.emit("otelctx.eviction", {"otelctx.tokens.before": 9})
            assert [event.name for event in seen.events] == ["otelctx.eviction"]
        events.emit("otelctx.eviction", {"otelctx.tokens.before": 2})
    finally:
        events.set_mode("span")
    assert seen.event("otelctx.eviction").attributes == {"otelctx.tokens.before": 9}
    assert seen.event("otelctx.eviction").span_id == seen.span("work").span_id
    assert seen.span("work").has_event("otelctx.eviction") is (mode != "log")
    assert len(seen.logs) == (mode != "span")
    with pytest.raises(LookupError, match=r"no event 'otelctx\.overflow'; seen: otelctx\.eviction"):
        seen.event("otelctx.overflow")


def test_more_events_than_the_feed_keeps_are_its_newest() -> None:
    with capture() as seen:
        for number in range(300):
            events.emit("otelctx.eviction", {"otelctx.tokens.before": number})
    assert [event.attributes["otelctx.tokens.before"] for event in seen.events] == list(range(44, 300))


async def test_in_coroutines_it_is_plain_with_and_sees_other_tasks() -> None:
    async def work(name: str) -> None:
        with trace.get_tracer("test").start_as_current_span(name):
            await asyncio.sleep(0)

    with capture() as seen:
        await asyncio.gather(work("a"), work("b"))
    await work("c")
    assert [s.name for s in seen.spans] == ["a", "b"]


def test_the_fixture_is_a_capture(otelctx_capture: Captured) -> None:
    span("inside")
    assert isinstance(otelctx_capture.span("inside"), SeenSpan)


# What depends on the providers that a process has set needs a process of its own.

SET_BEFORE = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
own = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(own))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
counter = metrics.get_meter("app").create_counter("app.count")
counter.add(4)
from otelctx.testing import capture
for _ in range(2):
    with capture() as seen:
        with trace.get_tracer("app").start_as_current_span("work"):
            counter.add(1)
    print(seen.span("work").name, seen.metric("app.count").value, len(own.get_finished_spans()))
    assert trace.get_tracer_provider() is provider
"""

NO_LATER_READER = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
class Old(MeterProvider):
    @property
    def add_metric_reader(self):
        raise AttributeError
metrics.set_meter_provider(Old())
from otelctx.testing import capture
with capture() as seen:
    with trace.get_tracer("app").start_as_current_span("work"):
        pass
print(seen.span("work").name)
try:
    seen.metric("app.count")
except LookupError as error:
    print(error)
"""

LOGGERS = """
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
own = InMemoryLogRecordExporter()
provider = LoggerProvider()
provider.add_log_record_processor(SimpleLogRecordProcessor(own))
_logs.set_logger_provider(provider)
from otelctx.testing import capture
for _ in range(2):
    with capture() as seen:
        _logs.get_logger("app").emit(body="hello")
    print(len(seen.logs), len(own.get_finished_logs()))
assert _logs.get_logger_provider() is provider
"""

NO_LOGGERS = """
from opentelemetry import _logs
_logs.set_logger_provider(_logs.NoOpLoggerProvider())
from otelctx.testing import capture
with capture() as seen:
    _logs.get_logger("app").emit(body="hello")
print(seen.logs)
"""

FOREIGN = """
from opentelemetry import trace
class Foreign(trace.NoOpTracerProvider):
    pass
trace.set_tracer_provider(Foreign())
from otelctx.errors import ConfigError
from otelctx.testing import capture
try:
    with capture():
        pass
except ConfigError as error:
    print(error)
"""


TAKES_READERS = pytest.mark.skipif(
    not hasattr(MeterProvider, "add_metric_reader"), reason="MeterProviders before 1.43 take no further reader"
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(SET_BEFORE, ["work 1 1", "work 1 2"], marks=TAKES_READERS),
        (NO_LATER_READER, ["work", "metrics are not seen, because Old was set"]),
        (LOGGERS, ["1 1", "1 2"]),
        (NO_LOGGERS, ["[]"]),
        (FOREIGN, ["capture() needs the SDK's TracerProvider; Foreign is set"]),
    ],
    ids=[
        "providers are set already",
        "a meter provider that takes no reader",
        "loggers",
        "no loggers",
        "not the SDK's",
    ],
)
def test_providers_that_are_set_are_added_to_and_never_replaced(code: str, said: list[str]) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))
