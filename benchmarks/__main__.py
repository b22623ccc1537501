"""``python -m benchmarks NAME [--quick] [--device cuda] [--plot FILE]``: run one benchmark and print its JSON line.

A module of this package is a benchmark if it has ``run(quick: bool) -> Report``. The exit status is 0 if every target
was met, 1 if not, 2 for a command line that means nothing. What happens meanwhile is on standard error.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

import benchmarks
from benchmarks import harness

# Modules that benchmarks are made of; a name with an underscore says the same.
_PARTS: Final = frozenset({"harness"})


class Benchmark(Protocol):
    def run(self, quick: bool) -> harness.Report:
        """Measure. ``quick`` runs everything once, at a fraction of its size: the figures then mean nothing."""


def names() -> list[str]:
    """The benchmarks that there are, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in modules if name not in _PARTS and not name.startswith("_"))


def main(arguments: Sequence[str] | None = None) -> int:
    known = names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare otelctx with its peers.")
    parser.add_argument("name", metavar="NAME", choices=known, help=f"one of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="once and small: shows that it runs, measures nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where models compute")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="also draw ratios and targets (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.plot is not None:
        try:
            harness.check_plot()
        except harness.MissingPeer as missing:
            parser.error(str(missing))
    if options.device != "cpu":
        from benchmarks._model import run_on

        run_on(options.device)
    report = cast(Benchmark, import_module(f"benchmarks.{options.name}")).run(options.quick)
    print(report.line())
    if options.plot is not None:
        harness.plot(report, options.plot)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
