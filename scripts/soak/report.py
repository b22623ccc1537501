"""A run in a table for people and in JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from scripts.soak.checks import Check
from scripts.soak.seen import Seen

__all__ = ["Report", "figures", "table"]

_SHOWN: Final = 4
_LENGTH: Final = 300  # characters


class Report:
    """Progress on standard output, and everything in a file, one JSON object each line; the last one is the result."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        path.write_text("")

    def say(self, text: str, fields: dict[str, Any]) -> None:
        print(f"soak: {text}", flush=True)
        self.write({"text": text, **fields})

    def write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"time": round(time.monotonic() - self._began, 3), **line}) + "\n")


def figures(seen: Seen) -> dict[str, Any]:
    """What is reported and not judged. Times to the first text are seconds, over streams that were read."""
    first = sorted(asked.first for asked in seen.ledger.all() if asked.first is not None)
    cuts = quantiles(first, n=100, method="inclusive") if len(first) > 1 else [0.0] * 99
    return {
        "requests": len(seen.ledger),
        "per_second": round(len(seen.ledger) / seen.options.seconds, 1),
        "ttft_p50": round(cuts[49], 3),
        "ttft_p99": round(cuts[98], 3),
        "streams": len(first),
        "spans_lost": round(1 - seen.spans["delivered"] / max(1, seen.spans["handed"]), 4),
    }


def table(checks: Sequence[Check], seen: Seen) -> str:
    """The checks, then the figures, aligned."""
    rows = []
    for check in checks:
        rows.append(("ok" if check.ok else "FAILED", check.name, check.detail))
        rows += [("", "", f"- {_line(what)}") for what in check.wrong[:_SHOWN]]
        if len(check.wrong) > _SHOWN:
            rows.append(("", "", f"- and {len(check.wrong) - _SHOWN} more in the report"))
    rows += [("", name, str(value)) for name, value in figures(seen).items()]
    width = max(len(name) for _, name, _ in rows)
    return "\n".join(f"{state:6} {name:{width}}  {detail}" for state, name, detail in rows)


def _line(text: str) -> str:
    """The last line of a traceback says most."""
    lines = text.strip().splitlines() or [""]
    return lines[-1][:_LENGTH]
