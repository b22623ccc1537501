"""The servers that we run give each request a Context of its own."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from otelctx.cli.options import Options
from otelctx.cli.worker import _config
from otelctx.gateway.server import config
from otelctx.testing import FakeEngine

if "reset_contextvars" not in inspect.signature(uvicorn.Config).parameters:
    pytest.skip("this uvicorn can't", allow_module_level=True)


def test_the_worker_does_not_hand_a_connections_first_context_to_its_later_requests() -> None:
    engine: Any = FakeEngine()
    options = Options("tiny", "127.0.0.1", 0, 64, 1, "turns", None, "worker", 0, 1.0)
    assert _config(options, engine).reset_contextvars


def test_nor_does_the_gateway() -> None:
    gateway: Any = SimpleNamespace(options=SimpleNamespace(max_message=1024))
    assert config(gateway).reset_contextvars
