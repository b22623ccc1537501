"""What a stream costs on its way through the gateway, with one stream open and with a thousand.

There are two of each proxy, nginx and ``otelctx gateway``: through one of them one stream is open, through the other a
thousand, each with an event every few seconds. Beside them one request after the other asks for a short stream of five
events; timed is from its first byte out to its last one in. What a proxy adds is its median less that of the way
without one, round by round.

``flat``         what ours adds with a thousand streams open / with one
``nginx_one``    what ours adds / what nginx adds, with one stream open
``nginx_many``   the same with a thousand
``nginx_flat``   what nginx adds with a thousand streams open / with one
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from benchmarks._proxies import Gateway, Nginx, Proxy, Upstream
from benchmarks.harness import MissingPeer, Report, at_most, say, versions

__all__ = ["run"]

_TARGETS: Final = {"flat": at_most(1.3)}
# ratio, numerator, denominator
_RATIOS: Final = (
    ("flat", "otelctx_many", "otelctx_one"),
    ("nginx_one", "otelctx_one", "nginx_one"),
    ("nginx_many", "otelctx_many", "nginx_many"),
    ("nginx_flat", "nginx_many", "nginx_one"),
)
_PERIOD: Final = 5.0  # seconds between two events of an open stream
_FILES: Final = 16384
_REQUEST: Final = b"%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: benchmark\r\n%s\r\n"
_PROBE: Final = _REQUEST % (b"POST", b"/probe", b"content-length: 0\r\n")
_HOLD: Final = _REQUEST % (b"GET", b"/hold/%g" % _PERIOD, b"")
_END: Final = b"0\r\n\r\n"


def run(quick: bool) -> Report:
    report = Report("gateway", _TARGETS)
    many, rounds, probes = (20, 3, 5) if quick else (1000, 60, 20)
    with _files(), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ways, options = _start(Path(folder), stack, report)
        report.options = {**options, "libraries": versions("uvicorn", "httptools", "uvloop", "opentelemetry-sdk")}
        added = asyncio.run(_measure(ways, many, rounds, probes, report))
    for name, one, other in _RATIOS:
        if one in added and other in added:
            report.ratios[name] = median(x / y for x, y in zip(added[one], added[other], strict=True))
    return report


def _start(folder: Path, stack: ExitStack, report: Report) -> tuple[dict[str, int], dict[str, object]]:
    """Ports by the names of the ways, and what the parties are."""
    started: dict[str, Proxy] = {}

    def start(name: str, make: Callable[[Path], Proxy]) -> None:
        own = folder / name
        own.mkdir()
        started[name] = stack.enter_context(make(own))

    start("direct", Upstream)
    upstream = started["direct"].port
    for size in ("one", "many"):
        with report.peer("nginx"):
            start(f"nginx_{size}", lambda own: Nginx(own, upstream))
        start(f"otelctx_{size}", lambda own: Gateway(own, upstream))
    options: dict[str, object] = {name.partition("_")[0]: way.options for name, way in started.items()}
    return {name: way.port for name, way in started.items()}, options


@contextmanager
def _files() -> Iterator[None]:
    """Room for a thousand streams three times over, here and in the children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if wanted < _FILES // 4:
        raise MissingPeer(f"{wanted} files may be open at once; {_FILES // 4} are needed: see ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _measure(
    ports: dict[str, int], many: int, rounds: int, probes: int, report: Report
) -> dict[str, list[float]]:
    """Seconds that each way adds to the direct one, one figure a round."""
    say(f"opening {many} streams through each proxy that gets so many")
    counts = {name: many if name.endswith("_many") else 1 for name in ports if name != "direct"}
    held = [await _hold(ports[name]) for name, count in counts.items() for _ in range(count)]
    readers = [asyncio.create_task(_swallow(reader)) for reader, _ in held]
    lines = {name: await asyncio.open_connection("127.0.0.1", port) for name, port in ports.items()}
    times: dict[str, list[float]] = {name: [] for name in ports}
    names = list(ports)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken = [await _probe(*lines[name]) for _ in range(probes)]
            if turn:  # the first is for warming up
                times[name].append(median(taken))
    for task in readers:
        task.cancel()
    for _, writer in [*held, *lines.values()]:
        writer.transport.abort()
    await asyncio.gather(*readers, return_exceptions=True)
    report.figures = {f"{name}_us": median(values) * 1e6 for name, values in times.items()}
    direct = times.pop("direct")
    return {name: [max(a - b, 1e-9) for a, b in zip(values, direct, strict=True)] for name, values in times.items()}


async def _hold(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_HOLD)
    await reader.readuntil(b"\n\n")
    return reader, writer


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def _probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    began = perf_counter()
    writer.write(_PROBE)
    await reader.readuntil(_END)
    return perf_counter() - began


if __name__ == "__main__":
    print(run(False).line())
