"""One run: start everything, load it, let it come to rest, take it apart, and judge."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from otelctx import semconv
from otelctx.inference.loader import Loaded, load
from otelctx.settings import Settings
from otelctx.testing import OtlpReceiver
from scripts.soak import replay, tiny
from scripts.soak.actors import Actor
from scripts.soak.asking import PATIENCE, Asking
from scripts.soak.backstage import Telemetry, Worker, keys, outages, worker
from scripts.soak.checks import SETTLED
from scripts.soak.options import Options, WorkerOptions
from scripts.soak.seen import Seen

__all__ = ["Say", "run"]

Say = Callable[[str, dict[str, Any]], None]
"""Called with a line to show and what to write down."""

_SAMPLE: Final = 2.0  # seconds
_LOOK: Final = 10.0
_DRAIN: Final = 2 * PATIENCE  # a request that waits and then streams has its fate by then, on a busy machine too
_REST: Final = 20.0
_PROOFS: Final = 5
_SERVICE: Final = "soak-worker"


async def run(options: Options, folder: Path, say: Say) -> Seen:
    """Raises :class:`~otelctx.errors.ConfigError` if a backend or the model is missing."""
    seen = Seen(options)
    record, final, key = folder / "turns.jsonl", folder / "final.json", keys()
    loaded = await asyncio.to_thread(_load, options, folder)
    settings = WorkerOptions(
        model=str(folder / "tiny") if options.model == "tiny" else "smollm2",
        window=options.window,
        rows=options.rows,
        seed=options.seed,
        rarer=1.0 if options.model == "tiny" else 2.0,
        threads=1 if options.model == "tiny" else 2,
        record=str(record),
        final=str(final),
    )
    async with AsyncExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver(limit=16 * 2**20))
        telemetry = Telemetry(folder)
        stack.push_async_callback(telemetry.close)
        await telemetry.start()
        say("backends are up", {})
        environment = {
            "OTELCTX_KEYS": key,
            "OTEL_EXPORTER_OTLP_ENDPOINT": telemetry.endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "2000",
            "OTEL_TRACES_SAMPLER": "always_on",
        }
        running = await stack.enter_async_context(worker(settings, environment, folder / "worker.log"))
        say(f"the worker is up: process {running.pid}", {})
        asking = Asking(running.url, key, seen.ledger)
        stack.push_async_callback(asking.close)
        windows = await _load_and_rest(seen, asking, running, telemetry, say)
        seen.status = await running.stop()
        await telemetry.close()
        _read_telemetry(seen, receiver, telemetry, json.loads(final.read_text()))
        seen.tracebacks = running.tracebacks()
    with record.open() as lines:
        seen.record = [json.loads(line) for line in lines]
    await _replay(seen, windows, loaded, say)
    return seen


def _load(options: Options, folder: Path) -> Loaded:
    cache = Settings.load().cache_dir
    return load(tiny.write(folder / "tiny") if options.model == "tiny" else "smollm2", cache_dir=cache)


async def _load_and_rest(
    seen: Seen, asking: Asking, running: Worker, telemetry: Telemetry, say: Say
) -> dict[str, list[int] | None]:
    options = seen.options
    seen.before, census = await asking.ask_worker("state"), await asking.ask_worker("census")
    names = [f"s{number}" for number in range(options.sessions)]
    actors = [
        Actor(name, asking, seen.ledger, number, options.seed)
        for number, name in enumerate([*names, *[None] * options.alone])
    ]
    if options.seconds >= SETTLED:
        await _fill(seen, actors, telemetry, say)
    stop = asyncio.Event()
    began = time.monotonic()
    tasks = [asyncio.create_task(actor.run(stop)) for actor in actors]
    watching = asyncio.create_task(_watch(seen, asking, running, began, say))
    suffering = asyncio.create_task(_suffer(seen, telemetry, began, say))
    try:
        await _wait(tasks, options.seconds)
        stop.set()
        await _wait(tasks, _DRAIN)
        await suffering
    finally:
        for task in (*tasks, watching, suffering):
            task.cancel()
        await asyncio.gather(*tasks, watching, suffering, return_exceptions=True)
    _raise_first(tasks)
    await asking.ask_worker("quiet")
    seen.rest = await _at_rest(asking)
    say(f"at rest: {seen.rest}", {"rest": seen.rest})
    seen.traces = await _prove(seen, asking, telemetry)
    windows: dict[str, list[int] | None] = await asking.ask_worker("windows", names)
    seen.sessions = sum(window is not None for window in windows.values())
    for name in names:
        await asking.delete(name)
    seen.emptied = await asking.ask_worker("state")
    after = Counter(await asking.ask_worker("census"))
    after.subtract(census)
    say("objects counted", {"more_objects": dict(after.most_common(20))})
    return windows


async def _fill(seen: Seen, actors: list[Actor], telemetry: Telemetry, say: Say) -> None:
    """Bring the worker's memory to where it will be, so that what grows afterwards is a leak.

    What lives in it stays the same from the first seconds on. But an allocator keeps what it has once been asked for at
    the same time, and it is asked for most when telemetry can't leave: some seven MiB for spans, and ten that stay
    free between them and in the arenas of the threads that tokenise long texts. Else that would come with an outage.
    """
    began = time.monotonic()
    seen.outages["fill"] = 1
    async with telemetry.silent():
        await asyncio.gather(*(actor.fill() for actor in actors))
    say(f"filled in {time.monotonic() - began:.0f} s with {len(seen.ledger)} requests", {})


async def _wait(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Until all are done, one has failed, or the time is over."""
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    _raise_first(tasks)


def _raise_first(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _watch(seen: Seen, asking: Asking, running: Worker, began: float, say: Say) -> None:
    """Memory every two seconds, and every ten the engine's state and a line.

    Before each look the allocator gives back what it only keeps for later: what counts is what can't be given back.
    """
    process = psutil.Process(running.pid)
    looked = began
    while running.status is None:
        now = time.monotonic()
        await asking.ask_worker("trim")
        seen.memory.append((now - began, process.memory_info().rss / 2**20))
        if now - looked >= _LOOK:
            looked = now
            state = await asking.ask_worker("state")
            seen.odd += _odd(seen.options, state)
            books = seen.ledger.books()
            at = {"at": round(now - began, 1), "rss": round(seen.memory[-1][1], 1), "requests": len(seen.ledger)}
            say(
                f"{at['at']:6.0f} s: {at['requests']} requests, {at['rss']:.0f} MiB, {state['active']} running, "
                f"{state['queued']} waiting, {state['sessions']} sessions",
                at | {"fates": dict(books.fates), "state": state},
            )
        await asyncio.sleep(_SAMPLE)
    seen.odd.append(f"the worker ended in mid-run with {running.status}")


def _odd(options: Options, state: dict[str, Any]) -> list[str]:
    """What may not be at any moment."""
    limits = {
        "rows_busy": options.rows,
        "active": options.rows,
        "leases": options.sessions,
        "sessions": options.sessions,
    }
    odd = [f"{name} was {state[name]} of {limit}" for name, limit in limits.items() if state[name] > limit]
    return odd if state["ready"] else [*odd, "the engine was not ready"]


async def _suffer(seen: Seen, telemetry: Telemetry, began: float, say: Say) -> None:
    done = Counter(seen.outages)
    for outage in outages(seen.options.seconds, seen.options.seed):
        await asyncio.sleep(max(0.0, began + outage.at - time.monotonic()))
        await telemetry.suffer(outage, lambda text: say(text, {"outage": text}))
        done[outage.kind] += 1
        seen.outages = dict(done)


async def _at_rest(asking: Asking) -> dict[str, Any]:
    """The state as soon as nothing runs, or as it is after a while."""
    until = time.monotonic() + _REST
    while True:
        state: dict[str, Any] = await asking.ask_worker("state")
        if not (state["active"] or state["queued"] or state["leases"]) or time.monotonic() > until:
            return state
        await asyncio.sleep(0.2)


async def _prove(seen: Seen, asking: Asking, telemetry: Telemetry) -> list[str]:
    """After all outages, some more requests must be whole in Jaeger. Returns what is not."""
    wrong = []
    wanted = {"POST /v1/chat/completions", "chat soak", "queue", "prefill", "decode"}
    traces = [secrets.token_hex(16) for _ in range(_PROOFS)]
    await asyncio.gather(*(asking.traced(seen.ledger.open("proof", None), trace) for trace in traces))
    for trace in traces:
        try:
            await asyncio.to_thread(
                telemetry.jaeger.wait_for, trace, lambda spans: wanted <= {span["operationName"] for span in spans}
            )
        except TimeoutError as error:
            wrong.append(str(error))
    return wrong


def _read_telemetry(seen: Seen, receiver: OtlpReceiver, telemetry: Telemetry, final: dict[str, int]) -> None:
    for point in receiver.metrics(semconv.REQUESTS):
        if point.attributes["service.name"] == _SERVICE:
            outcome = point.attributes[semconv.OUTCOME]
            seen.counters[outcome] = seen.counters.get(outcome, 0) + int(point.value)
    dropped = sum(
        int(point.value)
        for point in receiver.metrics(semconv.TELEMETRY_DROPPED)
        if point.attributes[semconv.TELEMETRY_SIGNAL] == "traces"
    )
    seen.spans = final | {"dropped": dropped, "accepted": telemetry.accepted}


async def _replay(seen: Seen, windows: dict[str, list[int] | None], loaded: Loaded, say: Say) -> None:
    options = seen.options
    found = replay.conversations(seen.record, windows)
    say(f"judging {len(found)} conversations", {})
    with suppress(asyncio.CancelledError):
        seen.verdict = await replay.replay(
            found, loaded, window=options.window, rows=options.rows, seconds=options.replay
        )
