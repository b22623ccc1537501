"""Our table against the conventions' and against the constants of the installed package: the same strings and rules."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating import attributes as incubating
from opentelemetry.semconv._incubating.metrics import http_metrics, rpc_metrics
from opentelemetry.semconv.metrics import http_metrics as stable_http_metrics

from otelctx import semconv

OF_CONVENTIONS = ("http", "rpc", "general")


def constants(package: Any) -> set[str]:
    found: set[str] = set()
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        found |= {
            v for k, v in vars(importlib.import_module(module.name)).items() if k.isupper() and isinstance(v, str)
        }
    return found


INSTALLED = constants(stable) | constants(incubating)
METRIC_NAMES = {
    value
    for module in (http_metrics, rpc_metrics, stable_http_metrics)
    for key, value in vars(module).items()
    if key.isupper() and isinstance(value, str)
}


@pytest.mark.parametrize("key", [k for k, a in semconv.ATTRIBUTES.items() if a.source in OF_CONVENTIONS])
def test_an_attribute_of_the_conventions_is_spelled_as_the_installed_package_has_it(key: str) -> None:
    assert key in INSTALLED


@pytest.mark.parametrize("key", [k for k, a in semconv.ATTRIBUTES.items() if a.source in OF_CONVENTIONS])
def test_what_we_call_stable_is_in_the_stable_part_of_the_package(key: str) -> None:
    assert (semconv.ATTRIBUTES[key].stability == "stable") == (key in constants(stable))


@pytest.mark.parametrize("name", [n for n, m in semconv.METRICS.items() if m.source in ("http", "rpc")])
def test_a_metric_of_the_conventions_is_spelled_as_the_installed_package_has_it(name: str) -> None:
    assert name in METRIC_NAMES


def test_no_name_of_our_own_stands_in_a_namespace_of_the_conventions(conventions: Any) -> None:
    own = [a.key for a in semconv.ATTRIBUTES.values() if a.source == "otelctx"]
    own += [m.name for m in semconv.METRICS.values() if m.source == "otelctx"]
    own += list(semconv.EVENTS)
    assert [name for name in own if not name.startswith("otelctx.")] == []
    assert "otelctx" not in conventions.NAMESPACES


@pytest.mark.parametrize("name", [s.id for s in semconv.SPANS.values() if s.source != "otelctx"])
def test_our_spans_have_what_the_conventions_require_and_nothing_of_theirs_that_they_do_not_know(
    conventions: Any, name: str
) -> None:
    row = conventions.SPANS[name.replace(semconv.SPAN_INFERENCE, "gen_ai.client.inference")]
    ours = semconv.SPANS[name].attributes
    for key in row["required"]:
        assert ours.get(key) == "required", key
    for key, level in ours.items():
        if key.split(".")[0] in conventions.NAMESPACES:
            template = f"{key}.*" if semconv.ATTRIBUTES[key].template else key
            assert any(template in row[found] for found in conventions.LEVELS), key
            assert level != "required" or key in (*row["required"], "rpc.method"), key


@pytest.mark.parametrize("name", [m.name for m in semconv.METRICS.values() if m.source != "otelctx"])
def test_our_metrics_are_the_conventions(conventions: Any, name: str) -> None:
    row, ours = conventions.METRICS[name], semconv.METRICS[name]
    assert (ours.kind, ours.unit) == (row["instrument"], row["unit"])
    assert list(ours.bounds) == row["bounds"] if "bounds" in row else True
    for key in row["required"]:
        assert ours.attributes.get(key) == "required", key
    for key in ours.attributes:
        assert any(key in row[level] for level in conventions.LEVELS), key


@pytest.mark.parametrize("name", semconv.METRICS)
def test_no_metric_has_an_attribute_with_values_without_number(name: str) -> None:
    for key in semconv.METRICS[name].attributes:
        assert not semconv.ATTRIBUTES[key].unbounded, key


@pytest.mark.parametrize("key", semconv.ATTRIBUTES)
def test_every_attribute_of_the_table_has_a_place(key: str) -> None:
    places = [*semconv.SPANS.values(), *semconv.EVENTS.values(), *semconv.STANDARD_EVENTS.values()]
    assert any(key in place.attributes for place in [*places, *semconv.METRICS.values()])


def test_every_attribute_that_something_refers_to_is_in_the_table() -> None:
    places: list[Any] = [*semconv.SPANS.values(), *semconv.EVENTS.values(), *semconv.STANDARD_EVENTS.values()]
    assert {key for place in [*places, *semconv.METRICS.values()] for key in place.attributes} <= set(
        semconv.ATTRIBUTES
    )
