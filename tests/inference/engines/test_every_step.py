"""A turn may be ended between any two steps of the event loop; whenever it is, it was never there, or is kept whole.

The loop counts the callbacks that it runs, and the engine's thread and the guard's run as callbacks of it too. So a
turn can be ended after its first callback, its second, and so on until there is none left: in its wait for the session,
in the guard, in the queue for a row, in each chunk of its prompt, at each token, at its last chunk, and while it is
being taken back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import pytest

from otelctx.errors import OtelctxError, Overloaded
from otelctx.exchange.node import Node
from otelctx.inference import guard
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.sampling import Params
from otelctx.inference.scheduler import Limits
from otelctx.inference.turn import Message, TurnRequest
from otelctx.settings import Settings
from otelctx.testing import Captured

GREEDY = Params(temperature=0)
QUESTION = "tell me of the hill and of the sea"
KEPT = {"completed", "length"}


def request(text: str, session: str | None, tokens: int = 3, deadline: float | None = None) -> TurnRequest:
    return TurnRequest((Message("user", text),), session, max_tokens=tokens, params=GREEDY, deadline=deadline)


class Scene:
    """An engine, others that use it, and the turn that is ended. ``rows``, and who is in its way."""

    def __init__(self, build: Any, seen: Captured, come: Any, *, rows: int, before: bool) -> None:
        self.now = 1000.0
        self.engine = build(rows=rows, window=512, clock=lambda: self.now)
        self.engine._limits = Limits(rows=rows, chunk=8, idle_chunk=24)
        self.seen, self.come = seen, come
        self.before = before  # whether another turn of the session comes first
        self.turn: Any = None
        self.arrived = 0  # requests
        self._spans = 0
        self._admit = self.engine.admit
        self.engine.admit = self.admit  # type: ignore[method-assign]
        self._release = self.engine._store._release
        self.engine._store._release = self.release  # type: ignore[method-assign]

    def release(self, lease: Any) -> None:
        """Nobody else may have the session before the engine's thread has let go of its window."""
        assert lease.released or lease.window._tx is None
        self._release(lease)

    async def admit(self, asked: TurnRequest) -> Any:
        self.arrived += 1
        return await self._admit(asked)

    async def read(self, asked: TurnRequest) -> str:
        text = ""
        async with aclosing(await self.engine.admit(asked)) as turn:
            if asked.messages[0].content == QUESTION:
                self.turn = turn
            async for chunk in turn:
                text += chunk.text
        return text

    async def over_http(self, session: str | None, stream: bool, gone: asyncio.Event) -> None:
        """The turn as a client's request to the served engine; the client goes when ``gone`` is set."""
        from otelctx.serving import app

        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 3,
            "temperature": 0,
            "stream": stream,
        }
        if session is not None:
            body["otelctx"] = {"session": session, "mode": "append"}
        parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)

        head = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await app(self.engine, node=Node(Settings()))(head, receive, send)

    def window(self, session: str) -> tuple[Any, ...]:
        record = self.engine._store.get(session, "anonymous")
        window = record.window
        return (window.tokens().tolist(), window.head, window.tail, window.pinned, window.marks, window.version,
                record.turns, record.pending, record.input_tokens)  # fmt: skip

    def outcomes(self) -> list[tuple[str | None, str]]:
        """Session and outcome of each turn that has ended since this was last asked."""
        spans = [s for s in self.seen.spans if s.name == "chat tiny"]
        new, self._spans = spans[self._spans :], len(spans)
        return [(s.attributes.get("session.id"), s.attributes["otelctx.outcome"]) for s in new]

    def check_at_rest(self) -> None:
        engine, core = self.engine, self.engine._core
        stats = engine.stats()
        assert (stats.rows_busy, stats.leases, stats.queued, stats.active) == (0, 0, 0, 0)
        assert (engine._turns, engine._arriving, engine._store._waiters) == ({}, 0, {})
        assert core is not None
        assert (core._jobs, core._promised, engine._thread and engine._thread.broken) == ({}, 0, None)


Victim = Callable[[Scene, "str | None"], Coroutine[Any, Any, Any]]
End = Callable[[Scene, "asyncio.Task[Any]", asyncio.Event], object]


def reading(scene: Scene, session: str | None, gone: asyncio.Event) -> Coroutine[Any, Any, Any]:
    return scene.read(request(QUESTION, session, deadline=50.0))


def streaming(scene: Scene, session: str | None, gone: asyncio.Event) -> Coroutine[Any, Any, Any]:
    return scene.over_http(session, True, gone)


def in_one_piece(scene: Scene, session: str | None, gone: asyncio.Event) -> Coroutine[Any, Any, Any]:
    return scene.over_http(session, False, gone)


def cancel(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> None:
    task.cancel()


def cancel_twice(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> None:
    """The second time while the turn is being taken back."""
    loop: Any = asyncio.get_event_loop()
    task.cancel()
    loop.at += 2
    loop.action = task.cancel


def close_it(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> object:
    """From another task than the one that reads."""
    return asyncio.ensure_future(scene.turn.aclose()) if scene.turn is not None else task.cancel()


def vanish(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> None:
    gone.set()


def be_late(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> None:
    scene.now += 60.0


def lose_the_lease(scene: Scene, task: asyncio.Task[Any], gone: asyncio.Event) -> None:
    scene.now += 1_000.0  # more than a lease, less than a session lasts
    scene.engine._store.sweep()


async def one(scene: Scene, n: int, session: str | None, start: Any, end: End, expected: dict[str, str]) -> bool:
    """End the turn after ``n`` callbacks. Returns whether it was still there to be ended."""
    loop: Any = asyncio.get_running_loop()
    if session is not None:
        await scene.read(request("hello", session))
    pages, before = scene.engine.stats().pages_used, None if session is None else scene.window(session)
    scene.engine._core._rows.drop_idle()  # type: ignore[union-attr]
    scene.outcomes()
    scene.turn, scene.arrived = None, 0
    gone = asyncio.Event()
    ended: list[bool] = []
    others = [asyncio.create_task(scene.read(request("beside", None, 6)))]
    if scene.before:
        others.append(asyncio.create_task(scene.read(request("before", session, 2))))
    for _ in range(2):
        await asyncio.sleep(0)
    task = asyncio.create_task(start(scene, session, gone))

    def action() -> None:
        if not task.done():
            ended.append(True)
            end(scene, task, gone)

    loop.arm(n, action)
    with suppress(asyncio.CancelledError, OtelctxError):
        await task
    assert [await other for other in others] == [expected["beside"], expected.get("before")][: len(others)]
    await scene.come(lambda: not scene.engine._turns and not scene.engine._thread._due)  # type: ignore[union-attr]
    loop.arm(0, lambda: None)
    scene.check_at_rest()
    mine = scene.outcomes()
    assert len(mine) == scene.arrived
    for other in others:
        mine.remove((None if other is others[0] else session, "length"))
    # It may have been ended before it got as far as the engine.
    outcome = mine[0][1] if mine else "cancelled"
    await check_session(scene, session, outcome, before, pages, expected)
    return bool(ended)


async def check_session(
    scene: Scene, session: str | None, outcome: str, before: Any, pages: int, expected: dict[str, str]
) -> None:
    """Bit for bit as before, or with one turn more; and the next answer follows from that."""
    if session is None:
        assert scene.engine.stats().pages_used == pages
        return
    now, kept = scene.window(session), before[6] + scene.before
    if outcome in KEPT or (outcome == "deadline" and now[6] > kept):
        assert now[6] == kept + 1
    elif not scene.before:
        assert (now, scene.engine.stats().pages_used) == (before, pages)
        assert await scene.read(request("and now", session)) == expected["and now"]
    else:
        assert now[6] == kept
        assert await scene.read(request("and now", session)) == expected["and now, before"]
    await scene.engine.delete_session(session)


async def reference(scene: Scene) -> dict[str, str]:
    """What is answered when nobody is ended."""
    found = {"beside": await scene.read(request("beside", None, 6))}
    for session, texts in (("a", ["hello", "and now"]), ("b", ["hello", "before", "and now"])):
        for text in texts:
            answer = await scene.read(request(text, session, 2 if text == "before" else 3))
            found.setdefault(text if (session, text) != ("b", "and now") else "and now, before", answer)
        await scene.engine.delete_session(session)
    assert len(set(found.values())) > 3
    return found


@pytest.fixture
def build(
    twin: Callable[[Any], Any], chat_model: Any, chatml: Any, inline_threads: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    monkeypatch.setattr(guard, "_INLINE", 0)
    return lambda **options: TransformersEngine(twin(chat_model), chatml, name="tiny", eos_ids=(), **options)


WAYS = {
    "cancelled": (reading, cancel),
    "cancelled-twice": (reading, cancel_twice),
    "closed-from-elsewhere": (reading, close_it),
    "late": (reading, be_late),
    "overdue": (reading, lose_the_lease),
    "client-gone-stream": (streaming, vanish),
    "client-gone-whole": (in_one_piece, vanish),
}


# What the turn waits for: nothing, a row that another has, its session that another turn has; or it has none.
PLACES = {
    "free": (2, False, True),
    "no-row": (1, False, True),
    "no-session": (2, True, True),
    "stateless": (2, False, False),
    "stateless-no-row": (1, False, False),
}
# Without a lease, or with another's, there is none to lose.
LEFT_OUT = {("overdue", place) for place in ("stateless", "stateless-no-row", "no-session")}


@pytest.mark.parametrize(("way", "place"), sorted({(way, place) for way in WAYS for place in PLACES} - LEFT_OUT))
def test_a_turn_can_be_ended_at_every_step(
    build: Any,
    come: Any,
    counting_loop: Any,
    inline_threads: Any,
    otelctx_capture: Captured,
    record_property: Any,
    way: str,
    place: str,
) -> None:
    rows, before, with_session = PLACES[place]
    if way == "cancelled-twice":
        inline_threads(3)  # so that the turn is still being taken back
    start, end = WAYS[way]

    async def run() -> int:
        scene = Scene(build, otelctx_capture, come, rows=rows, before=before)
        await scene.engine.start()
        expected = await reference(scene)
        n = 1
        while await one(scene, n, f"s{n}" if with_session else None, start, end, expected):
            n += 1
        await scene.engine.close()
        return n - 1

    with asyncio.Runner(loop_factory=counting_loop) as runner:
        points = runner.run(run())
    record_property("points", points)
    assert points > 20


def test_the_engine_can_be_closed_at_every_step(
    build: Any, come: Any, counting_loop: Any, otelctx_capture: Captured, record_property: Any
) -> None:
    """Whoever waits, for a session, a row or its answer, is told; what was answered in full is kept."""

    async def closed_after(n: int) -> bool:
        scene = Scene(build, otelctx_capture, come, rows=1, before=True)
        await scene.engine.start()
        await scene.read(request("hello", "s"))
        before = scene.window("s")
        asked = [request("beside", None, 4), request("before", "s", 2), request(QUESTION, "s")]
        tasks = [asyncio.create_task(scene.read(one)) for one in asked]
        closing: list[asyncio.Task[None]] = []
        loop: Any = asyncio.get_running_loop()

        async def close() -> None:
            await scene.engine.close()
            scene.check_at_rest()

        loop.arm(n, lambda: closing.append(asyncio.ensure_future(close())))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        loop.arm(0, lambda: None)
        assert {type(answer) for answer in found} <= {str, Overloaded}
        await (closing[0] if closing else scene.engine.close())
        scene.check_at_rest()
        assert scene.window("s")[6] == before[6] + sum(isinstance(answer, str) for answer in found[1:])
        return bool(closing)

    async def run() -> int:
        n = 1
        while await closed_after(n):
            n += 1
        return n - 1

    with asyncio.Runner(loop_factory=counting_loop) as runner:
        points = runner.run(run())
    record_property("points", points)
    assert points > 50
    ended = otelctx_capture.metrics("otelctx.requests")
    assert {point.attributes["otelctx.outcome"] for point in ended} == {"shed", "length"}
    assert sum(point.value for point in ended) == 4 * (points + 1)
