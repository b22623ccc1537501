"""Who asks, and for what: conversations and single questions, each by a random generator of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import otelctx
from scripts.soak.asking import Asking, Body
from scripts.soak.ledger import Ledger

__all__ = ["Actor"]

PRIORITY: Final = otelctx.ContextKey("request.priority", int)
_WORDS: Final = (
    "the", "of", "and", "people", "water", "time", "light", "house", "river", "green", "seven", "open", "letter", "how",
    "Straße", "naïve", "水", "été", "question", "many", "where", "story", "child", "night", "about", "would", "there",
    "first", "made", "year", "work", "answer", "music", "number", "42", "train", "glass", "paper",
)  # fmt: skip
_TOO_LONG: Final = 3000  # words
_MUCH: Final = 60
_FILLING: Final = 12  # turns of five spans each: with fifty sessions half as many again as the exporter's queue takes
_BAD: Final[tuple[bytes, ...]] = (
    b"",
    b"{",
    b"[]",
    b'{"model": "soak"}',
    b'{"model": "soak", "messages": []}',
    b'{"model": "soak", "messages": [{"role": "king", "content": "x"}]}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"model": "soak", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b"\xff\xfe",
    b"[" * 100_000,
)
# How often, of the sum.
_WEIGHTS: Final[Mapping[str, int]] = {
    "whole": 28, "stream": 28, "slow": 3, "cancel": 9, "reset": 7, "too_long": 3, "bad": 3, "deadline": 5,
    "priority": 6, "at_once": 2, "delete": 9, "slide": 4,
}  # fmt: skip
_OF_SESSIONS: Final = ("delete", "at_once")


class Actor:
    """One conversation, or, without a ``session``, questions that have nothing to do with each other."""

    def __init__(self, session: str | None, asking: Asking, ledger: Ledger, number: int, seed: int) -> None:
        """``number`` is nobody else's."""
        self._session = session
        self._asking = asking
        self._ledger = ledger
        self._random = random.Random(f"{seed}/{number}")
        self._kinds = [kind for kind in _WEIGHTS if session is not None or kind not in _OF_SESSIONS]
        self._weights = [_WEIGHTS[kind] for kind in self._kinds]
        self._acts: Mapping[str, Callable[[], Awaitable[None]]] = {
            kind: getattr(self, f"_{kind}") for kind in self._kinds
        }

        # A dozen of them begin with a kind each, so that in a short run too none is missing.
        self._first = self._kinds[number % len(self._kinds)]

    async def run(self, stop: asyncio.Event) -> None:
        kind = self._first
        while not stop.is_set():
            if self._session is None:
                await self._acts[kind]()
            else:
                with otelctx.session(self._session):
                    await self._acts[kind]()
            (kind,) = self._random.choices(self._kinds, self._weights)

    async def fill(self) -> None:
        """Have the worker hold what it ever will: telemetry that can't leave, more than its queues take; a window that
        is full; or, without a session, texts so long that they are tokenised in threads."""
        for _ in range(_FILLING):
            if self._session is None:
                await self._too_long()
                continue
            body = self._body(2) | {"messages": [{"role": "user", "content": self._text(_MUCH)}]}
            with otelctx.session(self._session):
                await self._asking.whole(self._ledger.open("fill", self._session), body)

    # one act each

    async def _whole(self) -> None:
        await self._asking.whole(self._ledger.open("whole", self._session), self._body())

    async def _stream(self) -> None:
        await self._asking.stream(self._ledger.open("stream", self._session), self._body())

    async def _slow(self) -> None:
        pause = self._random.uniform(0.05, 0.5)
        await self._asking.stream(self._ledger.open("slow", self._session), self._body(), pause)

    async def _cancel(self) -> None:
        asked = self._ledger.open("cancel", self._session)
        call = self._random.choice((self._asking.whole, self._asking.stream))(asked, self._body(200))
        # Anything from before the request has left to the middle of the answer.
        await self._asking.cancelled(asked, call, self._random.expovariate(4))

    async def _reset(self) -> None:
        asked = self._ledger.open("reset", self._session)
        await self._asking.reset(asked, self._body(200), self._random.randrange(4))

    async def _too_long(self) -> None:
        body = self._body() | {"messages": [{"role": "user", "content": self._text(_TOO_LONG)}]}
        await self._asking.whole(self._ledger.open("too_long", self._session), body)

    async def _bad(self) -> None:
        await self._asking.raw(self._ledger.open("bad", self._session), self._random.choice(_BAD))

    async def _deadline(self) -> None:
        body = self._body(300)
        options = body["extra_body"].get("otelctx", {}) | {"timeout": round(self._random.uniform(0.05, 5), 3)}
        body["extra_body"] = {"otelctx": options}
        ask = self._random.choice((self._asking.whole, self._asking.stream))
        await ask(self._ledger.open("deadline", self._session), body)

    async def _slide(self) -> None:
        """The window may move while the answer is made."""
        body = self._body(64)
        body["extra_body"] = {"otelctx": body["extra_body"].get("otelctx", {}) | {"when_full": "slide"}}
        await self._asking.stream(self._ledger.open("slide", self._session), body)

    async def _priority(self) -> None:
        with PRIORITY.bound(self._random.choice((-1, 1, 5))):
            await self._asking.stream(self._ledger.open("priority", self._session), self._body())

    async def _at_once(self) -> None:
        """Two turns of the same session: the second waits for the first."""
        await asyncio.gather(self._whole(), self._stream())

    async def _delete(self) -> None:
        if self._session is not None:
            await self._asking.delete(self._session)

    # what is said

    def _body(self, most: int = 24) -> Body:
        body: Body = {
            "messages": [{"role": "user", "content": self._text(self._random.randint(2, 40))}],
            "max_tokens": self._random.randint(2, most),
            "extra_body": {},
        }
        if self._session is not None:
            body["temperature"] = 0
            body["extra_body"]["otelctx"] = {"session": self._session, "mode": "append"}
        else:
            body["temperature"] = self._random.choice((0, 0.7, 1.2))
            body["top_p"] = self._random.choice((1, 0.9))
        if self._random.random() < 0.2:
            body["stop"] = [self._random.choice(("a", "e ", "\n", "st"))]
        return body

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))
