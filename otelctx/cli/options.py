"""What ``otelctx serve`` was told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said. ``window`` in tokens, ``drain`` and ``ttft_target`` in seconds; ``threads`` 0 leaves
    it to torch; ``as_json``: what is said is for programs."""

    model: str
    host: str
    port: int
    window: int
    rows: int
    when_full: str
    name: str | None
    service_name: str
    threads: int
    drain: float
    ttft_target: float = 10.0
    as_json: bool = False
