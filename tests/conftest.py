"""What holds for every test: a clean environment, and no silent skip where real backends are required."""

from __future__ import annotations

import os
from collections.abc import Generator

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
