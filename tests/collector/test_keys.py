"""Every key in what is shipped beside the code is in the table: configurations, Prometheus' rules, boards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelctx import semconv
from scripts.telemetry_docs.check import queries, unknown_keys, unknown_names

COLLECTOR = Path(__file__).parents[2] / "collector"
# Whatever is put there later is looked at as well.
FILES = sorted(p for p in COLLECTOR.rglob("*") if p.suffix in (".yaml", ".yml", ".json"))


def read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())


RECORDED = frozenset(name for path in FILES for name, _ in queries(read(path)) if name)


@pytest.fixture(scope="module")
def config() -> Any:
    return read(COLLECTOR / "otelctx-collector.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(COLLECTOR)))
def test_every_key_in_a_file_is_in_the_table(path: Path) -> None:
    assert unknown_keys(read(path)) == set()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(COLLECTOR)))
def test_every_series_and_label_in_a_query_is_made_by_something(path: Path) -> None:
    assert {query: unknown_names(query, RECORDED) for _, query in queries(read(path))} == {
        query: set() for _, query in queries(read(path))
    }


def test_dimensions_of_span_metrics_are_few_values_of_keys_that_spans_have(config: Any) -> None:
    dimensions = [d["name"] for d in config["connectors"]["span_metrics"]["dimensions"]]
    assert dimensions
    for key in dimensions:
        assert not semconv.ATTRIBUTES[key].unbounded, f"{key} would make a series of each value"
        assert any(key in span.attributes for span in semconv.SPANS.values())


def test_policies_ask_for_attributes_of_the_type_that_they_have(config: Any) -> None:
    types = {"boolean_attribute": "boolean", "string_attribute": "string", "numeric_attribute": "int"}
    policies = config["processors"]["tail_sampling"]["policies"]
    asked = [(p[p["type"]]["key"], types[p["type"]]) for p in policies if p["type"] in types]
    assert asked
    for key, kind in asked:
        assert semconv.ATTRIBUTES[key].type == kind
        assert any(key in span.attributes for span in semconv.SPANS.values())


def test_values_that_policies_name_are_among_those_that_there_are(config: Any) -> None:
    for policy in config["processors"]["tail_sampling"]["policies"]:
        if policy["type"] == "string_attribute":
            asked = policy["string_attribute"]
            assert set(asked["values"]) <= set(semconv.ATTRIBUTES[asked["key"]].values)


# the checks themselves


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ('attributes["otelctx.overflow"] == true', set()),
        ('attributes["otelctx.overflowed"] == true', {"otelctx.overflowed"}),
        ("gen_ai.system", {"gen_ai.system"}),
        ("http.status_code", {"http.status_code"}),
        ("http.request.header.x-tenant", set()),
        ("otelctx.overflow.count", {"otelctx.overflow.count"}),
        ("https://example.com/http.server", set()),
        ("service.name", set()),
    ],
)
def test_a_key_that_is_spelled_wrong_is_found_wherever_it_stands(text: str, unknown: set[str]) -> None:
    assert unknown_keys({"processors": [{"statements": [text]}]}) == unknown
    assert unknown_keys({text: 1}) == unknown


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("sum by (otelctx_reason) (rate(otelctx_overflows_total[5m])) > 0", set()),
        ("rate(otelctx_overflow_total[5m])", {"otelctx_overflow_total"}),
        ("sum by (session_id) (otelctx_sessions)", {"session_id"}),
        ('otelctx_requests_total{otelctx_outcome="error", gen_ai_request_model=~"$model"}', set()),
        ('otelctx_requests_total{outcome="error"}', {"outcome"}),
        ("histogram_quantile(0.95, sum by (le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))", set()),
        ("gen_ai_server_time_to_first_token_bucket", {"gen_ai_server_time_to_first_token_bucket"}),
        ('absent(up{job="otelctx-collector"}) or otelcol_exporter_queue_size / 2 > on(exporter) 0.8', set()),
        ("job:errors:ratio5m > 0.1 and job:nothing:ratio5m", {"job:nothing:ratio5m"}),
        ("rate(traces_span_metrics_calls_total{status_code='STATUS_CODE_ERROR'}[$__rate_interval] offset 1h)", set()),
    ],
)
def test_a_series_or_label_that_nothing_makes_is_found_in_a_query(query: str, unknown: set[str]) -> None:
    recorded = frozenset({"job:errors:ratio5m"})
    assert unknown_names(query, recorded) == unknown
    rules = {"groups": [{"rules": [{"alert": "A", "expr": query}, {"record": "a:b", "expr": query}]}]}
    board = {"panels": [{"panels": [{"targets": [{"expr": query}]}]}]}
    assert list(queries(rules)) == [("", query), ("a:b", query)]
    assert list(queries(board)) == [("", query)]
