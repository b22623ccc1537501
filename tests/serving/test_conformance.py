"""The server keeps to its own OpenAPI document: whatever is sent, nothing fails, and answers look as described."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode, checks

from otelctx.exchange.node import Node
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.serving.body import Limits
from otelctx.serving.openapi import template
from otelctx.serving.routes import routes
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

# The server runs in this process: a trace id that it draws meanwhile is no draw of the strategy's.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
KEY = {"authorization": "Bearer key"}
OPERATIONS = [
    (template(route.path), method)
    for route in routes(FakeEngine(), Limits(), version="0")
    for method in sorted(route.methods or ())
    if method != "HEAD"
]
# those that a body can be wrong for
TAKES = [operation for operation in OPERATIONS if operation[1] == "POST"]


@pytest.fixture(scope="module")
def document(served: Any) -> Iterator[Any]:
    # Whatever fits into the schema fits into this window.
    with served(FakeEngine(name="org/fake", window=10**9), node=Node(Settings())) as base:
        yield schemathesis.openapi.from_url(f"{base}/openapi.json")


def holds(operation: Any, mode: GenerationMode, excluded: Sequence[Any] = (), examples: int = 60) -> None:
    """Whatever is sent to ``operation``: no 500, and only statuses, headers, types and bodies that are described."""

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def check(case: Any) -> None:
        case.call_and_validate(headers=KEY, excluded_checks=list(excluded))

    check()


@pytest.fixture(scope="module")
def real(served: Any, tiny_model: Path) -> Iterator[Any]:
    """The same with a real model, whose window generated texts may well be too long for."""
    loaded = load(tiny_model, cache_dir=tiny_model)
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=64, rows=4, name="tiny", eos_ids=loaded.eos_ids)
    with served(engine, node=Node(Settings())) as base:
        yield schemathesis.openapi.from_url(f"{base}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_nothing_that_is_sent_makes_a_real_engine_fail(real: Any, path: str, mode: GenerationMode) -> None:
    holds(real[path]["POST"], mode, excluded=[checks.positive_data_acceptance], examples=25)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_what_a_description_allows_is_taken_and_answered_as_it_says(document: Any, path: str, method: str) -> None:
    holds(document[path][method], GenerationMode.POSITIVE)


@pytest.mark.parametrize(("path", "method"), TAKES)
def test_what_a_description_rules_out_is_refused_as_it_says(document: Any, path: str, method: str) -> None:
    holds(document[path][method], GenerationMode.NEGATIVE)
