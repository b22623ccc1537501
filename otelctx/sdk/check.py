"""Does telemetry arrive? Each exporter is asked, and a test span is sent through all that spans go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context

from otelctx.sdk.advice import START, briefly
from otelctx.sdk.finding import find_pipelines, readers
from otelctx.sdk.pipeline import Pipeline, Signal
from otelctx.sdk.probe import Probe
from otelctx.sdk.providers import Provider
from otelctx.sdk.report import Check, SignalCheck
from otelctx.sdk.threads import calling, start
from otelctx.semconv import SPAN_CHECK
from otelctx.telemetry.instruments import tracer

__all__ = ["examine", "more_telling"]


def examine(providers: Mapping[Signal, Provider], timeout: float, clock: Callable[[], float]) -> Check:
    """Ask for about ``timeout`` seconds at most. Not true unless traces arrive, and nothing else is refused."""
    deadline = clock() + timeout
    found = {signal: find_pipelines(signal, provider.get()) for signal, provider in providers.items()}
    probes = [Probe(pipeline, timeout) for pipelines in found.values() for pipeline in pipelines]
    asked = more_telling([probe.result(max(0.0, deadline - clock())) for probe in probes])
    signals = (*asked, *(_without_exporter(providers[signal]) for signal, pipelines in found.items() if not pipelines))
    failed = [f"{s.signal} do not arrive: {s.detail}; {s.advice}" for s in asked if s.state == "failed"]
    answer = _test_span(providers["traces"], found["traces"], failed, lambda: max(0.0, deadline - clock()))
    if answer.ok and failed:
        return Check(False, failed[0], signals)
    return Check(answer.ok, answer.detail, signals)


def more_telling(asked: Sequence[SignalCheck]) -> list[SignalCheck]:
    """``asked``, with what another signal was told at the same endpoint in the place of a refused connection.

    A name has several addresses, ``localhost`` two. gRPC's channels share their connections and tell of the address
    that failed last, so that one of them says what the collector said and the other that nobody is at the second.
    """
    told = {s.endpoint: s for s in asked if s.state == "failed" and s.advice != START}
    return [
        replace(s, detail=told[s.endpoint].detail, advice=told[s.endpoint].advice)
        if s.state == "failed" and s.advice == START and s.endpoint in told
        else s
        for s in asked
    ]


def _without_exporter(provider: Provider) -> SignalCheck:
    pulled = ", ".join(type(reader).__name__ for reader in readers(provider.get()))
    if pulled:
        return SignalCheck(provider.signal, "ok", f"read by {pulled}")
    return SignalCheck(provider.signal, "off", f"no exporter is configured ({provider.variable})")


def _test_span(traces: Provider, pipelines: list[Pipeline], failed: list[str], left: Callable[[], float]) -> Check:
    if traces.ours and not pipelines:
        return Check(False, f"no exporter for traces is configured ({traces.variable})")
    before = [pipeline.delivered for pipeline in pipelines]
    span = tracer().start_span(SPAN_CHECK, Context())
    span.end()
    if not span.get_span_context().trace_flags.sampled:
        return Check(False, "the test span was not sampled (OTEL_TRACES_SAMPLER), so nothing was sent")
    for failure in failed:
        if failure.startswith("traces"):
            return Check(False, failure)
    flush = start(calling(traces.get(), "force_flush"), "otelctx-check")
    flush.join(left())
    if flush.is_alive():
        return Check(False, "a test span was not delivered in time")
    for pipeline, delivered in zip(pipelines, before, strict=True):
        if pipeline.delivered == delivered:
            return Check(
                False, f"a test span was not delivered: {briefly(pipeline.last_error or 'the exporter failed')}"
            )
    return Check(True, f"a test span was delivered: trace {trace.format_trace_id(span.get_span_context().trace_id)}")
