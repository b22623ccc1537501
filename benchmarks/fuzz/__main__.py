"""``python -m benchmarks.fuzz``: a million inputs against the receiver's checks, guided by coverage.

With atheris (``pip install 'otelctx[fuzz]'``) libFuzzer chooses the bytes from which the makers draw, and keeps those
that reach new code. Without it the same makers draw from a seeded generator. Prints one line of JSON: how many inputs
ended at each check. A failure is an exception out of the receiver.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.fuzz.frames import CHECKS, MAKERS, Target

__all__: list[str] = []

_NAMES: Final = tuple(MAKERS)


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
    """Counts what becomes of the inputs of one run."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.runs = 0
        self._target = Target()

    def one(self, rng: random.Random) -> None:
        self.runs += 1
        if self.runs % 1000 == 0:  # states that were accepted on the way would make bases known
            self._target = Target()
        lines = MAKERS[_NAMES[rng.randrange(len(_NAMES))]](rng)
        outcome = self._target.open(lines)
        self.ended[self._target.check(lines, outcome)] += 1

    def report(self, engine: str) -> str:
        reached: dict[str, int] = {}
        left = self.runs
        for check in CHECKS:
            reached[check] = left
            left -= self.ended[check]
        found = {"engine": engine, "runs": self.runs, "reached": reached, "ended": dict(self.ended)}
        return json.dumps(found | {"ok": min(reached.values()) >= 10_000})


def _seeded(session: Session, runs: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(runs):
        session.one(rng)


def _guided(session: Session, runs: int, seed: int, done: Callable[[], None]) -> None:
    import atheris

    def one(data: bytes) -> None:
        session.one(Drawn(data))
        if session.runs >= runs:
            done()

    atheris.instrument_all()
    options: list[Any] = [sys.argv[0], f"-runs={runs + 10}", f"-seed={seed}", "-max_len=4096", "-verbosity=0"]
    atheris.Setup(options, one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["atheris", "seeded"], default=None, help="default: atheris if there")
    chosen = parser.parse_args()
    engine = chosen.engine or ("atheris" if find_spec("atheris") else "seeded")
    session = Session()
    if engine == "seeded":
        _seeded(session, chosen.runs, chosen.seed)
        print(session.report(engine))
        return

    def done() -> None:  # libFuzzer ends the process itself, before anything behind Fuzz() could print
        print(session.report(engine), flush=True)

    _guided(session, chosen.runs, chosen.seed, done)


if __name__ == "__main__":
    main()
