"""How every benchmark times, judges and prints.

Alternatives are timed in turn, round by round, so that whatever else the machine does meets all of them; a ratio is the
median over the rounds, each round's own two times divided. The result is one JSON line:

``benchmark``   its name
``ratios``      what was compared, dimensionless
``targets``     for the ratios that have one: ``{"max": x}`` or ``{"min": x}``
``ok``          every target was measured and met, and no peer was missing
``missing``     peers that could not take part, and why
``figures``     absolute figures behind the ratios, for reading; they mean nothing on another machine
``options``     version and options of every party
``device``      what it ran on
``commit``      of this repository, with ``-dirty`` if the tree had changes
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Final

__all__ = [
    "MissingPeer",
    "Report",
    "Target",
    "at_least",
    "at_most",
    "check_plot",
    "commit",
    "device",
    "interleave",
    "median_ratio",
    "percentile",
    "plot",
    "say",
    "versions",
]

_ROOT: Final = Path(__file__).resolve().parent.parent


class MissingPeer(Exception):
    """Software that a benchmark compares with is not installed or does not run here; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio has to be: at most or at least ``value``."""

    value: float
    maximum: bool

    def met(self, ratio: float) -> bool:
        """False for NaN."""
        return ratio <= self.value if self.maximum else ratio >= self.value

    def as_json(self) -> dict[str, float]:
        return {"max" if self.maximum else "min": self.value}


def at_most(value: float) -> Target:
    return Target(value, maximum=True)


def at_least(value: float) -> Target:
    return Target(value, maximum=False)


@dataclass(slots=True)
class Report:
    """What a benchmark found. ``ratios`` may have more names than ``targets``; a target without its ratio is not ok."""

    benchmark: str
    targets: Mapping[str, Target]
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.missing and all(
            name in self.ratios and target.met(self.ratios[name]) for name, target in self.targets.items()
        )

    @contextmanager
    def peer(self, name: str) -> Iterator[None]:
        """What is compared with ``name`` goes inside: if it turns out to be missing, that is noted and the rest goes
        on."""
        try:
            yield
        except MissingPeer as missing:
            self.missing[name] = str(missing)

    def line(self) -> str:
        """The report as one line of JSON."""
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "ratios": {name: _rounded(value) for name, value in self.ratios.items()},
                "targets": {name: target.as_json() for name, target in self.targets.items()},
                "ok": self.ok,
                "missing": self.missing,
                "figures": {name: _rounded(value) for name, value in self.figures.items()},
                "options": self.options,
                "device": device(),
                "commit": commit(),
            }
        )


def interleave(
    alternatives: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Seconds that each alternative took, by name, one figure a round.

    In each round every alternative runs once, and another one goes first in the next: none always profits from, or
    always suffers, what its neighbour left in the caches.
    """
    for _ in range(warmup):
        for run in alternatives.values():
            run()
    names = list(alternatives)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = clock()
            alternatives[name]()
            times[name].append(clock() - began)
    return times


def median_ratio(times: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Median over the rounds of the time of ``ours`` through that of ``theirs``."""
    return median(one / other for one, other in zip(times[ours], times[theirs], strict=True))


def percentile(values: Sequence[float], share: int) -> float:
    """The value below which ``share`` percent of ``values`` lie; the largest where there are too few to tell."""
    return quantiles(values, n=100, method="inclusive")[share - 1] if len(values) > 1 else values[0]


def say(text: str) -> None:
    """Tell whoever waits what is being done, on standard error."""
    print(text, file=sys.stderr, flush=True)


def versions(*packages: str) -> str:
    """``name version`` of each package, joined. Raises :class:`MissingPeer` naming the first that is not installed."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            raise MissingPeer(f"{package} is not installed; try: pip install {package}") from None
    return ", ".join(found)


def device() -> str:
    """Processor, number of cores, interpreter."""
    cores = os.cpu_count() or 1
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{_processor()}, {cores} core{'s' * (cores > 1)}, {platform.system()} {platform.machine()}, {python}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def commit() -> str:
    """The commit that was measured, or ``unknown`` outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=all", "otelctx", "benchmarks") else ""
        return git("rev-parse", "--short=12", "HEAD") + dirty
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def check_plot() -> None:
    """Raises :class:`MissingPeer` if nothing can be drawn: better before a benchmark than after it."""
    if find_spec("matplotlib") is None:
        raise MissingPeer("--plot needs matplotlib, which is not installed; try: pip install matplotlib")


def plot(report: Report, file: Path) -> None:
    """Draw the ratios of ``report`` as bars, each with its target as a line across it, into ``file``.

    Raises :class:`MissingPeer` without matplotlib.
    """
    check_plot()
    figures = import_module("matplotlib.figure")  # nobody but this function needs it, or its types

    names = list(report.ratios)
    figure = figures.Figure(figsize=(7, 1 + 0.5 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(names, [report.ratios[name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.3g", padding=3)
    for at, name in enumerate(names):
        target = report.targets.get(name)
        if target is not None:
            bound = f"{'≤' if target.maximum else '≥'} {target.value:g}"
            axes.plot([target.value] * 2, [at - 0.45, at + 0.45], color="tab:red")
            axes.annotate(bound, (target.value, at + 0.45), color="tab:red", fontsize="small", ha="center")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(f"{report.benchmark}: ratios and targets\n{device()}", fontsize="small")
    figure.savefig(file)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
