"""The matrix: every exit path of every application under every server; ``harness/tables.py`` has its axes.

One process per server runs all applications. ``apps/raw.py`` says what an application has to have; a new one is a
module there and a line in the tables. At the end of a run a table says how many cases each cell has passed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

# The processes of the servers and the tests share modules, which are in no package.
sys.path.append(str(Path(__file__).resolve().parent))
for _module in ("cell", "http_cases", "left_cases", "odd_cases", "context_cases", "websocket_cases"):
    pytest.register_assert_rewrite(f"harness.{_module}")
TABLES: Any = import_module("harness.tables")
CELL: Any = import_module("harness.cell")
PROCESS: Any = import_module("harness.process")
CASES: dict[str, Callable[[Any], None]] = import_module("harness.cases").CASES

TEST = "test_an_exit_path"
COLLECTED: pytest.StashKey[Counter[tuple[str, str]]] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each cell and case that is not declared to be impossible there."""
    if metafunc.function.__name__ == TEST:
        wanted = [
            pytest.param(mode, app, case, id=f"{mode}/{app}/{case}")
            for mode in TABLES.MODES
            for app in TABLES.APPS
            for case in CASES
            if TABLES.cannot(mode, app, case) is None
        ]
        metafunc.parametrize(("mode", "app", "case"), wanted)
    if "process" in metafunc.fixturenames:
        metafunc.parametrize("process", sorted({mode.process for mode in TABLES.MODES.values()}))


def _cells(ids: list[str]) -> Counter[tuple[str, str]]:
    names = (node.partition("[")[2].rstrip("]").split("/") for node in ids if f"{TEST}[" in node)
    return Counter((mode, app) for mode, app, _ in names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note what there is, before anything of it is deselected."""
    config.stash[COLLECTED] = _cells([item.nodeid for item in items])


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Counter[tuple[str, str]]:
    """How many cases of each cell have become tests."""
    return request.config.stash[COLLECTED]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed = _cells([report.nodeid for report in terminalreporter.stats.get("passed", ())])
    if not passed:
        return
    width = max(map(len, TABLES.APPS)) + 2
    terminalreporter.section("cases passed, of those that the cell can express")
    terminalreporter.write_line(" " * width + "".join(f"{mode:>19}" for mode in TABLES.MODES))
    for app in TABLES.APPS:
        cells = (f"{passed[mode, app]}/{len(TABLES.cases(mode, app, CASES))}" for mode in TABLES.MODES)
        terminalreporter.write_line(f"{app:{width}}" + "".join(f"{cell:>19}" for cell in cells))


@pytest.fixture(scope="session")
def processes(run_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The process of a server, started once."""
    started: dict[str, Any] = {}

    def get(server: str) -> Any:
        if server not in started:
            started[server] = run_backend(lambda: PROCESS.Process(server, tmp_path_factory.mktemp(server)))
        return started[server]

    return get


@pytest.fixture
def cell(processes: Callable[[str], Any], mode: str, app: str) -> Iterator[Any]:
    with closing(CELL.Cell(processes(TABLES.MODES[mode].process), mode, app)) as made:
        yield made


@pytest.fixture
def tables() -> Any:
    """``harness.tables``."""
    return TABLES


@pytest.fixture
def cases() -> dict[str, Callable[[Any], None]]:
    """All cases by their names."""
    return CASES
