"""The summary at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from otelctx.demo.figures import Hop, Tokens

__all__ = ["Row", "token_table", "wire_table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One step: its name, the client it used, and its figures."""

    name: str
    via: str
    hops: tuple[Hop, ...]
    tokens: Tokens


def wire_table(rows: Iterable[Row]) -> Table:
    """Bytes of context per hop, from the taps, beside what the same keys cost as W3C baggage."""
    table = Table(title="Context on the wire: bytes of header lines, read off the TCP taps", title_justify="left")
    table.add_column("step")
    for name in ("client → frontend", "frontend → worker"):
        table.add_column(name)
        table.add_column("bytes", justify="right")
        table.add_column("ack", justify="right")
        table.add_column("as baggage", justify="right", style="dim")
    sums = [[0, 0, 0], [0, 0, 0]]
    for row in rows:
        cells = [row.name]
        for total, hop in zip(sums, row.hops, strict=False):
            bytes_ = (hop.frame_bytes + hop.own_baggage_bytes, hop.ack_bytes, hop.baggage or 0)
            for index, count in enumerate(bytes_):
                total[index] += count
            cells += [hop.frame.upper(), *map(str, bytes_)]
        table.add_row(*cells)
    table.add_section()
    table.add_row("sum", *(cell for total in sums for cell in ("", *map(str, total))), style="bold")
    return table


def token_table(rows: Iterable[Row]) -> Table:
    """Tokens and time to the first one, from the exported spans."""
    table = Table(title="Tokens in the worker, read back from the exported spans", title_justify="left")
    for column in ("step", "by"):
        table.add_column(column)
    for column in ("prompt", "reused", "prefilled", "output", "first token", "window"):
        table.add_column(column, justify="right")
    table.add_column("what happened")
    for row in rows:
        t = row.tokens
        counts = (t.input, t.reused, t.prefilled, t.output)
        first = "–" if t.ttft is None else f"{t.ttft * 1000:.0f} ms"
        window = "–" if t.used is None else f"{t.used}/{t.limit}"
        happened = [e.name.removeprefix("otelctx.") for e in t.events if e.name.startswith("otelctx.")]
        told = ", ".join(dict.fromkeys(happened)) or t.outcome or "–"
        table.add_row(row.name, row.via, *("–" if c is None else str(c) for c in counts), first, window, told)
    return table
