"""The middleware of a worker whose service has a shared tier."""

from __future__ import annotations

import base64
from time import time
from typing import Any

from otelctx.context.current import ContextKey, current_scope, session
from otelctx.delta.limits import Limits
from otelctx.exchange import client
from otelctx.exchange.node import Node
from otelctx.exchange.shared import SharedTier
from otelctx.settings import Settings

SETTINGS = Settings(keys="1:" + base64.b64encode(b"k" * 32).decode())
TIER = ContextKey("asgi.shared.tier", str)


class Memory(dict[str, bytes]):
    async def load(self, key: str) -> bytes | None:
        return self.get(key)

    async def store(self, key: str, value: bytes, ttl: float) -> None:
        self[key] = value


def worker(memory: Memory) -> Node:
    return Node(SETTINGS, shared=SharedTier(memory, Limits(shared_deadline=60.0)))


async def test_a_base_of_another_worker_is_found_before_the_application_runs(rig: Any) -> None:
    """And what the tier has lost is refused as it would be without one."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        here = current_scope()
        assert here is not None
        seen.append((here.source, here.incomplete, TIER.get()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    memory, caller, told = Memory(), Node(SETTINGS), []
    first = worker(memory)
    workers = [first, first, first, worker(memory), worker(Memory())]
    with session("s1"):
        TIER.set("gold")
        for now, node in enumerate(workers):
            to = rig(app, node=node)
            exchange = client.begin(
                caller, scheme="http", host="localhost", port=80, method="POST", path="/", body=0, now=now, unix=time()
            )
            response = await to.request("POST", "/", dict(exchange.headers))
            told.append((exchange.kind, response.status, to.span.attributes["otelctx.frame.kind"]))
            acks = [value for name, value in response.messages[0]["headers"] if name == b"otelctx-ack"]
            exchange.close(response.status, acks, now, time())
            assert node.shared is not None
            await node.shared.close()
    assert told == [("full", 200, "full")] * 3 + [("ref", 200, "ref"), ("ref", 412, "ref")]
    assert seen == [("frame", False, "gold")] * 4
