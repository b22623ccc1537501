"""All that a run has shown, before it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scripts.soak.ledger import Ledger
from scripts.soak.options import Options
from scripts.soak.replay import Verdict

__all__ = ["Seen"]


@dataclass(slots=True)
class Seen:
    """``memory``: (seconds, resident MiB); ``odd``: what was wrong at a look in mid-run; ``record``: the worker's
    lines; ``counters``: the worker's requests by outcome, as exported at its end; ``spans``: handed to the exporter,
    ``delivered`` by it, ``dropped`` as counted, ``accepted`` by the collector; ``traces``: whether requests after the
    last outage are whole in Jaeger; ``emptied``: the state once all sessions were deleted."""

    options: Options
    ledger: Ledger = field(default_factory=Ledger)
    memory: list[tuple[float, float]] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    record: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    spans: dict[str, int] = field(default_factory=dict)
    traces: list[str] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    emptied: dict[str, Any] = field(default_factory=dict)
    outages: dict[str, int] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    sessions: int = 0
    tracebacks: list[str] = field(default_factory=list)
    status: int | None = None
