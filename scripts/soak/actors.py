"""Who asks, and for what: conversations and single questions, each by a random generator of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import otelctx
from scripts.soak.asking import MODEL, Asking, Body
from scripts.soak.ledger import UNPARSED, Ledger, outcome_of_answer

__all__ = ["Actor", "takes_deadlines"]

PRIORITY: Final = otelctx.ContextKey("request.priority", int)
_WORDS: Final = (
    "the", "of", "and", "people", "water", "time", "light", "house", "river", "green", "seven", "open", "letter", "how",
    "Straße", "naïve", "水", "été", "question", "many", "where", "story", "child", "night", "about", "would", "there",
    "first", "made", "year", "work", "answer", "music", "number", "42", "train", "glass", "paper",
)  # fmt: skip
_TOO_LONG: Final = 3000  # words
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
    "priority": 6, "at_once": 2, "delete": 9,
}  # fmt: skip


class Actor:
    """One conversation, or, without a ``session``, questions that have nothing to do with each other."""

    def __init__(self, session: str | None, asking: Asking, ledger: Ledger, seed: str, *, deadlines: bool) -> None:
        """``seed``: what nobody else has. ``deadlines``: whether the server takes a deadline in the body."""
        self._session = session
        self._asking = asking
        self._ledger = ledger
        self._random = random.Random(seed)
        kinds = [kind for kind in _WEIGHTS if deadlines or kind != "deadline"]
        self._kinds = [kind for kind in kinds if session is not None or kind not in ("delete", "at_once")]
        self._weights = [_WEIGHTS[kind] for kind in self._kinds]
        self._acts: Mapping[str, Callable[[], Awaitable[None]]] = {
            kind: getattr(self, f"_{kind}") for kind in self._kinds
        }

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            (kind,) = self._random.choices(self._kinds, self._weights)
            if self._session is None:
                await self._acts[kind]()
            else:
                with otelctx.session(self._session):
                    await self._acts[kind]()

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
        options = body["extra_body"].get("otelctx", {}) | {"deadline": round(self._random.uniform(0.05, 1.5), 3)}
        body["extra_body"] = {"otelctx": options}
        ask = self._random.choice((self._asking.whole, self._asking.stream))
        await ask(self._ledger.open("deadline", self._session), body)

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


async def takes_deadlines(asking: Asking, ledger: Ledger) -> bool:
    """Whether the server knows ``otelctx.deadline``."""
    asked = ledger.open("probe", "probe")
    options = {"session": "probe", "mode": "append", "deadline": 30.0}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "otelctx": options}
    answer = await asking.control.post("/v1/chat/completions", json=body)
    known = answer.status_code == 200
    ledger.close(asked, outcome_of_answer(answer.json()["otelctx"]["limit"]) if known else UNPARSED)
    if known:
        await asking.delete("probe")
    return known
