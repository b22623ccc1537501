"""Engines around a tiny model, and the model's own forward to judge them by."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from otelctx.inference.engines import transformers
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.sampling import Params
from otelctx.inference.thread import EngineThread, Worker
from otelctx.inference.turn import TurnResult

GREEDY = Params(temperature=0)
MARGIN = 1e-3


@pytest.fixture(scope="session")
def chat_model(make_model: Callable[[Any], Any], small: dict[str, Any], chatml: Any) -> Any:
    return make_model(LlamaConfig(**(small | {"vocab_size": len(chatml), "max_position_embeddings": 2048})))


@dataclass
class Judge:
    """The equality rule: each token is the reference's best, or its two best are closer than 1e-3."""

    model: Any
    tokens: set[int] = field(default_factory=set)

    @torch.inference_mode()
    def check(self, ids: Sequence[int], answer: int) -> None:
        """The last ``answer`` of ``ids`` were chosen greedily, each after all that stand before it."""
        assert 0 < answer < len(ids)
        logits = self.model(input_ids=torch.tensor([list(ids[:-1])]), use_cache=False).logits[0][-answer:]
        for line, token in zip(logits, ids[-answer:], strict=True):
            best = line.topk(2)
            assert token == int(best.indices[0]) or (
                token == int(best.indices[1]) and float(best.values[0] - best.values[1]) < MARGIN
            )
        self.tokens.update(ids[-answer:])


@pytest.fixture
def judge_of() -> Callable[[Any], Judge]:
    return Judge


@pytest.fixture
def judge(twin: Callable[[Any], Any], chat_model: Any) -> Judge:
    return Judge(twin(chat_model))


Make = Callable[..., TransformersEngine]


@pytest.fixture
async def make_engine(twin: Callable[[Any], Any], chat_model: Any, chatml: Any) -> AsyncIterator[Make]:
    """``(**options) → engine``. At the end of the test each must be at its baseline, and close."""
    engines: list[TransformersEngine] = []

    def make(**options: Any) -> TransformersEngine:
        options = {"window": 512, "rows": 4, "name": "tiny", "eos_ids": ()} | options
        model, tokenizer = options.pop("model", chat_model), options.pop("tokenizer", chatml)
        engines.append(TransformersEngine(twin(model), tokenizer, **options))
        return engines[-1]

    yield make
    for engine in engines:
        stats = engine.stats()
        assert (stats.rows_busy, stats.leases, stats.queued, stats.active) == (0, 0, 0, 0)
        await engine.close()


@dataclass
class Answer:
    text: str
    result: TurnResult
    pieces: int


@pytest.fixture
def ask() -> Callable[..., Any]:
    """``await ask(engine, text, **options) → Answer``, greedy."""

    async def run(engine: TransformersEngine, text: str, **options: Any) -> Answer:
        parts, result = [], None
        options = {"params": GREEDY, "max_tokens": 20} | options
        async for chunk in engine.chat([{"role": "user", "content": text}], **options):
            assert result is None
            parts.append(chunk.text)
            result = chunk.result
        assert result is not None
        return Answer("".join(parts), result, len(parts))

    return run


@pytest.fixture
def window_of() -> Callable[..., list[int]]:
    """``(engine, session) → token ids`` of the session's window."""

    def read(engine: TransformersEngine, session: str, owner: str = "anonymous") -> list[int]:
        tokens = engine._store.get(session, owner).window.tokens()
        assert tokens.dtype == np.int32
        return [int(token) for token in tokens]

    return read


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about in 30 s")


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


class Gate:
    """Lets the engine's thread make one step at a time."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._step = engine._runner.step
        self._permits = threading.Semaphore(0)
        self._open = self._waiting = False
        self.steps: list[list[tuple[int, int]]] = []  # per step: (row, tokens fed)
        engine._runner.step = self  # type: ignore[assignment,method-assign]

    def __call__(self, work: Any) -> Any:
        if not self._open:
            self._waiting = True
            assert self._permits.acquire(timeout=60)
            self._waiting = False
        result = self._step(work)
        self.steps.append([(row, len(ids)) for row, ids in work])
        return result

    async def allow(self, steps: int) -> None:
        """Let ``steps`` more steps happen, and wait until the thread stands before the next."""
        target = len(self.steps) + steps
        self._permits.release(steps)
        await until(lambda: len(self.steps) >= target and self._waiting)

    def open(self) -> None:
        """From now on steps happen as they come."""
        self._open = True
        self._permits.release(1)


@pytest.fixture
def make_gate() -> Callable[[TransformersEngine], Gate]:
    return Gate


class Script:
    """A sampler that says what it is told to, to everybody; after that, the last of it again and again."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._at: dict[int, tuple[Any, int]] = {}  # by identity; the row itself, so that no other has its number

    def sample(self, logits: Any, rows: Sequence[Any]) -> list[int]:
        said = []
        for row in rows:
            at = self._at.get(id(row), (row, 0))[1]
            self._at[id(row)] = (row, at + 1)
            said.append(self._ids[min(at, len(self._ids) - 1)])
        return said


@pytest.fixture
async def make_speaker(make_engine: Make, chatml: Any) -> Callable[..., Any]:
    """``await make_speaker(ids or text, **options) → engine`` whose every answer is that."""

    async def make(says: str | Sequence[int], **options: Any) -> TransformersEngine:
        engine = make_engine(**options)
        await engine.start()
        assert engine._core is not None
        ids = chatml.encode(says, add_special_tokens=False) if isinstance(says, str) else says
        engine._core._sampler = Script(ids)  # type: ignore[assignment]
        return engine

    return make


class Loop(asyncio.SelectorEventLoop):
    """Does ``action`` after the ``at``-th callback since :meth:`arm`."""

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(Inline(self))
        self.steps = 0
        self.at = 0
        self.action: Callable[[], object] = lambda: None

    def arm(self, at: int, action: Callable[[], object]) -> None:
        self.steps, self.at, self.action = 0, at, action

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._counted, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(self._counted, callback, *args, context=context)

    def _counted(self, callback: Any, *args: Any) -> None:
        callback(*args)
        self.steps += 1
        if self.steps == self.at:
            self.action()


class Inline(ThreadPoolExecutor):
    """What it is given runs as a callback of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(1)
        self._loop = loop

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(call(*args, **kwargs))

        self._loop.call_soon(run)
        return future


async def come(true: Callable[[], bool]) -> None:
    """Let the loop go on until it is so."""
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come about")


class InlineThread(EngineThread):
    """Each command and each step of the engine is a callback; ``delay`` callbacks pass before it."""

    delay = 0
    _alive = False

    @property
    def alive(self) -> bool:
        return self._alive

    def start(self, worker: Worker) -> None:
        self._worker, self._alive, self._due = worker, True, False

    def command(self, call: Callable[[], None]) -> None:
        super().command(call)
        self._again()

    async def stop(self) -> None:
        await come(lambda: not self._due)
        self._alive = False

    def _again(self) -> None:
        if not self._due:
            self._due = True
            self.loop.call_soon(self._next, self.delay)

    def _next(self, delay: int) -> None:
        if delay:
            self.loop.call_soon(self._next, delay - 1)
            return
        self._due = False
        with torch.inference_mode():
            self._guarded(self._running().step if self._commands.empty() else self._commands.get())  # type: ignore[arg-type]
        self._flush()
        if not self._commands.empty() or not self._running().idle:
            self._again()


@pytest.fixture
def counting_loop() -> type[Loop]:
    """An event loop that does something between any two of its callbacks: ``loop.arm(after, action)``."""
    return Loop


@pytest.fixture(name="come")
def come_fixture() -> Callable[..., Any]:
    return come


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The engine's thread is made of callbacks of its event loop. Call it to make that thread slow."""
    monkeypatch.setattr(transformers, "EngineThread", InlineThread)
    return lambda delay: monkeypatch.setattr(InlineThread, "delay", delay)
