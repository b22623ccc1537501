"""wrk, the load generator: what it is called with, and what its report says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.harness import MissingPeer

__all__ = ["Load", "parse", "require", "run"]

_MILLISECONDS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}
_LATENCY: Final = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s|m)\s*$", re.MULTILINE)
_RATE: Final = re.compile(r"^Requests/sec:\s+([\d.]+)\s*$", re.MULTILINE)
_FAILED: Final = re.compile(r"^\s*(?:Non-2xx or 3xx responses|Socket errors): .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second, and the latencies in milliseconds that 50 and 99 percent of the requests stayed under."""

    rate: float
    p50: float
    p99: float


def parse(report: str) -> Load:
    """What ``wrk --latency`` has printed. Raises ``ValueError`` if a request failed, or for anything else."""
    if failed := _FAILED.search(report):
        raise ValueError(f"wrk had failures: {failed[0].strip()}")
    latencies = {share: float(value) * _MILLISECONDS[unit] for share, value, unit in _LATENCY.findall(report)}
    rate = _RATE.search(report)
    if rate is None or latencies.keys() != {"50", "99"}:
        raise ValueError(f"this is no report of wrk --latency: {report!r}")
    return Load(float(rate[1]), latencies["50"], latencies["99"])


def require() -> str:
    """Where wrk is. Raises :class:`~benchmarks.harness.MissingPeer` if it is nowhere."""
    found = shutil.which("wrk")
    if found is None:
        raise MissingPeer("wrk is not installed; try: apt-get install wrk")
    return found


def run(url: str, headers: Mapping[str, str], *, connections: int, seconds: int) -> Load:
    """One thread with ``connections`` for ``seconds``. Raises what :func:`require` and :func:`parse` raise."""
    command = [require(), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    done = subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=seconds + 30)
    return parse(done.stdout)
