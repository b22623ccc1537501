"""What holds for every test: a clean environment, and no silent skip where real backends are required. What several
packages of tests need: providers that export into memory, and a tiny model."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

REQUIRED = os.environ.get("OTELCTX_E2E") == "required"
# Read by the tests themselves, never by the code under test.
KEPT = {"OTELCTX_E2E", "OTELCTX_CACHE_DIR"}

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

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


class Exports:
    """Providers of one's own, and what they have exported. ``options`` hand them to what takes providers."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.options: dict[str, Any] = {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self, kind: SpanKind | str | None = None) -> list[ReadableSpan]:
        """The spans that have ended, in the order of their ends; ``kind`` also by its name."""
        return [span for span in self.exporter.get_finished_spans() if kind in (None, span.kind, span.kind.name)]

    def span(self, kind: SpanKind | str | None = None) -> ReadableSpan:
        """The only one."""
        (found,) = self.spans(kind)
        return found

    def points(self, name: str) -> list[Any]:
        """The points of a metric, collected anew."""
        data = self.reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def durations(self, name: str = "http.client.request.duration") -> list[dict[str, Any]]:
        """Attributes of a histogram's points, one for each value recorded."""
        return [dict(point.attributes) for point in self.points(name) for _ in range(point.count)]

    def complaints(self, conventions: Any) -> list[str]:
        """What is not as the conventions and our table say."""
        return [*conventions.spans(self.spans()), *conventions.metrics(self.reader.get_metrics_data())]


@pytest.fixture(scope="session")
def make_exports() -> Callable[[], Exports]:
    return Exports


@pytest.fixture
def checked_exports(conventions: Any) -> Iterator[Exports]:
    """Whatever a test has its subjects do, what they export to here is as the conventions and our table say."""
    made = Exports()
    yield made
    assert made.complaints(conventions) == []


@pytest.fixture(scope="session")
def torch_on_one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and other tests need the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_tiny() -> Callable[[], tuple[Any, Any]]:
    """A random Llama, the same each time, and a byte-level tokenizer with a chat template; no file is read."""

    def make() -> tuple[Any, Any]:
        import torch
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: n for n, token in enumerate(["<|im_start|>", "<|im_end|>", *alphabet])}
        backend = Tokenizer(models.BPE(vocabulary, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|im_end|>",
            additional_special_tokens=["<|im_start|>"],
            chat_template=TEMPLATE,
        )
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.6,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return AutoModelForCausalLM.from_config(config).eval(), tokenizer

    return make


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
