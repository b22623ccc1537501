"""``python -m scripts.soak``: load a worker for a while, then check what must hold. Exit status 0 if all of it does.

1: something does not hold. 2: it could not be run, for want of a backend, the model, or a good command line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from otelctx.errors import ConfigError
from scripts.soak.checks import judge
from scripts.soak.options import Options
from scripts.soak.report import Report, figures, table
from scripts.soak.run import run


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    replay = max(10.0, given.minutes * 6) if given.replay is None else given.replay
    options = Options(given.model, given.minutes * 60, given.seed, given.sessions, given.alone, replay=replay)
    torch.set_num_threads(1)
    report = Report(given.report)
    report.say(f"{options.seconds:.0f} s of load on {options.model}, seed {options.seed}", {"options": asdict(options)})
    with tempfile.TemporaryDirectory(prefix="otelctx-soak-") as made:
        folder = given.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            seen = asyncio.run(run(options, folder, report.say))
        except ConfigError as error:
            print(f"soak: can't run: {error}", file=sys.stderr)
            return 2
    checks = judge(seen)
    ok = all(check.ok for check in checks)
    print(table(checks, seen))
    report.write({"ok": ok, "checks": [asdict(check) | {"ok": check.ok} for check in checks], "figures": figures(seen)})
    return 0 if ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description="Load a worker and check what holds.")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (30)")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny", help="tiny: random weights, fast")
    parser.add_argument("--sessions", type=int, default=50, help="conversations at once (50)")
    parser.add_argument("--alone", type=int, default=8, help="askers without a session (8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--replay", type=float, help="seconds to judge deleted conversations in (a tenth of the load's)"
    )
    parser.add_argument("--report", type=Path, default=Path("soak.jsonl"), help="JSON lines (soak.jsonl)")
    parser.add_argument("--keep", type=Path, help="a folder for logs and records, instead of a temporary one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
