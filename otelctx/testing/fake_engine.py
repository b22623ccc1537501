"""An engine without a model: for tests of what stands around an engine. A token is a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from otelctx.context.current import USAGE_INPUT, USAGE_OUTPUT, current_scope
from otelctx.context.state import Window
from otelctx.errors import Overloaded, TokenLimitExceeded
from otelctx.inference.desk import SessionDesk
from otelctx.inference.engines.base import EngineStats
from otelctx.inference.params import Params
from otelctx.inference.turn import Chunk, Limit, Message, Outcome, TurnRequest, TurnResult, Usage, messages_of
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Lease, Limits, SessionStore
from otelctx.testing.clock import ManualClock

__all__ = ["FakeEngine"]

_PAGES: Final = 4096
_REPLY: Final = ("Hello", " there", ", friend", ".")


class FakeEngine:
    """Answers every turn with ``reply``, one token a piece.

    - ``window``: tokens. A prompt of so many words leaves no room for an answer and is refused; an answer that fills it
      ends there, with ``length``.
    - ``refuse``: raised by every admission.
    - ``fail``: raised after ``fail_after`` pieces instead of going on.
    - ``first``, ``each``: seconds that the first piece and each further one take, by ``clock``: a
      :class:`~otelctx.testing.clock.ManualClock` on which they take no time, or by default the real one.
    - ``gate``: if given, each piece after the first waits until it is set: a turn that is still running.

    ``turns`` keeps the requests, ``outcomes`` how each ended; ``begun`` is set by the first that was admitted.
    """

    def __init__(
        self,
        *,
        name: str = "fake",
        window: int = 64,
        reply: Sequence[str] = _REPLY,
        refuse: Exception | None = None,
        fail: Exception | None = None,
        fail_after: int = 1,
        first: float = 0.0,
        each: float = 0.0,
        clock: ManualClock | None = None,
        gate: asyncio.Event | None = None,
    ) -> None:
        self.name = name
        self.window = window
        self.model_max = 2 * window
        self.reply = tuple(reply)
        self.refuse = refuse
        self.fail = fail
        self.fail_after = fail_after
        self.first = first
        self.each = each
        self.now: Callable[[], float] = time.monotonic if clock is None else clock
        self.sleep: Callable[[float], Awaitable[object]] = asyncio.sleep if clock is None else clock.sleep
        self.gate = gate
        self.ready = False
        self.broken: str | None = None
        self.active = 0
        self.begun = asyncio.Event()
        self.turns: list[TurnRequest] = []
        self.outcomes: list[str] = []
        self._store = SessionStore(Arena(_PAGES), Limits(window=window, wait=0), self.now)
        self._desk = SessionDesk(self._store, model=name, clock=self.now, run=_here)

    async def start(self) -> None:
        self.ready = True

    async def close(self) -> None:
        self.ready = False

    async def admit(self, request: TurnRequest) -> FakeAdmitted:
        if not self.ready:
            raise Overloaded("the engine is not running")
        if self.refuse is not None:
            raise self.refuse
        self.turns.append(request)
        lease = None
        if request.session is not None:
            lease = await self._store.lease(request.session, request.owner)
        prompt = _tokens(request) + (lease.window.kept if lease is not None else 0)
        if prompt >= self.window:
            if lease is not None:
                lease.release()
            self.outcomes.append("rejected")
            raise TokenLimitExceeded(
                f"this model's maximum context length is {self.window} tokens, the prompt has {prompt} and the answer "
                "needs one",
                param="messages",
                n_prompt_tokens=prompt,
                max_context=self.window,
            )
        self.active += 1
        self.begun.set()
        return FakeAdmitted(self, request, prompt, lease)

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
    ) -> AsyncGenerator[Chunk, None]:
        request = TurnRequest(
            messages_of(messages), session, owner, max_tokens, params or Params(), tuple(stop), True, priority, deadline
        )
        async with aclosing(await self.admit(request)) as admitted, aclosing(admitted.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def stats(self) -> EngineStats:
        return EngineStats(self.active, 8, self.active, 0, 0, self.active, self._store.sessions)

    @property
    def sessions(self) -> SessionDesk:
        return self._desk

    async def session_state(self, session: str, owner: str = "anonymous") -> dict[str, Any]:
        return await self._desk.state(session, owner)

    async def delete_session(self, session: str, owner: str = "anonymous") -> None:
        await self._desk.delete(session, owner)

    def ended(self, outcome: str, tokens: int, lease: Lease | None) -> None:
        """Called by the turn, once. ``tokens`` are in its window now."""
        self.active -= 1
        self.outcomes.append(outcome)
        if lease is None:
            return
        if outcome in ("completed", "length", "deadline"):
            record, window = lease.record, lease.window
            tx = window.begin()
            window.append(tx, range(window.kept, tokens))
            record.commit(tx)
            record.turns += 1
        lease.release()


async def _here(call: Callable[[], int]) -> int:
    return call()


def _tokens(request: TurnRequest) -> int:
    if request.prompt is not None:
        return len(request.prompt.split() if isinstance(request.prompt, str) else request.prompt)
    return sum(len(message.content.split()) for message in request.messages)


class FakeAdmitted:
    """One turn of :class:`FakeEngine`."""

    def __init__(self, engine: FakeEngine, request: TurnRequest, prompt: int, lease: Lease | None) -> None:
        self.prompt_tokens = prompt
        self.dropped_tokens = 0
        self.window = Window(prompt, engine.window, version=len(engine.turns))
        self._engine = engine
        self._request = request
        self._lease = lease
        self._over = False
        self._begun = engine.now()
        self._first: float | None = None
        self._scope = current_scope()
        if self._scope is not None:
            self._scope.report(self.window)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        engine, request = self._engine, self._request
        count, limit = self._allowed()
        written = 0
        try:
            while written < count:
                await asyncio.sleep(0)  # a token takes its time: others get their turn
                if seconds := engine.each if written else engine.first:
                    await engine.sleep(seconds)
                if written and engine.gate is not None:
                    await engine.gate.wait()
                if request.deadline is not None and engine.now() - self._begun >= request.deadline:
                    limit = "deadline"
                    break
                if engine.fail is not None and written >= engine.fail_after:
                    self._end("error", 0)
                    raise engine.fail
                if not written:
                    self._first = engine.now() - self._begun
                written += 1
                yield Chunk(engine.reply[written - 1])
            yield self._last(written, limit)
        finally:
            self._end("cancelled", 0)

    def _allowed(self) -> tuple[int, Limit | None]:
        """Tokens of the answer, and what ends it if it is not whole."""
        whole, room = len(self._engine.reply), self._engine.window - self.prompt_tokens
        asked = self._request.max_tokens
        if asked is not None and asked < whole and asked <= room:
            return asked, "output"
        return (whole, None) if whole <= room else (room, "context")

    async def aclose(self) -> None:
        self._end("cancelled", 0)

    def _last(self, count: int, limit: Limit | None) -> Chunk:
        used = self.prompt_tokens + count
        if self._scope is not None:
            self._scope.record(USAGE_INPUT.spec, self.prompt_tokens)
            self._scope.record(USAGE_OUTPUT.spec, count)
        outcome: Outcome = "completed" if limit is None else "deadline" if limit == "deadline" else "length"
        self._end(outcome, used)
        result = TurnResult(
            "stop" if limit is None else "length",
            outcome,
            Usage(self.prompt_tokens, count),
            limit=limit,
            window=Window(used, self._engine.window, version=len(self._engine.turns)),
            time_to_first_token=self._first,
            session=self._request.session,
        )
        return Chunk("", result.finish_reason, result)

    def _end(self, outcome: str, tokens: int) -> None:
        if not self._over:
            self._over = True
            self._engine.ended(outcome, tokens, self._lease)
