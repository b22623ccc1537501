from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from otelctx import semconv

COLLECTOR = Path(__file__).parents[2] / "collector"
CONFIGS = sorted(COLLECTOR.glob("*.yaml"))
KNOWN = {*semconv.ATTRIBUTES, *semconv.EVENTS, *semconv.METRICS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_name_of_ours_in_a_configuration_is_in_the_table(path: Path) -> None:
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    names = set(re.findall(r"\botelctx\.[a-z_.]+", text))
    assert names <= KNOWN, names - KNOWN


def test_the_memory_limiter_is_first_and_redaction_comes_before_anything_leaves() -> None:
    config = yaml.safe_load((COLLECTOR / "otelctx-collector.yaml").read_text())
    pipelines = config["service"]["pipelines"]
    assert all(p["processors"][0] == "memory_limiter" for p in pipelines.values())
    assert "redaction/secrets" in pipelines["traces/in"]["processors"]
    assert "otlp" in pipelines["traces/in"]["receivers"]
    assert pipelines["traces/sample"]["receivers"] == ["forward/sample"]


def test_one_version_throughout() -> None:
    config = yaml.safe_load((COLLECTOR / "builder-config.yaml").read_text())
    version = config["dist"]["version"]
    for part in ("receivers", "processors", "exporters", "extensions", "connectors"):
        assert all(item["gomod"].endswith(f" v{version}") for item in config[part])
    assert f"@v{version}" in (COLLECTOR.parent / "scripts" / "backends").read_text()
