"""What the tests of one module leave behind for those of the next: nothing.

A server that goes on in a thread meets whatever the next tests patch, and is seen by what they measure; which test
fails by it then depends on the machine. So it is the one that leaves something that fails: at the end of each module.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

WITHIN = 60.0  # seconds, for what is ending by itself
# Of libraries, or of ours, once in a process and to its end.
FOR_EVER = ("otelctx-abandoned", "tqdm_monitor", "pytest_timeout", "execnet")
POLLS = "(_poll_wrapper)"  # grpc.aio's, as long as anybody holds anything of it
OBSERVERS = ("_arenas", "_rooms", "_kv", "_pressures", "_sessions", "_upstreams")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


@dataclass(frozen=True)
class State:
    """What is there. Threads by themselves, since ids are used again."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    observers: frozenset[int]
    settings: dict[str, Any]


def threads() -> frozenset[threading.Thread]:
    return frozenset(t for t in threading.enumerate() if not (t.name.startswith(FOR_EVER) or t.name.endswith(POLLS)))


def children() -> dict[int, str]:
    found = {}
    for child in psutil.Process().children():
        try:
            found[child.pid] = " ".join(child.cmdline()) or child.name()
        except psutil.Error:
            continue
    return {pid: command for pid, command in found.items() if "resource_tracker" not in command}


def observers() -> dict[int, str]:
    """What instruments ask, whoever's provider they are of."""
    module = sys.modules.get("otelctx.telemetry.instruments")
    found = [callback for name in OBSERVERS for callback in getattr(module, name, {}).values()]
    return {id(callback): repr(callback) for callback in found}


def settings() -> dict[str, Any]:
    """What belongs to the process. PYTEST_CURRENT_TEST is pytest's own."""
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if "pytest" not in repr(type(handler))]
    return {
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "folder": os.getcwd(),
        "signals": {number.name: signal.getsignal(number) for number in SIGNALS},
        "logging": (root.level, root.manager.disable, handlers),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
    }


class Guard:
    """A plugin. ``to_the_end``: ids of child processes that serve the whole run."""

    def __init__(self) -> None:
        self.to_the_end: set[int] = set()
        self._before: State | None = None

    def _now(self) -> State:
        return State(threads(), frozenset(children()), frozenset(observers()), settings())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        if self._before is None:
            self._before = self._now()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        yield
        if nextitem is not None and nextitem.path == item.path:
            return
        before, self._before = self._before, None
        assert before is not None
        until = time.monotonic() + WITHIN
        while (found := self._left(before)) and time.monotonic() < until:
            gc.collect()  # some end with the object that has them
            time.sleep(0.005)
        assert not found, f"{item.path.name} leaves behind: " + "; ".join(found)

    def _left(self, before: State) -> list[str]:
        found = [f"thread {t.name} {getattr(t, '_target', None)}" for t in threads() - before.threads]
        running = children()
        left = running.keys() - before.children - self.to_the_end
        found += [f"process {running[pid]}" for pid in left]
        asked = observers()
        found += [f"observer {asked[key]}" for key in asked.keys() - before.observers]
        now = settings()
        found += [f"{name} {now[name]} for {was}" for name, was in before.settings.items() if now[name] != was]
        return found
