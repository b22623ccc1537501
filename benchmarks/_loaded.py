"""The middleware in a real server: what it costs where it records nothing, and what is left of a server under load."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Final

from benchmarks import _wrk
from benchmarks._served import LOADED, QUIET
from benchmarks._uvicorn import Connection, Server
from benchmarks.harness import Report, say, versions

__all__ = ["load", "quiet"]

CONNECTIONS: Final = 16


def quiet(report: Report, headers: list[tuple[bytes, bytes]], *, quick: bool) -> None:
    """``disabled``, ``unsampled``, ``excluded``: what a request adds to the server's CPU time, through a bare one's.

    One connection, one server process, whose clock counts every thread of it and the kernel's work for it. A block of
    requests of each kind is one figure, and a ratio is the median over the rounds. With uvicorn's other implementation
    of HTTP, which is what it takes without extras, the same again under ``h11_*``, among the figures.
    """
    report.options["quiet"] = f"{versions('uvicorn', 'httptools', 'h11')}; CPU time of the server process"
    ratios, figures = _quiet("httptools", headers, quick)
    report.ratios.update(ratios)
    report.figures.update(figures)
    over, figures = _quiet("h11", headers, quick)
    report.figures.update({f"h11_{name}": ratio for name, ratio in over.items()})
    report.figures.update({f"h11_{name}": figure for name, figure in figures.items()})


def _quiet(http: str, headers: list[tuple[bytes, bytes]], quick: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Ratios, and microseconds."""
    rounds, block = (2, 5) if quick else (60, 100)
    times: dict[str, list[float]] = {name: [] for name in QUIET}
    with Server("quiet", http) as server, Connection(server.port, headers, b"{}") as connection:
        for name in QUIET:
            for _ in range(2 * block):
                connection.ask(f"/{name}")
        for turn in range(rounds):
            first = turn % len(QUIET)
            for name in QUIET[first:] + QUIET[:first]:
                began = int(connection.ask("/cpu"))
                for _ in range(block):
                    connection.ask(f"/{name}")
                times[name].append((int(connection.ask("/cpu")) - began) / block / 1e3)
    bare, metrics = times["bare"], times["metrics_only"]
    others = [name for name in QUIET if name != "bare"]
    ratios = {name: _median_over(times[name], bare, bare) for name in others}
    # What tracing adds where metrics are recorded as well: these are somebody's wish, and nearly all of the rest.
    ratios["unsampled_over_metrics"] = _median_over(times["unsampled"], metrics, bare)
    one = [1.0] * rounds
    return ratios, {
        "quiet_bare_us": median(bare),
        **{f"{name}_us": _median_over(times[name], bare, one) for name in others},
    }


def _median_over(some: list[float], others: list[float], through: list[float]) -> float:
    return median((one - other) / whole for one, other, whole in zip(some, others, through, strict=True))


def load(report: Report, traceparent: str, *, quick: bool) -> None:
    """``load_*``: requests per second and latencies of one worker under wrk, with each way to trace it in turn."""
    _wrk.require()
    names, rounds, seconds = (LOADED[:3], 1, 1) if quick else (LOADED, 4, 2)
    report.options["load"] = (
        f"{versions('uvicorn', 'httptools')}; wrk -t1 -c{CONNECTIONS} -d{seconds}s, {rounds} rounds"
    )
    found: dict[str, list[_wrk.Load]] = {name: [] for name in names}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(name)) for name in names}
        for turn in range(rounds):
            say(f"asgi: wrk, round {turn + 1} of {rounds}")
            for name, server in servers.items():
                with report.peer(f"load_{name}"):
                    url = f"http://127.0.0.1:{server.port}/chat"
                    headers = {"traceparent": traceparent}
                    found[name].append(_wrk.run(url, headers, connections=CONNECTIONS, seconds=seconds))
    for name, loads in found.items():
        if loads:
            report.figures[f"load_{name}_per_second"] = median(one.rate for one in loads)
            report.figures[f"load_{name}_p50_ms"] = median(one.p50 for one in loads)
            report.figures[f"load_{name}_p99_ms"] = median(one.p99 for one in loads)
