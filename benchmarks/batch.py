"""``batch``: eight sessions decoding at once, on SmolLM2-135M in float32 on the CPU.

Everything is measured on the runner, the scheduler and the sampler, as the engine drives them; what serving adds is in
``serve``. Each figure is of whole steps: forward, logits, choice of tokens.

``serial_512``, ``serial_4096``  tokens per second of eight sessions together through the same eight one by one, each
                with so many tokens of history. One by one they run on the same code, which for one row is as fast as a
                model with a cache of its own, so that the ratio is what batching alone gives.
``transformers`` tokens per second through transformers' continuous batching at 512 tokens of history; greedy on both
                sides, the same weights, a step's cost on both at the lengths that decoding has reached. Its options are
                its defaults except where its own documentation advises otherwise for such a load. It is paused while
                ours is timed, and the other way round. At 4096 it would need minutes to prefill.
``gap``         99th percentile of the time between tokens of seven sessions while an eighth prefills 4096 tokens,
                through the median while none does.
``sampling``    share of a step spent in choosing tokens: the larger of OpenAI's defaults and of temperature 0.7 with
                top_p 0.9.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks._loop import Loop, crop, fill
from benchmarks._model import smollm2, some_ids, stack, twin
from benchmarks.harness import Report, at_least, at_most, interleave, median_ratio, percentile, say, versions
from otelctx.inference.runner import Runner
from otelctx.inference.sampling import Params
from otelctx.inference.scheduler import Limits

__all__ = ["run"]

TARGETS: Final = {
    "serial_512": at_least(3),
    "serial_4096": at_least(2),
    "transformers": at_least(2),
    "gap": at_most(2.5),
    "sampling": at_most(0.1),
}
ROWS: Final = 8
GREEDY: Final = Params(temperature=0.0)
SAMPLED: Final = {"defaults": Params(seed=1), "nucleus": Params(temperature=0.7, top_p=0.9, seed=1)}


@dataclass(frozen=True, slots=True)
class _Size:
    short: int
    long: int
    rounds: int
    steps: int


FULL: Final = _Size(short=512, long=4096, rounds=5, steps=3)
QUICK: Final = _Size(short=16, long=80, rounds=1, steps=1)


def run(quick: bool) -> Report:
    report = Report("batch", TARGETS)
    size = QUICK if quick else FULL
    with report.peer("smollm2"):
        model = smollm2().model
        report.options["model"] = f"SmolLM2-135M-Instruct, {stack()}"
        bench = _Bench(report, model, size)
        say("batch: prefilling the short history")
        bench.histories(size.short)
        bench.serial("serial_512")
        bench.sampling()
        bench.gap()
        with report.peer("transformers"):
            bench.against_transformers()
        say("batch: prefilling the long history")
        bench.histories(size.long)
        bench.serial("serial_4096")
    return report


class _Bench:
    def __init__(self, report: Report, model: Any, size: _Size) -> None:
        self._report, self._size = report, size
        self._twin = twin(model)
        # Room for what decoding adds; the row that prefills in between is cropped again.
        self._runner = Runner(model, rows=ROWS, window=size.long + 64 * (1 + size.rounds * size.steps))
        self._rng = random.Random(1)
        self._history = some_ids(self._runner.vocab, size.long, self._rng)
        self._length = 0
        limits = Limits()
        report.options["otelctx"] = (
            f"{ROWS} rows, chunk {limits.chunk}, reach {limits.reach}, idle_chunk {limits.idle_chunk}"
        )

    def histories(self, length: int) -> None:
        """The same ``length`` tokens in every row: attention costs the same whatever they are."""
        crop(self._runner, range(ROWS), self._length)
        fill(self._runner, 0, self._history[self._length : length])
        for row in range(1, ROWS):
            self._runner.kv.copy(0, row, length)
        self._length = length

    def _loops(self, groups: Sequence[Sequence[int]], params: Params) -> list[Loop]:
        return [Loop(self._runner, dict.fromkeys(rows, self._history[0]), params) for rows in groups]

    def _steps(self, groups: Sequence[Sequence[int]], params: Params) -> Callable[[], None]:
        """Some steps of every group of rows, from the same lengths each time."""

        def once() -> None:
            crop(self._runner, range(ROWS), self._length)
            for loop in self._loops(groups, params):
                for _ in range(self._size.steps):
                    loop.step()

        return once

    def serial(self, name: str) -> None:
        say(f"batch: {name}")
        everyone = range(ROWS)
        alternatives = {
            "together": self._steps([everyone], SAMPLED["defaults"]),
            "alone": self._steps([[row] for row in everyone], SAMPLED["defaults"]),
        }
        times = interleave(alternatives, rounds=self._size.rounds)
        crop(self._runner, everyone, self._length)
        self._report.ratios[name] = median_ratio(times, "alone", "together")
        for how, found in times.items():
            self._report.figures[f"{name}_{how}_tokens_per_s"] = ROWS * self._size.steps / median(found)

    def sampling(self) -> None:
        say("batch: sampling")
        shares = {}
        for name, params in SAMPLED.items():
            crop(self._runner, range(ROWS), self._length)
            [loop] = self._loops([range(ROWS)], params)
            found = []
            for _ in range(2 + self._size.rounds * self._size.steps):
                before, began = loop.sampling, perf_counter()
                loop.step()
                found.append((loop.sampling - before) / (perf_counter() - began))
            shares[name] = median(found[2:])
            self._report.figures[f"sampling_{name}"] = shares[name]
        self._report.ratios["sampling"] = max(shares.values())

    def gap(self) -> None:
        say("batch: gap")
        *others, row = range(ROWS)
        crop(self._runner, others, self._length)
        self._runner.kv.zero(row)
        [loop] = self._loops([others], SAMPLED["defaults"])
        quiet = [_timed(loop.step) for _ in range(2 + 2 * self._size.rounds)][2:]
        loop.submit(row, self._history)
        busy: list[float] = []
        ready: list[int] = []
        while row not in ready:
            began = perf_counter()
            ready = loop.step()
            busy.append(perf_counter() - began)
        self._runner.kv.copy(0, row, self._length)
        self._report.ratios["gap"] = percentile(busy, 99) / median(quiet)
        self._report.figures |= {
            "gap_quiet_ms": 1e3 * median(quiet),
            "gap_p50_ms": 1e3 * median(busy),
            "gap_p99_ms": 1e3 * percentile(busy, 99),
            "gap_steps": len(busy),
        }

    def against_transformers(self) -> None:
        from benchmarks._transformers import ContinuousBatching

        say("batch: transformers' continuous batching prefills")
        steps, rounds = self._size.steps, max(1, self._size.rounds // 2)
        prompts = [some_ids(self._runner.vocab, self._length, self._rng) for _ in range(ROWS)]
        # A prompt's tokens begin while the others prefill, so the first ones come long before the last.
        tokens = 4 * ROWS + (steps + 3) * rounds
        crop(self._runner, range(ROWS), self._length)
        [loop] = self._loops([range(ROWS)], GREEDY)
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        with closing(ContinuousBatching(self._twin, prompts, tokens)) as peer:
            self._report.options["transformers"] = f"{versions('transformers')}; {peer.options}"
            for turn in range(rounds + 1):
                ours = sum(_timed(loop.step) for _ in range(steps))
                theirs = peer.decode(steps)
                if turn:  # the first round is for warming up
                    times["ours"].append(ours)
                    times["theirs"].append(theirs)
        self._report.ratios["transformers"] = median_ratio(times, "theirs", "ours")
        for name, found in times.items():
            self._report.figures[f"transformers_{name}_tokens_per_s"] = ROWS * steps / median(found)


def _timed(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began
