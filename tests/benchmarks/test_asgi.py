"""The report of wrk is read right, and ``asgi`` runs at a fraction of its size, with wrk and without."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _served, _wrk, asgi
from benchmarks._served import APPLICATIONS, QUIET
from benchmarks.harness import MissingPeer

ROOT = Path(__file__).parents[2]
REPORT = """\
Running 2s test @ http://127.0.0.1:8000/chat
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.51ms  306.80us   5.97ms   93.71%
    Req/Sec    10.68k   503.11    11.32k    76.19%
  Latency Distribution
     50%  980.00us
     75%    1.50ms
     90%    1.62ms
     99%    1.10s
  22309 requests in 2.10s, 3.17MB read
Requests/sec:  10622.41
Transfer/sec:      1.51MB
"""


def test_rate_and_latencies_are_read_in_whatever_unit_they_are() -> None:
    assert _wrk.parse(REPORT) == _wrk.Load(rate=10622.41, p50=0.98, p99=1100.0)


@pytest.mark.parametrize(
    "line", ["  Non-2xx or 3xx responses: 7\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"]
)
def test_a_load_with_failures_has_no_figures(line: str) -> None:
    with pytest.raises(ValueError, match=line.strip()):
        _wrk.parse(REPORT.replace("Requests/sec", f"{line}Requests/sec"))


@pytest.mark.parametrize("missing", ["Requests/sec", "99%"])
def test_half_a_report_is_none(missing: str) -> None:
    with pytest.raises(ValueError, match="no report of wrk"):
        _wrk.parse(REPORT.replace(missing, "?"))


def test_without_wrk_the_benchmark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingPeer, match="apt-get install wrk"):
        _wrk.require()


def test_every_comparison_runs() -> None:
    """In a process of its own: FastAPI traces by itself only where providers are global."""
    command = [sys.executable, "-m", "benchmarks", "asgi", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert set(report["missing"]) == ({"wrk"} if shutil.which("wrk") is None else set())
    assert set(report["targets"]) <= set(report["ratios"])
    assert all(math.isfinite(value) for value in report["ratios"].values())
    if not report["missing"]:
        for name in ("bare", "ours", "contrib"):
            assert report["figures"][f"load_{name}_per_second"] > 0
            assert 0 < report["figures"][f"load_{name}_p50_ms"] <= report["figures"][f"load_{name}_p99_ms"]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Providers that an application makes export from threads, until they are shut down."""
    made: list[Any] = []

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def provider(*arguments: Any, **options: Any) -> Any:
            made.append(make(*arguments, **options))
            return made[-1]

        return provider

    for name in ("TracerProvider", "MeterProvider"):
        monkeypatch.setattr(_served, name, noted(getattr(_served, name)))
    yield
    for provider in made:
        provider.shutdown()


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_application_answers_the_same(name: str) -> None:
    app = APPLICATIONS[name]()
    for path in [f"/{kind}" for kind in QUIET] if name == "quiet" else ["/chat"]:
        sent: list[asgi.Message] = []

        async def send(message: asgi.Message, sent: list[asgi.Message] = sent) -> None:
            sent.append(message)

        asyncio.run(app(asgi.request(asgi.HEADERS) | {"path": path, "method": "GET"}, asgi.receive, send))
        assert sent[0]["status"] == 200
        assert sent[1]["body"] == b"{}"
