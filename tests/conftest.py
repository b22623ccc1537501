"""What holds for every test: a clean environment, and no silent skip where real backends are required."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

REQUIRED = os.environ.get("OTELCTX_E2E") == "required"
# Read by the tests themselves, never by the code under test.
KEPT = {"OTELCTX_E2E", "OTELCTX_CACHE_DIR"}

# How long an example takes says more about the machine than about the code. Where everything is required, the same
# examples are tried each time; elsewhere new ones are.
settings.register_profile("suite", deadline=None, derandomize=REQUIRED)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not change what a test sees."""
    for name in os.environ:
        if name.startswith(("OTEL_", "OTELCTX_")) and name not in KEPT:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def conventions() -> Any:
    """The conventions' tables as a checker: ``conventions.spans(ended) == []``, ``conventions.metrics(data) == []``."""
    path = Path(__file__).parent / "conventions" / "checker.py"
    spec = importlib.util.spec_from_file_location("conventions_checker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where backends and weights are required, a skipped test of theirs is a failure."""
    report = yield
    needs = [m for m in ("e2e", "model") if item.get_closest_marker(m)]
    if REQUIRED and report.skipped and needs and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"OTELCTX_E2E=required, but this {needs[0]} test was skipped: {reason}"
    return report
