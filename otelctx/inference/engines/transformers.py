"""An engine in this process, around a transformers model."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from opentelemetry.context import Context

from otelctx.context.current import current_scope
from otelctx.errors import ConfigError, Overloaded, SessionDeadline
from otelctx.inference.core import Core
from otelctx.inference.desk import SessionDesk, on_thread
from otelctx.inference.detokenize import Detokenizer
from otelctx.inference.engines.base import EngineStats
from otelctx.inference.facts import check_window, positions
from otelctx.inference.facts import eos_ids as eos_ids_of
from otelctx.inference.guard import Guard
from otelctx.inference.handle import TurnHandle
from otelctx.inference.job import Job
from otelctx.inference.ladder import Ladder
from otelctx.inference.overflow import Mode
from otelctx.inference.params import Params
from otelctx.inference.pressure import Limits as PressureLimits
from otelctx.inference.prompting import Prompter
from otelctx.inference.report import Times, TurnReport
from otelctx.inference.reserved import Reserved, added_tokens
from otelctx.inference.runner import Runner
from otelctx.inference.running import RunningTurn
from otelctx.inference.sampling import RowState
from otelctx.inference.scheduler import Limits
from otelctx.inference.stopping import StopMatcher
from otelctx.inference.thread import EngineThread
from otelctx.inference.tokenizer import ChatTokenizer, SpecialTokens
from otelctx.inference.turn import Chunk, Message, TurnRequest, messages_of
from otelctx.semconv import ACTION, EVENT_SESSION_EXPIRED, LOOKUP_RESULT, REASON
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.store import Lease, SessionStore
from otelctx.sessions.store import Limits as StoreLimits
from otelctx.settings import CaptureContent, Settings
from otelctx.telemetry import events
from otelctx.telemetry.instruments import (
    instruments,
    observe_arena,
    observe_fragmentation,
    observe_kv,
    observe_pressure,
    observe_sessions,
)

__all__ = ["TransformersEngine"]

_MODES: Final = ("turns", "slide", "reject")
_SWEEP: Final = 5.0  # seconds
_WINDOWS: Final = 1024


class TransformersEngine:
    """Serves ``model`` with ``rows`` turns at once, each in a window of ``window`` tokens.

    - ``when_full``: what a session does when a turn does not fit. ``turns`` drops its oldest exchanges whole, ``slide``
      also makes room for an answer while it grows, so that only ``max_tokens``, a stop or a deadline ends it, and
      ``reject`` refuses the turn. A request may ask for another way; one without a session is refused unless it does.
    - ``name`` defaults to the model's class, ``model_max`` and ``eos_ids`` to what its configuration says.
    - ``queue``: turns that may wait for a row; ``sessions``: how many are kept; ``pages``: memory for all of them in
      pages of 64 tokens, by default 1024 windows.
    - ``special_tokens``: see :class:`~otelctx.inference.tokenizer.ChatTokenizer`.
    - ``pressure``: the target for the time to first token, and the thresholds at which requests are capped, refused and
      shed; see :mod:`otelctx.inference.pressure`.
    - ``capture_content``: whether messages and answers go on spans, on events or on both; by default what
      ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says. ``clock`` gives monotonic seconds.

    The model belongs to the engine until :meth:`close`. Raises :class:`~otelctx.errors.ConfigError` for a model that
    can't be served.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        window: int = 4096,
        when_full: Mode = "turns",
        rows: int = 8,
        name: str | None = None,
        model_max: int | None = None,
        eos_ids: Iterable[int] | None = None,
        queue: int = 256,
        sessions: int = 10_000,
        pages: int | None = None,
        special_tokens: SpecialTokens = "neutralise",
        pressure: PressureLimits | None = None,
        capture_content: CaptureContent | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if when_full not in _MODES:
            raise ConfigError(f"when_full must be one of {', '.join(_MODES)}, not {when_full!r}")
        check_window(model, window)
        self._name = name if name is not None else type(model).__name__
        self._window = window
        self._mode: Mode = when_full
        self._model_max = model_max or positions(model) or window
        self._chat = ChatTokenizer(tokenizer, special_tokens=special_tokens)
        guard = Guard(self._chat, window=window)
        self._detokenizer = Detokenizer(tokenizer)
        self._arena = Arena(pages if pages is not None else _WINDOWS * (pages_for(window) + 1))
        self._store = SessionStore(self._arena, StoreLimits(window=window, sessions=sessions), clock, _looked_up)
        self._desk = SessionDesk(self._store, model=self._name, clock=clock, run=self._on_thread)
        self._clock = clock
        self._capture_content = capture_content or Settings.load().capture_content
        self._eos = frozenset(eos_ids if eos_ids is not None else eos_ids_of(model, tokenizer))
        self._limits = Limits(rows=rows, queue=queue)
        self._runner = Runner(model, rows=rows, window=window)  # last of what can be refused: it borrows the model
        self._prompter = Prompter(guard, when_full, self._runner.vocab)
        self._thread: EngineThread | None = None
        self._core: Core | None = None
        self._turns: dict[RunningTurn, Job] = {}
        self._arriving = 0  # requests that are not admitted yet
        self._none_arriving = asyncio.Event()
        self._none_arriving.set()
        self._reserved = Reserved(self._turns.values(), self._runner.kv, self._arena, window)
        self._ladder = self._ladder_of(pressure if pressure is not None else PressureLimits())
        self._numbers, self._versions = itertools.count(1), itertools.count(1)
        self._sweeper: asyncio.Task[None] | None = None
        self._unobserve: list[Callable[[], None]] = []
        self._closed = False

    # what it is

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._window

    @property
    def model_max(self) -> int:
        return self._model_max

    @property
    def ready(self) -> bool:
        thread = self._thread
        return not self._closed and thread is not None and thread.alive and thread.broken is None

    @property
    def broken(self) -> str | None:
        return None if self._thread is None else self._thread.broken

    @property
    def poisoned(self) -> str | None:
        """Why only a new process can serve again: its device is lost to this one. ``None`` while that is not so."""
        return None if self._thread is None else self._thread.poisoned

    def stats(self) -> EngineStats:
        core = self._core
        return EngineStats(
            rows_busy=core.rows_busy if core is not None else 0,
            rows_total=self._runner.rows,
            leases=self._store.leases,
            pages_used=self._arena.used_pages,
            queued=core.queued if core is not None else 0,
            active=core.active if core is not None else 0,
            sessions=self._store.sessions,
        )

    # its life

    async def start(self) -> None:
        if self._closed:
            raise ConfigError("the engine has been closed")
        loop = asyncio.get_running_loop()
        if self._thread is not None:
            if self._thread.loop is not loop:
                raise ConfigError("the engine was started on another event loop")
            return
        thread = EngineThread(loop, f"otelctx-engine-{self._name}")
        self._core = Core(
            self._runner,
            self._chat,
            self._arena,
            when_full=self._mode,
            eos_ids=self._eos,
            limits=self._limits,
            clock=self._clock,
            post=thread.report,
            detokenizer=self._detokenizer,
        )
        self._thread = thread
        thread.start(self._core)
        self._unobserve = [
            observe_arena(self._pages),
            observe_fragmentation(self._store.occupancy),
            observe_sessions(lambda: self._store.sessions),
            observe_kv(self._reserved.kv_bytes),
            observe_pressure(lambda: (self._ladder.level, self._ladder.signals())),
        ]
        # In a context of its own: the first request may be what starts it.
        self._sweeper = loop.create_task(self._sweep(), context=contextvars.Context())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = Overloaded("the server is shutting down")
        await asyncio.gather(*(turn.interrupt(closing) for turn in list(self._turns)))
        # Those that waited for a session or for their tokens are refused now, and give back what they hold.
        await self._none_arriving.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        for remove in self._unobserve:
            remove()
        if self._thread is not None:
            await self._thread.stop()
        self._runner.close()

    # turns

    async def admit(self, request: TurnRequest) -> TurnHandle:
        if not self._closed:
            await self.start()
        report = TurnReport(
            request,
            model=self._name,
            window=self._window,
            mode=request.mode(self._mode),
            scope=current_scope(),
            times=Times(self._clock),
            ladder=self._ladder,
            capture_content=self._capture_content,
        )
        self._arriving += 1
        self._none_arriving.clear()
        try:
            self._running()
            self._ladder.arrived(request, report)
            return TurnHandle(await self._admit(request, report))
        except BaseException as error:
            report.refused(error)
            raise
        finally:
            self._arriving -= 1
            if not self._arriving:
                self._none_arriving.set()

    async def chat(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        *,
        session: str | None = None,
        owner: str = "anonymous",
        max_tokens: int | None = None,
        params: Params | None = None,
        stop: Iterable[str] = (),
        priority: int = 0,
        deadline: float | None = None,
        when_full: Mode | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        request = TurnRequest(
            messages=messages_of(messages),
            session=session,
            owner=owner,
            max_tokens=max_tokens,
            params=params if params is not None else Params(),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stream=True,
            priority=priority,
            deadline=deadline,
            when_full=when_full,
        )
        async with aclosing(await self.admit(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    # sessions

    @property
    def sessions(self) -> SessionDesk:
        return self._desk

    async def session_state(self, session: str, owner: str = "anonymous") -> dict[str, Any]:
        return await self._desk.state(session, owner)

    async def delete_session(self, session: str, owner: str = "anonymous") -> None:
        await self._desk.delete(session, owner)

    async def _on_thread(self, call: Callable[[], int]) -> int:
        if not self._closed:
            await self.start()
        return await on_thread(self._running()[0], call)

    # how a turn is admitted

    async def _admit(self, request: TurnRequest, report: TurnReport) -> RunningTurn:
        request = self._prompter.check(request)
        deadline = None if request.deadline is None else report.times.started + request.deadline
        lease = None
        if request.session is not None:
            left = None if deadline is None else max(0.0, deadline - self._clock())
            lease = await self._store.lease(request.session, request.owner, wait=left)
        try:
            turn = await self._turn(request, report, lease, deadline)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        # From here on the turn has the lease, and gives it back when the engine's thread has let go of the window.
        await turn.placed()
        return turn

    async def _turn(
        self, request: TurnRequest, report: TurnReport, lease: Lease | None, deadline: float | None
    ) -> RunningTurn:
        record = lease.record if lease is not None else None
        if record is not None:
            report.leased(record)
        prompt = await self._prompter.prompt(request, record)
        if lease is not None and lease.released:
            raise SessionDeadline("the turn lost its session while its messages were tokenised", param="session")
        report.neutralised(prompt.neutralised)
        request = self._ladder.prompted(request, lambda: added_tokens(prompt, record), report)
        thread, core = self._running()
        turn = RunningTurn(report, lease, version=partial(next, self._versions), settle=self._settle)
        job = Job(
            number=next(self._numbers),
            request=request,
            prompt=prompt,
            record=record,
            deadline=deadline,
            listener=turn,
            stream=self._detokenizer.stream(),
            state=RowState(request.params),
            stops=StopMatcher(request.stop),
        )
        self._turns[turn] = job
        turn.when_settled(partial(self._turns.pop, turn, None))
        thread.command(partial(core.admit, job))
        return turn

    def _running(self) -> tuple[EngineThread, Core]:
        if not self.ready or self._thread is None or self._core is None:
            raise Overloaded("the engine takes no requests now", retry_after=5.0)
        return self._thread, self._core

    def _settle(self, turn: RunningTurn, keep: bool) -> None:
        job = self._turns.get(turn)
        if job is not None and self._thread is not None and self._core is not None:
            self._thread.command(partial(self._core.settle, job, keep))

    def _pages(self) -> dict[str, int]:
        return {"used": self._arena.used_pages, "free": self._arena.free_pages}

    def _ladder_of(self, limits: PressureLimits) -> Ladder:
        memory = self._reserved.share
        return Ladder(limits, self._clock, window=self._window, memory=memory, drop_idle=self._drop_idle)

    def _drop_idle(self) -> None:
        if self._thread is not None and self._core is not None:
            self._thread.command(partial(self._core.drop_idle, _dropped))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self._ladder.tick()
            for record in self._store.sweep():
                events.emit(EVENT_SESSION_EXPIRED, {REASON: record.ended or "idle"}, context=Context())


def _dropped(tokens: int) -> None:
    if tokens:
        instruments().kv_tokens.add(tokens, {ACTION: "dropped"})


def _looked_up(result: str) -> None:
    instruments().session_lookups.add(1, {LOOKUP_RESULT: result})
