"""The configurations name what exists, in an order that protects: read as data, without the binaries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otelctx import semconv

COLLECTOR = Path(__file__).parents[2] / "collector"
CONFIGS = sorted(COLLECTOR.glob("*.yaml"))
KNOWN = {*semconv.ATTRIBUTES, *semconv.EVENTS, *semconv.METRICS}


@pytest.fixture(scope="module")
def config() -> Any:
    return yaml.safe_load((COLLECTOR / "otelctx-collector.yaml").read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_name_of_ours_in_a_configuration_is_in_the_table(path: Path) -> None:
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    names = set(re.findall(r"\botelctx\.[a-z_.]+", text))
    assert names <= KNOWN, names - KNOWN


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_variable_has_a_default_and_is_explained(path: Path) -> None:
    text = path.read_text()
    for name, default in re.findall(r"\$\{env:(\w+)(:-[^}]*)?\}", text):
        assert default, name
        assert re.search(rf"^#   {name} ", text, re.M), name


def test_the_memory_limiter_is_first_and_redaction_comes_before_anything_leaves(config: Any) -> None:
    pipelines = config["service"]["pipelines"]
    assert all(p["processors"][0] == "memory_limiter" for p in pipelines.values())
    order = pipelines["traces/in"]["processors"]
    assert order.index("redaction/secrets") < order.index("transform/limit")
    assert pipelines["traces/in"]["exporters"] == ["span_metrics", "forward/sample"]
    assert pipelines["traces/sample"]["receivers"] == ["forward/sample"]
    assert "redaction/secrets" in pipelines["logs"]["processors"]


def test_what_decides_about_a_trace_survives_the_limits(config: Any) -> None:
    policies = config["processors"]["tail_sampling"]["policies"]
    deciding = {p["boolean_attribute"]["key"] for p in policies if p["type"] == "boolean_attribute"}
    assert deciding == {semconv.OVERFLOW, semconv.TRUNCATED, semconv.DEGRADED}
    groups = {g["context"]: g["statements"] for g in config["processors"]["transform/limit"]["trace_statements"]}
    (limit,) = (s for s in groups["span"] if s.startswith("limit("))
    assert all(s.split("(")[1].startswith(f"{context}.") for context, group in groups.items() for s in group)
    assert deciding <= set(re.findall(r'"([^"]+)"', limit))


def test_events_that_keep_a_trace_are_those_about_the_window(config: Any) -> None:
    policies = {p["name"]: p for p in config["processors"]["tail_sampling"]["policies"]}
    conditions = policies["events"]["ottl_condition"]["spanevent"]
    assert {re.findall(r'"([^"]+)"', c)[0] for c in conditions} == {
        semconv.EVENT_OVERFLOW,
        semconv.EVENT_TRUNCATION,
        semconv.EVENT_EVICTION,
        semconv.EVENT_DEGRADATION,
    }


def test_redaction_by_name_masks_secrets_and_none_of_our_own(config: Any) -> None:
    patterns = [re.compile(p) for p in config["processors"]["redaction/secrets"]["blocked_key_patterns"]]

    def masked(key: str) -> bool:
        return any(p.fullmatch(key) for p in patterns)

    assert masked("http.request.header.authorization")
    assert masked("x-api-key")
    gen_ai = {value for name, value in vars(semconv).items() if name.startswith("GEN_AI_") and isinstance(value, str)}
    assert not [key for key in {*semconv.ATTRIBUTES, *gen_ai, *semconv.STATIC_TABLE.values()} if masked(key)]


def test_one_version_throughout() -> None:
    config = yaml.safe_load((COLLECTOR / "builder-config.yaml").read_text())
    version = config["dist"]["version"]
    for part in ("receivers", "processors", "exporters", "extensions", "connectors"):
        assert all(item["gomod"].endswith(f" v{version}") for item in config[part])
    assert f"@v{version}" in (COLLECTOR.parent / "scripts" / "backends").read_text()
