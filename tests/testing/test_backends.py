"""Child processes: started, watched, tried on another port, and ended; with Python in the place of Jaeger."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from otelctx.errors import ConfigError
from otelctx.testing import backends
from otelctx.testing.backends import Backend, Launch, find, free_ports, poll


class Child(Backend):
    """Runs ``codes`` one after the other, one per attempt; ready once it has said so in its log."""

    def __init__(self, folder: Path, *codes: str, within: float = 120.0) -> None:
        self.codes = list(codes)
        self.folder = folder
        self.within = within
        super().__init__(folder / "child.log")

    def plan(self) -> Launch:
        command = [sys.executable, "-c", self.codes.pop(0)]
        given = {"OTELCTX_GIVEN": "yes"}
        return Launch(command, lambda: "UP" in self.tail(), given, self.within, self.folder)


TAKEN = "raise SystemExit('bind: address already in use')"
GUNICORNS = "raise SystemExit('Connection in use: (127.0.0.1, 8000)')"
RUNS = "import os, time; print('UP', sorted(os.environ), flush=True); time.sleep(600)"


def test_it_runs_until_it_is_closed_with_none_of_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTELCTX_BIND", "0.0.0.0")
    with Child(tmp_path, RUNS) as child:
        assert "OTELCTX_GIVEN" in child.tail()
        assert "PATH" in child.tail()
        assert "OTEL_TRACES_EXPORTER" not in child.tail()
        assert "OTELCTX_BIND" not in child.tail()
        assert child.status is None
    assert child.status == -signal.SIGTERM
    child.close()


def test_it_runs_in_the_folder_that_the_plan_names(tmp_path: Path) -> None:
    with Child(tmp_path, "import os; print('UP', os.getcwd(), flush=True)") as child:
        assert str(tmp_path) in child.tail()


def test_a_port_that_somebody_else_took_is_chosen_anew(tmp_path: Path) -> None:
    with Child(tmp_path, TAKEN, GUNICORNS, RUNS) as child:
        assert child.codes == []


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (["raise SystemExit('no such option')"], "the process has ended\nno such option"),
        ([TAKEN] * 3, "address already in use"),
    ],
    ids=["for another reason", "three times"],
)
def test_what_does_not_start_says_why(tmp_path: Path, codes: list[str], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        Child(tmp_path, *codes)


def test_what_never_gets_ready_is_ended(tmp_path: Path) -> None:
    ended: list[int | None] = []

    class Late(Child):
        def close(self) -> None:
            super().close()
            ended.append(self.status)

    with pytest.raises(RuntimeError, match="was not ready within 0 s"):
        Late(tmp_path, "import time; time.sleep(600)", within=0)
    assert ended == [-signal.SIGTERM]


@pytest.mark.parametrize(("there", "asked"), [(30.0, 4), (41.0, 5)], ids=["in time", "too late"])
def test_it_is_asked_until_the_time_is_up(there: float, asked: int) -> None:
    now, times = 0.0, []

    def done() -> bool:
        times.append(now)
        return now >= there

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 10

    with nullcontext() if there <= 30 else pytest.raises(TimeoutError, match="it was not ready within 30 s"):
        poll(done, lambda: True, "it", 30, clock=lambda: now, sleep=sleep)
    assert len(times) == asked


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_without_a_checkout_find_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_ROOT", tmp_path)
    with pytest.raises(ConfigError, match="jaeger is built and configured in a checkout"):
        find("jaeger")


def test_what_is_not_built_is_said_with_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELCTX_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="otelctx-collector is not built; run: scripts/backends build"):
        find("otelctx-collector")
