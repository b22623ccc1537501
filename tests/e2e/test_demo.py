"""The demo through the user's own collector, with one counter altered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(1200)]

SERVICES = {"client", "frontend", "worker"}


def test_through_the_users_own_collector_and_one_counter_altered(jaeger: Any, collector: Any) -> None:
    """The same run through the real collector to the real Jaeger; and with one token counted too many it must fail,
    by that figure alone."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    result = subprocess.run(
        [sys.executable, "-m", "otelctx.cli", "demo", "--jaeger-url", jaeger.url, "--tamper", "output tokens"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=800,
        env=os.environ | environment,
    )
    wrong = [line for line in result.stdout.splitlines() if line.startswith("✗")]
    assert result.returncode == 1
    assert len(wrong) == 1, result.stdout[-3000:]
    found = re.fullmatch(r"✗ turn 1: output tokens: counted (\d+), seen (\d+)", wrong[0])
    assert found is not None
    assert int(found[1]) == int(found[2]) + 1
    links = re.findall(rf"{re.escape(jaeger.url)}/trace/([0-9a-f]{{32}})", result.stdout)
    assert len(set(links)) == 11
    for trace_id in links:
        assert {span["service"] for span in jaeger.trace(trace_id)} == SERVICES
