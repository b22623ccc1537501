"""Whether another ASGI instrumentation is around a request, by the word it leaves, and never by a span left over."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otelctx.asgi.others import STARLETTE, other_instrumentor, outside


@pytest.mark.parametrize(
    ("native", "word", "by", "expected"),
    [
        (True, True, "starlette", True),
        (True, False, "starlette", False),
        (False, True, "starlette", False),
        (True, True, "somebody", False),
    ],
)
def test_starlettes_own_is_around_us_if_it_says_so_and_its_span_is_current(
    native: bool, word: bool, by: str, expected: bool
) -> None:
    scope: dict[str, Any] = {STARLETTE: True} if word else {}
    with TracerProvider(shutdown_on_exit=False).get_tracer(by).start_as_current_span("GET"):
        assert outside(scope, native=native) is expected
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(("name", "cls"), [("fastapi", "FastAPIInstrumentor"), ("starlette", "StarletteInstrumentor")])
@pytest.mark.parametrize("active", [True, False])
def test_an_instrumentor_is_told_of_if_it_is_active(
    name: str, cls: str, active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fastapi", "starlette"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.instrumentation.{module}", SimpleNamespace())
    instrumentor = SimpleNamespace(is_instrumented_by_opentelemetry=active)
    found = SimpleNamespace(**{cls: lambda: instrumentor})
    monkeypatch.setitem(sys.modules, f"opentelemetry.instrumentation.{name}", found)
    assert other_instrumentor(object()) == (f"opentelemetry-instrumentation-{name}" if active else None)
