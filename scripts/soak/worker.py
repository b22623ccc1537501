"""The worker under load: what ``otelctx serve`` runs, with an engine that fails by schedule and can be asked about.

``python -m scripts.soak.worker OPTIONS``, the JSON of :class:`~scripts.soak.options.WorkerOptions`. Nothing of the
package is changed: the process is the command's own, and engine and application are wrapped on their way into it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys
import threading
from collections import Counter
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from otelctx.asgi.owner import owner_of
from otelctx.cli import worker
from otelctx.cli.options import Options
from otelctx.cli.serve import listener
from otelctx.settings import Settings
from scripts.soak.faults import EVERY, Faults, Schedule
from scripts.soak.options import ID_HEADER, WorkerOptions
from scripts.soak.recorder import REQUEST, Recorder

_PREFIX: Final = "/soak/"


class Ended(SpanProcessor):
    """Counts the spans that are to be exported, from any thread."""

    def __init__(self) -> None:
        self._numbers = count()

    def on_end(self, span: Any) -> None:
        if span.context.trace_flags.sampled:
            next(self._numbers)

    def total(self) -> int:
        """To be called once, at the end."""
        return next(self._numbers)


class Control:
    """Answers what the test asks under ``/soak/`` and passes on the rest, each request with the client's own id."""

    def __init__(self, app: Any, engine: Any, faults: Faults, recorder: Recorder) -> None:
        self._app = app
        self._engine = engine
        self._faults = faults
        self._recorder = recorder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            await self._answer(scope, receive, send)
            return
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == ID_HEADER.encode()]
            REQUEST.set(given[0].decode() if given else "")
        await self._app(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        answer = getattr(self, "_" + scope["path"].removeprefix(_PREFIX))(scope, json.loads(body or b"null"))
        data = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    def _state(self, scope: Any, given: Any) -> dict[str, Any]:
        return {
            **asdict(self._engine.stats()),
            "ready": self._engine.ready,
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "reached": self._recorder.reached,
            "faults": dict(self._faults.done),
        }

    def _trim(self, scope: Any, given: Any) -> None:
        """Have the C library give back what it holds for later, where it can (glibc)."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def _census(self, scope: Any, given: Any) -> dict[str, int]:
        """How many objects of each type there are, the hundred most frequent."""
        gc.collect()
        return dict(Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects()).most_common(100))

    def _quiet(self, scope: Any, given: Any) -> None:
        """No more faults, and what was recorded so far is in its file."""
        self._faults.stop()
        self._recorder.flush()

    def _windows(self, scope: Any, given: list[str]) -> dict[str, list[int] | None]:
        """The token ids of these sessions of the caller's, which must be idle."""
        found: dict[str, list[int] | None] = {}
        for session in given:
            try:
                record = self._engine._store.get(session, owner_of(scope))
            except LookupError:
                found[session] = None
            except Exception as error:
                if getattr(error, "status", None) != 404:
                    raise
                found[session] = None
            else:
                found[session] = [int(token) for token in record.window.tokens()]
        return found


def main(settings: WorkerOptions) -> None:
    torch.set_num_threads(settings.threads)
    make_engine, make_app, configure = worker._engine, worker.app, worker.configure
    made: list[Any] = []

    def wrapped_engine(*args: Any, **kwargs: Any) -> Any:
        engine = make_engine(*args, **kwargs)
        made.append(
            Faults(
                engine._runner, Schedule(settings.seed, {kind: mean * settings.rarer for kind, mean in EVERY.items()})
            )
        )
        made.append(Recorder(engine, Path(settings.record)))
        return engine

    def wrapped_app(engine: Any, *args: Any, **kwargs: Any) -> Any:
        return Control(make_app(engine, *args, **kwargs), engine, made[0], made[1])

    ended = Ended()

    def kept_handle(*args: Any, **kwargs: Any) -> Any:
        made.append(configure(*args, **kwargs))
        provider: Any = trace.get_tracer_provider()
        provider.add_span_processor(ended)
        return made[-1]

    replaced = {"_engine": wrapped_engine, "app": wrapped_app, "configure": kept_handle}
    vars(worker).update(replaced)
    with listener("127.0.0.1", 0) as bound:
        worker.work(_options(settings), Settings.load(), bound)
    made[1].close()
    delivered = sum(pipeline.delivered for pipeline in made[2]._pipelines() if pipeline.signal == "traces")
    Path(settings.final).write_text(json.dumps({"handed": ended.total(), "delivered": delivered}))


def _options(settings: WorkerOptions) -> Options:
    return Options(
        model=settings.model,
        host="127.0.0.1",
        port=0,
        window=settings.window,
        rows=settings.rows,
        when_full="turns",
        name="soak",
        service_name="soak-worker",
        threads=settings.threads,
        drain=5.0,
    )


if __name__ == "__main__":
    main(WorkerOptions(**json.loads(sys.argv[1])))
