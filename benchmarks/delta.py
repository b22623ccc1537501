"""``delta``: what carrying context costs, against OpenTelemetry's own W3C propagators with the same thirteen keys.

``time``        CPU time of one whole signed exchange in its steady state (REF): client side, server side, the ack and
                its reading, with trace context on both sides; through inject and extract of the composite of
                ``TraceContextTextMapPropagator`` and ``W3CBaggagePropagator``. Fair because the composite is what the
                SDK sets up by default, both carry the same keys and values between the same plain dicts, and ours does
                more in its time: it proves who sent the context, checks it, and answers. Ours writes and reads
                ``traceparent`` as its clients and its middleware do.
``time_sdk``    the same, but with ``TraceContextTextMapPropagator`` on our side, too: what context alone saves.
``time_many``   the same as ``time``, with 1,000 sessions that take turns.
``time_seldom`` the same as ``time``, with two seconds between exchanges, as in a conversation: what is kept up to a
                second is written each time.
``bases_100k``  a figure: MiB that the bases of 100,000 sessions take in a worker, their peak, and the estimate by which
                a worker keeps to its budget (64 MiB by default: it never keeps so many).
``bytes``       the ``otelctx`` line of a REF through the ``baggage`` line, as they stand in an HTTP/1.1 head.
``ack_bytes``   the ``otelctx-ack`` line through the same ``baggage`` line. ``ack_bytes_full`` is one with token usage,
                turn and window in it, for which baggage has no counterpart.
``mixed_bytes`` ten rounds over 10,000 sessions on TCP, the first one included, in which every state is new; in each
                later round 30 % of the sessions have changed one value. All bytes of ours, acks and repeated requests
                included, through all bytes of ``baggage``. Limits are the defaults.
``hpack_N``     N sessions take turns on one HTTP/2 connection, 30 % changed, after a first round. Bytes that context
                adds to the HPACK-coded heads, acks included, through those that ``baggage`` adds; both share their
                table with the same other headers. Fair because HPACK is where baggage is at its best: an unchanged line
                that is still in the table costs a byte. ``hpack_1`` has no target for that reason.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle, repeat
from statistics import median
from time import thread_time
from typing import Final

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from benchmarks._exchange import HOST, Pair, baggage_context, baggage_value, new_state, rounds
from benchmarks._wire import baggage_bytes, context_bytes, header_line
from benchmarks.harness import Report, at_most, interleave, median_ratio, versions
from otelctx.context.current import with_scope
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY, State, Window
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_frame, from_header, split_mac
from otelctx.delta.limits import Limits
from otelctx.exchange import w3c
from otelctx.exchange.client import Verdict
from otelctx.semconv import ACK_HEADER, HEADER, SESSION_TURN, USAGE_INPUT_TOKENS, USAGE_OUTPUT_TOKENS

__all__ = ["run"]

TARGETS: Final = {
    "time": at_most(0.15),
    "bytes": at_most(0.25),
    "ack_bytes": at_most(0.25),
    "mixed_bytes": at_most(0.5),
    "hpack_16": at_most(0.5),
    "hpack_256": at_most(0.5),
}
HPACK_SESSIONS: Final = (1, 16, 256)
Inject = Callable[[dict[str, str], Context], None]
Extract = Callable[[dict[str, str]], Context]
_TRACE: Final = TraceContextTextMapPropagator()
_W3C: Final = CompositePropagator([_TRACE, W3CBaggagePropagator()])


def run(quick: bool) -> Report:
    report = Report("delta", TARGETS)
    report.options["otelctx"] = f"{versions('otelctx')}; one MAC key, default limits, POST, reply without up values"
    report.options["w3c"] = f"{versions('opentelemetry-api')}; CompositePropagator(tracecontext, baggage), 13 entries"
    rng = random.Random(1)
    many = [new_state(random.Random(n)) for n in range(10 if quick else 1000)]
    _time(report, new_state(rng), many, rounds=3 if quick else 40, inner=10 if quick else 250)
    _lines(report, new_state(rng))
    _memory(report, bases=500 if quick else 100_000)
    _mixed(report, sessions=20 if quick else 10_000, count=5 if quick else 10)
    with report.peer("hpack"):
        _hpack(report, exchanges=256 if quick else 4096, rng=rng)
    return report


def _time(report: Report, state: State, many_states: Sequence[State], rounds: int, inner: int) -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(1 << 100, 1 << 50, False, trace.TraceFlags(1)))
    parent = trace.set_span_in_context(span)
    context = with_scope(Scope(state, source="frame"), parent)
    others = [with_scope(Scope(other, source="frame"), parent) for other in many_states]
    alternatives = {
        "ours": _ours([context], _inject, _extract),
        "sdk": _ours([context], _TRACE.inject, _TRACE.extract),
        "many": _ours(others, _inject, _extract),
        "seldom": _ours([context], _inject, _extract, step=2.0),
    }
    for name, propagator in (("w3c", _W3C), ("trace", _TRACE)):
        alternatives[name] = _composite(propagator, baggage_context(state, parent))

    def many(once: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in repeat(None, inner):
                once()

        return run

    # Both are one thread that never waits, so its CPU time is all there is, and other processes don't count.
    times = interleave({name: many(once) for name, once in alternatives.items()}, rounds=rounds, clock=thread_time)
    for ratio, name in (("time", "ours"), ("time_sdk", "sdk"), ("time_many", "many"), ("time_seldom", "seldom")):
        report.ratios[ratio] = median_ratio(times, name, "w3c")
    for name, found in times.items():
        report.figures[f"{name}_us"] = median(found) / inner * 1e6


def _inject(carrier: dict[str, str], context: Context) -> None:
    w3c.inject(carrier, context)


def _extract(carrier: dict[str, str]) -> Context:
    """As the middleware does, for which header values are bytes."""
    return w3c.parse(carrier["traceparent"].encode()) or Context()


def _ours(contexts: Sequence[Context], inject: Inject, extract: Extract, step: float = 0.0) -> Callable[[], None]:
    """Exchanges from each of ``contexts`` in turn."""
    pair, turns = Pair(step), cycle(contexts)

    def once() -> None:
        context = next(turns)
        outgoing = pair.send(context)
        carrier = dict(outgoing.headers)
        inject(carrier, context)
        received = extract(carrier)
        incoming = pair.open([carrier[HEADER]])
        with_scope(incoming.scope, received)
        ack = pair.ack(incoming)
        incoming.close()
        pair.close(outgoing, 200, [ack or b""])

    for _ in range(4 * len(contexts)):
        once()
    if {pair.send(context).kind for context in contexts} != {"ref"}:
        raise RuntimeError("after four exchanges of one state the fifth is no REF")
    return once


def _composite(propagator: CompositePropagator | TraceContextTextMapPropagator, context: Context) -> Callable[[], None]:
    def once() -> None:
        carrier: dict[str, str] = {}
        propagator.inject(carrier, context)
        propagator.extract(carrier)

    return once


def _lines(report: Report, state: State) -> None:
    pair = Pair()
    for _ in range(4):
        lines = pair.whole(state)
    if lines.kind != "ref":
        raise RuntimeError(f"after four exchanges of one state the frame is a {lines.kind}")
    sizes = {
        "frame": len(header_line(HEADER, lines.frame)),
        "ack": len(header_line(ACK_HEADER, lines.ack)),
        "ack_full": len(header_line(ACK_HEADER, _full_ack(pair, state))),
        "baggage": len(header_line("baggage", baggage_value(state))),
    }
    report.figures |= {f"{name}_bytes": size for name, size in sizes.items()}
    report.ratios["bytes"] = sizes["frame"] / sizes["baggage"]
    report.ratios["ack_bytes"] = sizes["ack"] / sizes["baggage"]
    report.ratios["ack_bytes_full"] = sizes["ack_full"] / sizes["baggage"]


def _memory(report: Report, bases: int) -> None:
    """What a worker takes for the bases of so many sessions, as they come in."""
    pair, rng = Pair(), random.Random(4)
    cache = BaseCache(Limits(base_bytes=2**40))
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(bases):
            outgoing = pair.begin(new_state(rng))
            frame = decode_frame(split_mac(from_header(outgoing.headers[0][1]))[0])
            cache.put("default", EMPTY.apply(frame.put, ()), HOST)
            outgoing.failed()
        before_clearing, peak = tracemalloc.get_traced_memory()
        estimate = cache.bytes
        cache.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    share = 100_000 / bases / 2**20
    report.figures |= {
        "bases_100k_mib": (before_clearing - after) * share,
        "bases_100k_peak_mib": (peak - after) * share,
        "bases_100k_estimate_mib": estimate * share,
    }


def _full_ack(pair: Pair, state: State) -> str:
    outgoing = pair.begin(state)
    incoming = pair.open([outgoing.headers[0][1]])
    for name, value in ((USAGE_INPUT_TOKENS, 3807), (USAGE_OUTPUT_TOKENS, 212), (SESSION_TURN, 17)):
        spec = pair.callee.registry.get(name)
        if spec is not None:
            incoming.scope.record(spec, value)
    incoming.scope.report(Window(used=4019, limit=8192, evicted=0, level=0, generation=1, version=17))
    ack = pair.ack(incoming) or b""
    incoming.close()
    if pair.close(outgoing, 200, [ack]) is not Verdict.DONE:
        raise RuntimeError("an ack with usage and window was not accepted")
    return ack.decode()


def _mixed(report: Report, sessions: int, count: int) -> None:
    def workload() -> list[State]:
        rng = random.Random(2)
        return [new_state(rng) for _ in range(sessions)]

    theirs = baggage_bytes(rounds(workload(), count, random.Random(3)))
    ours, kinds = context_bytes(rounds(workload(), count, random.Random(3)))
    report.ratios["mixed_bytes"] = ours / theirs
    exchanges = sessions * count
    report.figures |= {"mixed_ours_bytes": ours / exchanges, "mixed_baggage_bytes": theirs / exchanges}
    report.figures |= {f"mixed_{kind}_share": number / exchanges for kind, number in kinds.items()}


def _hpack(report: Report, exchanges: int, rng: random.Random) -> None:
    report.options["hpack"] = f"{versions('hpack')}; Huffman coding, tables of 4096 bytes, everything may be indexed"
    from benchmarks._hpack import added_bytes

    for sessions in HPACK_SESSIONS:
        count = max(1, exchanges // sessions)
        ours, theirs = added_bytes(sessions, count, rng)
        report.ratios[f"hpack_{sessions}"] = ours / theirs
        report.figures[f"hpack_{sessions}_ours_bytes"] = ours / (count * sessions)
        report.figures[f"hpack_{sessions}_baggage_bytes"] = theirs / (count * sessions)
