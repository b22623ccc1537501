"""What the worker's engine was asked for and what it drew, one JSON line each, to be done again undisturbed.

Lines are ``{"reached": id}`` for each request that came as far as the engine's guard, and one with ``"session"`` for
each turn of a session whose last chunk was taken. A file, and no list: the worker's memory is under test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

__all__ = ["REQUEST", "SKETCH", "Draws", "Recorder", "sampled_by"]

REQUEST: Final[ContextVar[str]] = ContextVar("soak.request", default="")
"""The id that the client gave to the request that this task serves."""

SKETCH: Final = 6
"""How many logits of each line are kept: the largest, and those of five tokens spread over the vocabulary."""

_FIELDS: Final = ("stop", "when_full", "owner")


class Draws:
    """What was drawn for one turn: token ids, and a sketch of the logits each was drawn from."""

    def __init__(self) -> None:
        self.max_tokens: int | None = None  # as it was served: pressure may have lowered it
        self.tokens: list[int] = []
        self.sketches: list[list[float]] = []


class Recorder:
    """Around ``engine.admit`` and its sampler."""

    def __init__(self, engine: Any, path: Path) -> None:
        self._file = path.open("w", buffering=1 << 16)
        self._admit = engine.admit
        self._draws: dict[int, Draws] = {}
        self.reached = 0
        engine.admit = self.admit
        _when_started(engine, self._started)

    async def admit(self, request: Any) -> Recorded:
        self.reached += 1
        self._write({"reached": REQUEST.get()})
        # Parameters of its own: by them the sampler's rows are told apart.
        request = replace(request, params=replace(request.params))
        key = id(request.params)
        if request.session is not None:
            self._draws[key] = Draws()
        try:
            admitted = await self._admit(request)
        except BaseException:
            self._draws.pop(key, None)
            raise
        number = REQUEST.get()
        return Recorded(
            admitted,
            taken=lambda result, text: self._taken(number, request, result, text),
            over=lambda: self._draws.pop(key, None),
        )

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The end: nothing may be asked for any more."""
        self._file.close()

    def _started(self, engine: Any) -> None:
        engine._core._sampler = sampled_by(engine._core._sampler, self._note)
        prompted = engine._ladder.prompted

        def served(request: Any, *rest: Any) -> Any:
            request = prompted(request, *rest)
            draws = self._draws.get(id(request.params))
            if draws is not None:
                draws.max_tokens = request.max_tokens
            return request

        engine._ladder.prompted = served

    def _note(self, params: Any, token: int, sketch: list[float]) -> None:
        draws = self._draws.get(id(params))
        if draws is not None:
            draws.tokens.append(token)
            draws.sketches.append(sketch)

    def _taken(self, number: str, request: Any, result: Any, text: str) -> None:
        draws = self._draws.get(id(request.params))
        if draws is None:
            return
        asked = {name: getattr(request, name) for name in _FIELDS} | {"max_tokens": draws.max_tokens}
        self._write(
            {
                "session": request.session,
                "id": number,
                "messages": [asdict(message) for message in request.messages],
                "asked": asked,
                "generation": result.window.generation,
                "version": result.window.version,
                "prompt_tokens": result.usage.prompt_tokens,
                "text": text,
                "tokens": draws.tokens,
                "sketches": [[round(value, 6) for value in sketch] for sketch in draws.sketches],
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


class Recorded:
    """An admitted turn that says when its last chunk is taken and when it is over."""

    def __init__(self, inner: Any, *, taken: Callable[[Any, str], None], over: Callable[[], object]) -> None:
        self._inner = inner
        self._taken = taken
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def chunks(self) -> AsyncGenerator[Any, None]:
        parts: list[str] = []
        async with aclosing(self._inner.chunks()) as chunks:
            async for chunk in chunks:
                parts.append(chunk.text)
                if chunk.result is not None:
                    self._taken(chunk.result, "".join(parts))
                yield chunk

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._over()


class _Sampling:
    """A sampler that tells what it drew."""

    def __init__(self, inner: Any, note: Callable[[Any, int, list[float]], None]) -> None:
        self._inner = inner
        self._note = note

    def sample(self, logits: Any, rows: Sequence[Any]) -> list[int]:
        last = logits.shape[-1] - 1
        places = [last * part // (SKETCH - 1) for part in range(SKETCH - 1)]
        best = logits.max(-1).values.tolist()
        spread = logits[:, places].tolist()
        drawn: list[int] = self._inner.sample(logits, rows)
        for row, token, top, some in zip(rows, drawn, best, spread, strict=True):
            self._note(row.params, token, [top, *some])
        return drawn


def sampled_by(inner: Any, note: Callable[[Any, int, list[float]], None]) -> Any:
    """``inner`` as a sampler that calls ``note(params, token, sketch)`` for each token, on the engine's thread."""
    return _Sampling(inner, note)


def _when_started(engine: Any, call: Callable[[Any], None]) -> None:
    start = engine.start
    done = False

    async def started() -> None:
        nonlocal done
        await start()
        if not done:
            done = True
            call(engine)

    engine.start = started
