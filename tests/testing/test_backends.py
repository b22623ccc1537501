"""Child processes: started, watched, tried on another port, and ended; with Python in the place of Jaeger."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otelctx.errors import ConfigError
from otelctx.testing import backends
from otelctx.testing.backends import Backend, Launch, find, free_ports


class Child(Backend):
    """Runs ``codes`` one after the other, one per attempt; ready once it has said so in its log."""

    def __init__(self, folder: Path, *codes: str) -> None:
        self.codes = list(codes)
        super().__init__(folder / "child.log")

    def plan(self) -> Launch:
        command = [sys.executable, "-c", self.codes.pop(0)]
        return Launch(command, lambda: "UP" in self.tail(), {"OTELCTX_GIVEN": "yes"})


TAKEN = "raise SystemExit('bind: address already in use')"
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
        assert child._process.poll() is None
    assert child._process.poll() is not None
    child.close()


def test_a_port_that_somebody_else_took_is_chosen_anew(tmp_path: Path) -> None:
    with Child(tmp_path, TAKEN, TAKEN, RUNS) as child:
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


def test_what_never_gets_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(backends.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(backends.time, "sleep", lambda seconds: None)
    ended: list[Backend] = []
    monkeypatch.setattr(Child, "close", lambda self: (ended.append(self), Backend.close(self)))
    with pytest.raises(RuntimeError, match="was not ready within 30 s"):
        Child(tmp_path, "import time; time.sleep(600)")
    assert ended[0]._process.poll() is not None


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
