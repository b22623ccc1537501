"""``python -m benchmarks.fuzz``: a million inputs against the receiver's checks, guided by coverage.

With atheris (``pip install 'otelctx[fuzz]'``) libFuzzer chooses the bytes from which the makers draw, and keeps those
that reach new code. Without it the same makers draw from a seeded generator. Prints one line of JSON: how many inputs
ended at each check. A failure is an exception out of the receiver. ``--seconds`` ends it earlier, with what it has by
then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final

__all__: list[str] = []

# What coverage is measured of: the receiver and what it calls. Measuring the generator would cost ten times the time.
_FRAMES: Final = "benchmarks.fuzz.frames"
_MEASURED: Final = ["otelctx.delta", "otelctx.context"]


class Drawn(random.Random):
    """A generator whose choices are the bytes of an input, so that a fuzzer that changes a byte changes a choice."""

    def __new__(cls, data: bytes) -> Drawn:
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data
        self._at = 0

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        piece = self._data[self._at : self._at + size]
        self._at += size
        if not piece:  # used up: anything will do, as long as it ends
            return super().getrandbits(k)
        return int.from_bytes(piece, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / 65536


class Session:
    """Counts what becomes of the inputs of one run, which is ``over`` after so many inputs or seconds. ``frames`` is
    the module of that name, imported when that has been prepared for."""

    def __init__(self, frames: Any, limit: int, seconds: float) -> None:
        self._frames = frames
        self._limit = limit
        self._until = monotonic() + seconds
        self._names = tuple(frames.MAKERS)
        self.ended: Counter[str] = Counter()
        self.runs = 0
        self._target = self._frames.Target()

    @property
    def over(self) -> bool:
        return self.runs >= self._limit or monotonic() >= self._until

    def one(self, rng: random.Random) -> None:
        self.runs += 1
        if self.runs % 1000 == 0:  # states that were accepted on the way would make bases known
            self._target = self._frames.Target()
        lines = self._frames.MAKERS[self._names[rng.randrange(len(self._names))]](rng)
        outcome = self._target.open(lines)
        self.ended[self._target.check(lines, outcome)] += 1

    def report(self, engine: str) -> str:
        reached: dict[str, int] = {}
        left = self.runs
        for check in self._frames.CHECKS:
            reached[check] = left
            left -= self.ended[check]
        found = {"engine": engine, "runs": self.runs, "reached": reached, "ended": dict(self.ended)}
        return json.dumps(found | {"ok": min(reached.values()) >= 10_000})


def _seeded(session: Session, seed: int) -> None:
    rng = random.Random(seed)
    while not session.over:
        session.one(rng)


def _guided(runs: int, seconds: float, seed: int) -> None:
    import atheris

    with atheris.instrument_imports(include=_MEASURED):
        session = Session(import_module(_FRAMES), runs, seconds)

    def one(data: bytes) -> None:
        session.one(Drawn(data))
        if session.over:  # libFuzzer ends the process itself, before anything behind Fuzz() could print
            print(session.report("atheris"), flush=True)
            os._exit(0)

    options = [sys.argv[0], f"-runs={runs}", f"-seed={seed}", "-max_len=4096", "-verbosity=0"]
    atheris.Setup(options, one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["atheris", "seeded"], default=None, help="default: atheris if there")
    chosen = parser.parse_args()
    engine = chosen.engine or ("atheris" if find_spec("atheris") else "seeded")
    if engine == "atheris":
        _guided(chosen.runs, chosen.seconds, chosen.seed)
        return
    session = Session(import_module(_FRAMES), chosen.runs, chosen.seconds)
    _seeded(session, chosen.seed)
    print(session.report(engine))


if __name__ == "__main__":
    main()
