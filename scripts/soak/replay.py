"""Conversations once more, in an engine of their own with nobody disturbing them.

Each turn that its session kept is asked for again, and each of its tokens is given, not chosen (teacher-forced). Then
the logits must be those that the worker drew from, to 1e-3, and the token the best one, unless the two best are closer
than that; and the window must hold the same ids at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import Loaded
from otelctx.inference.pressure import Limits
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from scripts.soak.recorder import sampled_by

__all__ = ["Conversation", "Verdict", "conversations", "replay"]

TOLERANCE: Final = 1e-3
_SHOWN: Final = 5

# What the worker's pressure made of a turn is in its record. The replay's own rows are as full, and slow on a busy
# machine: pressure of its own would give a turn less output, and so drop less of its conversation.
_CALM: Final = Limits(period=1e9)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns that one generation of a session kept. ``window``: what it held at the end, ``None`` if it was gone."""

    session: str
    turns: tuple[dict[str, Any], ...]
    window: tuple[int, ...] | None


@dataclass(slots=True)
class Verdict:
    """``largest``: the greatest difference of a logit that was seen; ``unlike``: what broke the rule, in words."""

    conversations: int = 0
    windows: int = 0
    turns: int = 0
    tokens: int = 0
    distinct: set[int] = field(default_factory=set)
    ties: int = 0
    largest: float = 0.0
    skipped: int = 0
    unlike: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        if len(self.unlike) < _SHOWN:
            self.unlike.append(what)


def conversations(record: Iterable[dict[str, Any]], windows: dict[str, list[int] | None]) -> list[Conversation]:
    """From the worker's record; those whose sessions were alive at the end come first."""
    turns: dict[tuple[str, int], list[dict[str, Any]]] = {}
    newest: dict[str, int] = {}
    for turn in record:
        if "session" in turn:
            turns.setdefault((turn["session"], turn["generation"]), []).append(turn)
            newest[turn["session"]] = turn["generation"]
    found = []
    for (session, generation), kept in turns.items():
        window = windows.get(session) if newest[session] == generation else None
        found.append(Conversation(session, tuple(kept), None if window is None else tuple(window)))
    return sorted(found, key=lambda conversation: conversation.window is None)


class _Told:
    """A sampler that says what it is told to, and looks at what it would have said."""

    def __init__(self, verdict: Verdict, eos: int) -> None:
        self._verdict = verdict
        self._eos = eos
        self._turns: dict[int, tuple[str, dict[str, Any], int]] = {}

    def tell(self, params: Params, name: str, turn: dict[str, Any]) -> None:
        self._turns[id(params)] = (name, turn, 0)

    def forget(self, params: Params) -> int:
        """How many tokens it has said."""
        return self._turns.pop(id(params))[2]

    def sample(self, logits: Any, rows: Sequence[Any]) -> list[int]:
        best = logits.topk(2)
        drawn = []
        for line, row in enumerate(rows):
            name, turn, at = self._turns[id(row.params)]
            self._turns[id(row.params)] = (name, turn, at + 1)
            if at >= len(turn["tokens"]):
                drawn.append(self._eos)  # the worker ended here: over a deadline, say
                continue
            token = turn["tokens"][at]
            drawn.append(token)
            self._judge(f"{name}, token {at}", token, best.indices[line].tolist(), best.values[line].tolist())
        return drawn

    def _judge(self, where: str, token: int, best: list[int], values: list[float]) -> None:
        self._verdict.tokens += 1
        self._verdict.distinct.add(token)
        if token == best[0]:
            return
        if token == best[1] and values[0] - values[1] < TOLERANCE:
            self._verdict.ties += 1
        else:
            self._verdict.wrong(f"{where}: {token} instead of {best[0]}, which leads by {values[0] - values[1]:.4f}")

    def compare(self, params: Params, sketch: list[float]) -> None:
        name, turn, at = self._turns[id(params)]
        if at > len(turn["sketches"]):
            return
        difference = max(abs(a - b) for a, b in zip(sketch, turn["sketches"][at - 1], strict=True))
        self._verdict.largest = max(self._verdict.largest, difference)
        if not difference <= TOLERANCE:
            self._verdict.wrong(f"{name}, token {at - 1}: a logit differs by {difference:.5f}")


async def replay(
    found: Sequence[Conversation],
    loaded: Loaded,
    *,
    window: int,
    rows: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Judge ``found`` in its order. Those of live sessions are all judged, and then others for ``seconds``."""
    verdict = Verdict()
    engine = TransformersEngine(
        loaded.model,
        loaded.tokenizer,
        window=window,
        rows=rows,
        eos_ids=loaded.eos_ids,
        when_full="turns",
        pressure=_CALM,
        clock=clock,
    )
    await engine.start()
    told = _Told(verdict, loaded.eos_ids[0])
    vars(engine._core)["_sampler"] = sampled_by(told, lambda params, token, sketch: told.compare(params, sketch))
    until: float | None = None
    waiting = list(enumerate(found))[::-1]

    async def work() -> None:
        nonlocal until
        while waiting:
            number, conversation = waiting.pop()
            if conversation.window is None and until is None:
                until = clock() + seconds
            if conversation.window is None and until is not None and clock() > until:
                verdict.skipped += 1
            else:
                await _conversation(engine, told, verdict, number, conversation)

    try:
        await asyncio.gather(*(work() for _ in range(rows)))
    finally:
        await engine.close()
    return verdict


async def _conversation(engine: Any, told: _Told, verdict: Verdict, number: int, conversation: Conversation) -> None:
    verdict.conversations += 1
    session, owner = f"{conversation.session}/{number}", ""
    for turn in conversation.turns:
        owner = turn["asked"]["owner"]
        name = f"{conversation.session}, version {turn['version']}"
        if not await _turn(engine, told, verdict, session, name, turn):
            break  # what follows would be compared with another history
    else:
        if conversation.window is not None:
            verdict.windows += 1
            if tuple(int(t) for t in engine._store.get(session, owner).window.tokens()) != conversation.window:
                verdict.wrong(f"{conversation.session}: the window holds other tokens")
    await engine.delete_session(session, owner)


async def _turn(engine: Any, told: _Told, verdict: Verdict, session: str, name: str, turn: dict[str, Any]) -> bool:
    params = Params(temperature=0)
    asked = turn["asked"] | {"stop": tuple(turn["asked"]["stop"])}
    messages = tuple(Message(**message) for message in turn["messages"])
    request = TurnRequest(messages=messages, session=session, params=params, **asked)
    told.tell(params, name, turn)
    parts, result = [], None
    async with aclosing(await engine.admit(request)) as chunks:
        async for chunk in chunks:
            parts.append(chunk.text)
            result = chunk.result
    said = told.forget(params)
    verdict.turns += 1
    for what, now, before in (
        ("version", result.window.version, turn["version"]),
        ("prompt_tokens", result.usage.prompt_tokens, turn["prompt_tokens"]),
        ("text", "".join(parts), turn["text"]),
    ):
        if now != before:
            verdict.wrong(f"{name}: {what} {now!r} instead of {before!r}")
            return False
    if said < len(turn["tokens"]):
        verdict.wrong(f"{name}: ended after {said} of {len(turn['tokens'])} tokens")
        return False
    return True
