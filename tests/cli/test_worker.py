"""What the served engine is made of: the settings reach it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from otelctx.cli import worker
from otelctx.cli.options import Options
from otelctx.cli.saying import Say
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.settings import CaptureContent, Settings


@pytest.mark.parametrize("asked", get_args(CaptureContent))
def test_content_goes_where_the_standard_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, asked: CaptureContent
) -> None:
    made: dict[str, Any] = {}
    loaded = SimpleNamespace(model=None, tokenizer=None, name="tiny", model_max=64, eos_ids=frozenset())
    monkeypatch.setattr(worker, "load", lambda *args, **kwargs: loaded)
    monkeypatch.setattr(worker, "TransformersEngine", lambda *args, **kwargs: made.update(kwargs))
    options = Options("tiny", "127.0.0.1", 0, 64, 1, "turns", None, "worker", 0, 1.0)
    worker._engine(options, Settings(capture_content=asked), Say())
    assert made["capture_content"] == asked


def test_the_target_for_the_first_token_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    loaded = SimpleNamespace(model=None, tokenizer=None, name="tiny", model_max=64, eos_ids=frozenset())
    monkeypatch.setattr(worker, "load", lambda *args, **kwargs: loaded)
    monkeypatch.setattr(worker, "TransformersEngine", lambda *args, **kwargs: made.update(kwargs))
    options = Options("tiny", "127.0.0.1", 0, 64, 1, "turns", None, "worker", 0, 1.0, ttft_target=2.5)
    worker._engine(options, Settings(), Say())
    assert made["pressure"].ttft == 2.5


def test_an_idle_connection_outlives_those_of_clients() -> None:
    """httpx and OpenAI's client end one after 5 s, aiohttp after 15. Where the server does it first, a request that is
    on its way just then is lost."""
    options = Options("tiny", "127.0.0.1", 0, 64, 1, "turns", None, "worker", 0, 1.0)
    engine = SimpleNamespace(name="tiny", window=64)
    assert worker._config(options, cast("TransformersEngine", engine)).timeout_keep_alive >= 60
