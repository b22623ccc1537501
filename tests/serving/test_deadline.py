"""Who waits for an answer for so long gets one that ends by then, over a real server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from otelctx.clients.dispatch import instrument
from otelctx.context.current import session
from otelctx.exchange.node import Node
from otelctx.serving.parse import Caller
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

KEYS = "1:" + "QUJD" * 12
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("body", "caller", "within"),
    [(None, None, None), (5.0, None, 5.0), (None, 2.0, 2.0), (5.0, 2.0, 2.0), (1.0, 2.0, 1.0), (5.0, 0.0, 0.0)],
)
def test_the_shorter_of_the_bodys_and_the_callers_counts(
    body: float | None, caller: float | None, within: float | None
) -> None:
    assert Caller("anonymous", timeout=caller).within(body) == within


@pytest.mark.parametrize(
    ("route", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "fake", "prompt": "hello"})]
)
def test_the_callers_deadline_is_the_turns(served: Any, route: str, body: dict[str, Any]) -> None:
    engine = FakeEngine()
    node, own = Node(Settings(keys=KEYS)), Node(Settings(keys=KEYS))
    with served(engine, node=node) as url, httpx.Client(trust_env=False, timeout=60) as plain:
        stranger = httpx.post(url + route, json=body, headers={"otelctx-timeout-ms": "1"}, trust_env=False)
        assert stranger.status_code == 200
        client = instrument(plain, node=own)
        for timeout in (None, 30.0, 300.0):
            with session("chat-1", timeout=timeout):
                sent = {**body, "otelctx": {"timeout": 60}}
                assert client.post(url + route, json=sent).status_code == 200
    assert engine.turns[0].deadline is None
    unbounded, nearer, farther = (turn.deadline for turn in engine.turns[1:])
    assert (unbounded, farther) == (60.0, 60.0)
    assert nearer is not None
    assert 25 < nearer < 30
