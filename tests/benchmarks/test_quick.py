"""Each benchmark runs, at a fraction of its size, and prints what it promises. No figure is looked at: here they mean
nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from benchmarks.harness import MissingPeer, Report


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Other tests need the cores."""
    torch: Any = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(report: Report, name: str, without: frozenset[str] = frozenset()) -> None:
    """Every target has a ratio that is a positive number, and the line is valid JSON."""
    parsed = json.loads(report.line())
    assert parsed["benchmark"] == name
    assert parsed["targets"]
    assert set(parsed["targets"]) - set(parsed["ratios"]) == without
    assert all(math.isfinite(value) and value > 0 for value in parsed["ratios"].values())
    assert all(parsed["options"].values())


def test_delta() -> None:
    report = import_module("benchmarks.delta").run(True)
    check(report, "delta")
    assert not report.missing
    # Sizes, unlike times, are the same every time.
    assert report.ratios["bytes"] < 1
    assert report.figures["mixed_full_share"] < 1


def test_delta_says_that_hpack_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import delta

    def missing(*packages: str) -> str:
        if "hpack" in packages:
            raise MissingPeer("hpack is not installed")
        return "1.0"

    monkeypatch.setattr(delta, "versions", missing)
    report = delta.run(True)
    check(report, "delta", frozenset({"hpack_16", "hpack_256"}))
    assert "hpack" in report.missing
    assert not report.ok


@pytest.mark.e2e
def test_gateway() -> None:
    report = import_module("benchmarks.gateway").run(True)
    if report.missing:
        pytest.skip(f"NO BACKEND: {report.missing}")
    check(report, "gateway")


@pytest.mark.model
@pytest.mark.usefixtures("one_thread")
def test_batch() -> None:
    report = import_module("benchmarks.batch").run(True)
    check(report, "batch")
    assert not report.missing


@pytest.mark.model
@pytest.mark.usefixtures("one_thread")
def test_turns_and_its_optional_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import turns

    def missing(window: int, threads: int) -> None:
        raise MissingPeer("llama-cpp-python is not installed")

    monkeypatch.setattr(turns, "LlamaCpp", missing)
    report = turns.run(True)
    check(report, "turns", frozenset({"llamacpp"}))
    assert list(report.missing) == ["llama.cpp"]
    assert not report.ok


@pytest.mark.model
def test_guard() -> None:
    report = import_module("benchmarks.guard").run(True)
    # Verdicts, unlike times, are right or wrong however small the sample.
    assert report.ratios.pop("wrong") == 0
    check(report, "guard", frozenset({"wrong"}))
    assert not report.missing
    assert 0 < report.figures["refused"] < report.figures["conversations"]


@pytest.mark.model
def test_serve() -> None:
    report = import_module("benchmarks.serve").run(True)
    check(report, "serve")
    assert not report.missing
