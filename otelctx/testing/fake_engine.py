"""An engine without a model: for tests of what stands around an engine. A token is a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from otelctx.context.current import USAGE_INPUT, USAGE_OUTPUT, current_scope
from otelctx.context.state import Window
from otelctx.errors import Overloaded, TokenLimitExceeded
from otelctx.inference.desk import SessionDesk
from otelctx.inference.engines.base import EngineStats
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Chunk, Message, TurnRequest, TurnResult, Usage, messages_of
from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Lease, Limits, SessionStore

__all__ = ["FakeEngine"]

_PAGES: Final = 4096
_REPLY: Final = ("Hello", " there", ", friend", ".")


class FakeEngine:
    """Answers every turn with ``reply``, one token a piece.

    - ``window``: tokens; a prompt of more words is refused.
    - ``refuse``: raised by every admission.
    - ``fail``: raised after ``fail_after`` pieces instead of going on.
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
        gate: asyncio.Event | None = None,
    ) -> None:
        self.name = name
        self.window = window
        self.model_max = 2 * window
        self.reply = tuple(reply)
        self.refuse = refuse
        self.fail = fail
        self.fail_after = fail_after
        self.gate = gate
        self.ready = False
        self.active = 0
        self.begun = asyncio.Event()
        self.turns: list[TurnRequest] = []
        self.outcomes: list[str] = []
        # An answer may go past the window here.
        limits = Limits(window=2 * window + len(self.reply), wait=0)
        self._store = SessionStore(Arena(_PAGES), limits, time.monotonic)
        self._desk = SessionDesk(self._store, model=name, clock=time.monotonic, run=_here)

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
        if prompt > self.window:
            if lease is not None:
                lease.release()
            self.outcomes.append("rejected")
            raise TokenLimitExceeded(
                f"this model's maximum context length is {self.window} tokens, the prompt has {prompt}",
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
        if outcome in ("completed", "length"):
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
        self._scope = current_scope()
        if self._scope is not None:
            self._scope.report(self.window)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        engine, request = self._engine, self._request
        allowed = len(engine.reply) if request.max_tokens is None else request.max_tokens
        pieces = engine.reply[:allowed]
        try:
            for index, piece in enumerate(pieces):
                await asyncio.sleep(0)  # a token takes its time: others get their turn
                if index and engine.gate is not None:
                    await engine.gate.wait()
                if engine.fail is not None and index >= engine.fail_after:
                    self._end("error", 0)
                    raise engine.fail
                yield Chunk(piece)
            yield self._last(len(pieces))
        finally:
            self._end("cancelled", 0)

    async def aclose(self) -> None:
        self._end("cancelled", 0)

    def _last(self, count: int) -> Chunk:
        stopped = count == len(self._engine.reply)
        used = self.prompt_tokens + count
        if self._scope is not None:
            self._scope.record(USAGE_INPUT.spec, self.prompt_tokens)
            self._scope.record(USAGE_OUTPUT.spec, count)
        self._end("completed" if stopped else "length", used)
        result = TurnResult(
            "stop" if stopped else "length",
            "completed" if stopped else "length",
            Usage(self.prompt_tokens, count),
            limit=None if stopped else "output",
            window=Window(used, self._engine.window, version=len(self._engine.turns)),
            time_to_first_token=0.0,
            session=self._request.session,
        )
        return Chunk("", result.finish_reason, result)

    def _end(self, outcome: str, tokens: int) -> None:
        if not self._over:
            self._over = True
            self._engine.ended(outcome, tokens, self._lease)
