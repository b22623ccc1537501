"""What a worker recorded, done again: the same if nothing disturbed it, and told apart if something did."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import Loaded
from otelctx.inference.reserved import Reserved
from otelctx.inference.sampling import Params
from otelctx.inference.turn import Message, TurnRequest
from scripts.soak.recorder import Recorder
from scripts.soak.replay import Verdict, conversations, replay

WINDOW, ROWS, SESSIONS, TURNS = 256, 2, 3, 8
Windows = dict[str, list[int] | None]
Recorded = tuple[list[dict[str, Any]], Windows]


async def _say(engine: TransformersEngine, session: str) -> None:
    rng = random.Random(session)
    for _ in range(TURNS):
        request = TurnRequest(
            messages=(Message("user", "".join(rng.choices("abcdef ", k=rng.randint(5, 40)))),),
            session=session,
            max_tokens=rng.randint(2, 100),
            params=Params(temperature=0),
        )
        async with aclosing(await engine.admit(request)) as turn, aclosing(turn.chunks()) as chunks:
            async for _ in chunks:
                pass


async def _record(loaded: Loaded, path: Path) -> Windows:
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=WINDOW, rows=ROWS, eos_ids=loaded.eos_ids)
    recorder = Recorder(engine, path)
    await engine.start()
    names = [f"s{number}" for number in range(SESSIONS)]
    await asyncio.gather(*(_say(engine, name) for name in names))
    windows: Windows = {name: engine._store.get(name, "anonymous").window.tokens().tolist() for name in names}
    await engine.close()
    recorder.close()
    return windows


@pytest.fixture(scope="session")
def recorded(make_loaded: Callable[[], Loaded], tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Conversations that have become longer than their window, with answers of up to more than a quarter of it."""
    path = tmp_path_factory.mktemp("record") / "turns.jsonl"
    windows = asyncio.run(_record(make_loaded(), path))
    return [json.loads(line) for line in path.read_text().splitlines()], windows


def judged(recorded: Recorded, loaded: Loaded, **options: Any) -> Verdict:
    found = conversations(*recorded)
    return asyncio.run(replay(found, loaded, window=WINDOW, rows=ROWS, seconds=0.0, **options))


def test_conversations_that_nothing_disturbed_are_the_same_again(
    recorded: Recorded, make_loaded: Callable[[], Loaded]
) -> None:
    verdict = judged(recorded, make_loaded())
    assert verdict.unlike == []
    assert (verdict.windows, verdict.turns, verdict.skipped) == (SESSIONS, SESSIONS * TURNS, 0)
    assert len(verdict.distinct) > 20


def test_a_replay_is_under_no_pressure_of_its_own(
    recorded: Recorded, make_loaded: Callable[[], Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With full rows on a slow machine, its engine would cap what a turn may say, drop less of the conversation for it,
    and blame the worker for the difference."""
    monkeypatch.setattr(Reserved, "share", lambda self: 1.0)
    ticks = itertools.count()
    verdict = judged(recorded, make_loaded(), clock=lambda: next(ticks) * 11.0)
    assert verdict.unlike == []
    assert verdict.windows == SESSIONS


@pytest.mark.parametrize(("seconds", "skipped"), [(5.0, 0), (-1.0, 1)])
def test_deleted_conversations_have_a_time_of_their_own_after_the_others(
    recorded: Recorded, make_loaded: Callable[[], Loaded], seconds: float, skipped: int
) -> None:
    """However long the live ones have taken: here far longer."""
    record, windows = recorded
    ticks = itertools.count()
    verdict = asyncio.run(
        replay(
            conversations(record, windows | {"s1": None}), make_loaded(), window=WINDOW, rows=ROWS, seconds=seconds,
            clock=lambda: next(ticks) * 1.0,
        )
    )  # fmt: skip
    assert next(ticks) > 50
    assert (verdict.unlike, verdict.skipped, verdict.windows) == ([], skipped, SESSIONS - 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("token", lambda turn: turn["tokens"].__setitem__(0, (turn["tokens"][0] + 1) % 256)),
        ("logit", lambda turn: turn["sketches"][0].__setitem__(2, turn["sketches"][0][2] + 0.01)),
        ("prompt_tokens", lambda turn: turn.update(prompt_tokens=turn["prompt_tokens"] - 1)),
        ("text", lambda turn: turn.update(text=turn["text"] + "x")),
        ("version", lambda turn: turn.update(version=turn["version"] + 1)),
    ],
)
def test_a_difference_in_one_turn_is_found(
    recorded: Recorded, make_loaded: Callable[[], Loaded], name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    record, windows = json.loads(json.dumps(recorded))
    turns = [line for line in record if line.get("session") == "s1"]
    change(turns[TURNS // 2])
    unlike = judged((record, windows), make_loaded()).unlike
    assert any(what.startswith("s1, ") and name in what for what in unlike)
    assert not any(what.startswith(("s0", "s2")) for what in unlike)


def test_a_window_that_holds_other_tokens_is_found(recorded: Recorded, make_loaded: Callable[[], Loaded]) -> None:
    record, windows = recorded
    other = windows | {"s2": [*(windows["s2"] or [])[:-1], 7]}
    assert judged((record, other), make_loaded()).unlike == ["s2: the window holds other tokens"]
