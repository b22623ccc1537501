"""What holds for every test: a clean environment, and no silent skip where real backends are required. What several
packages of tests need: providers that export into memory, and a tiny model."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from hypothesis import settings
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from otelctx.testing.backends import Backend, Launch, free_ports

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
    """A developer's own settings must not change what a test sees, and neither may what another test has made of its
    own: the process's party is made anew, by whoever asks for it first."""
    for name in os.environ:
        if name.startswith(("OTEL_", "OTELCTX_")) and name not in KEPT:
            monkeypatch.delenv(name)
    nodes = sys.modules.get("otelctx.exchange.node")
    if nodes is not None:
        nodes.set_default_node(None)


def beside(path: str) -> ModuleType:
    """A module of the tests' own: no folder of theirs is a package."""
    name = path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


left = beside("leftovers.py")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(left.Guard(), "leftovers")


@pytest.fixture(scope="session")
def to_the_end(request: pytest.FixtureRequest) -> set[int]:
    """Ids of child processes that may outlive the module that has started them."""
    guard: Any = request.config.pluginmanager.get_plugin("leftovers")
    found: set[int] = guard.to_the_end
    return found


@pytest.fixture(scope="session")
def conventions() -> Any:
    """The conventions' tables as a checker: ``conventions.spans(ended) == []``, ``conventions.metrics(data) == []``."""
    return beside("conventions/checker.py")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Waits for what another thread or process does: a minute, since a machine may be busy with other things."""

    def wait(condition: Callable[[], Any], what: str = "it") -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about"
            time.sleep(0.005)

    return wait


@pytest.fixture
def refused() -> Iterator[str]:
    """The URL of nobody: its port is taken, so that nobody else may listen there meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class Command(Backend):
    """A server's command on a port that was free a moment ago, and on another one if it is not any more. ``url`` is
    where it answers, ``log`` what it says; once it is left, it has ended by itself."""

    def __init__(
        self,
        folder: Path,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[str], Mapping[str, str]],
        ready: Callable[[Command], bool] | None,
    ) -> None:
        self._folder, self._command, self._environment = folder, command, environment
        self._up = ready or Command.listens
        super().__init__(folder / "server.log")

    def plan(self) -> Launch:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        return Launch(
            list(self._command(self.port)),
            lambda: self._up(self),
            self._environment(self.url),
            folder=self._folder,
        )

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def get(self, path: str = "/", **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=120, **options)


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """``with serving(folder, lambda port: [...]) as server:`` a :class:`Command` that is up, by default once it
    listens; ``environment(url)`` is added to it. A failure shows the end of its log."""

    @contextmanager
    def run(
        folder: Path,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[str], Mapping[str, str]] = lambda url: {},
        ready: Callable[[Command], bool] | None = None,
    ) -> Iterator[Command]:
        with Command(folder, command, environment, ready) as server:
            try:
                yield server
            except BaseException as error:
                error.add_note(server.tail(3000))
                raise
        assert server.status != -9, f"it had to be killed\n{server.tail(3000)}"

    return run


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


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No providers are global, though another test may have had ``capture()`` set some for good."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", None)
    monkeypatch.setattr(_logs._internal, "_LOGGER_PROVIDER", None)


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
