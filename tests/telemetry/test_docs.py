"""docs/telemetry.md says what the table says."""

from __future__ import annotations

import re

import pytest

from otelctx import semconv
from otelctx.semconv.model import Metric, uses
from scripts.telemetry_docs.page import PATH, page
from scripts.telemetry_docs.prometheus import label, series


def test_the_committed_page_is_the_generated_one() -> None:
    assert PATH.read_text() == page(), "run: python -m scripts.telemetry_docs"


def test_every_name_of_the_table_is_on_the_page() -> None:
    text = page()
    for name in (
        *semconv.EVENTS,
        *semconv.STANDARD_EVENTS,
        *semconv.METRICS,
        *(s.name for s in semconv.SPANS.values()),
    ):
        assert f"### `{name}`" in text
    for row in semconv.ATTRIBUTES.values():
        assert f"| `{row.key}{'.<name>' if row.template else ''}` | {row.type} |" in text


def test_every_series_that_the_page_shows_in_a_query_exists() -> None:
    known = {name for metric in semconv.METRICS.values() for name in series(metric)}
    for block in re.findall(r"```promql\n(.*?)```", page(), re.S):
        shown = set(re.findall(r"[a-z_]+(?=\[)", block))
        assert shown
        assert shown <= known


@pytest.mark.parametrize(
    ("metric", "becomes"),
    [
        (
            Metric("http.server.request.duration", "histogram", "s", "", uses()),
            "http_server_request_duration_seconds_bucket",
        ),
        (Metric("otelctx.overflows", "counter", "{event}", "", uses()), "otelctx_overflows_total"),
        (Metric("otelctx.context.frame.bytes", "counter", "By", "", uses()), "otelctx_context_frame_bytes_total"),
        (Metric("otelctx.kv.bytes", "gauge", "By", "", uses()), "otelctx_kv_bytes"),
        (Metric("otelctx.arena.fragmentation", "gauge", "1", "", uses()), "otelctx_arena_fragmentation_ratio"),
        (Metric("otelctx.pressure.ratio", "gauge", "1", "", uses()), "otelctx_pressure_ratio"),
        (Metric("things.total", "counter", "1", "", uses()), "things_total"),
        (
            Metric("http.server.active_requests", "updowncounter", "{request}", "", uses()),
            "http_server_active_requests",
        ),
    ],
)
def test_names_become_what_prometheus_translator_makes_of_them(metric: Metric, becomes: str) -> None:
    """https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/"""
    found = series(metric)
    assert found[0] == becomes
    assert len(found) == (3 if metric.kind == "histogram" else 1)


def test_labels_are_keys_with_underscores() -> None:
    assert label("http.response.status_code") == "http_response_status_code"
