"""No lock of ours is held while somebody else's code is called: it may call back, or wait for one that does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.clients.attempt import Head, Party, start
from otelctx.clients.target import Target
from otelctx.context.current import session
from otelctx.exchange.node import Node


class Calling(SpanProcessor):
    """Another SDK component, or a lock of gevent's, that comes back to us from inside."""

    def __init__(self) -> None:
        self.call: Callable[[], None] = lambda: None
        self.calls = 0
        self._inside = False

    def _back(self) -> None:
        if not self._inside:
            self._inside = True
            try:
                self.calls += 1
                self.call()
            finally:
                self._inside = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._back()

    def on_end(self, span: Any) -> None:
        self._back()


class Echo(TextMapPropagator):
    def __init__(self, calling: Calling) -> None:
        self._calling = calling

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        self._calling._back()
        return otel_context.Context()

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        self._calling._back()

    @property
    def fields(self) -> set[str]:
        return {"host"}


@pytest.fixture
def calling() -> Iterator[Calling]:
    before = propagate.get_global_textmap()
    made = Calling()
    propagate.set_global_textmap(Echo(made))
    yield made
    propagate.set_global_textmap(before)


def test_whoever_is_called_may_call_back_at_once(calling: Calling, node: Callable[..., Node]) -> None:
    caller, callee = node(), node()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(calling)
    party = Party(caller, tracers)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    served = ContextMiddleware(app, node=callee, tracer_provider=tracers)

    def request() -> None:
        target = Target.of(
            method="POST", scheme="http", host="localhost", port=80, raw_path=b"/", userinfo=False, body=1,
            headers=[], sent=0,
        )  # fmt: skip
        attempt = start(party, target)
        lines = attempt.headers([(b"host", b"localhost")])
        acks: list[bytes] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            acks.extend(value for name, value in message.get("headers", ()) if name == b"otelctx-ack")

        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "scheme": "http", "headers": lines}
        with pytest.raises(StopIteration):
            served(scope, receive, send).send(None)
        attempt.answered(Head(200, "1.1", acks, False))
        attempt.end()

    calling.call = request
    done = threading.Event()

    def run() -> None:
        with session("s1"):
            for _ in range(5):
                request()
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert done.wait(60), f"a lock is held: {sys._current_frames()[thread.ident or 0].f_code}"
    thread.join()
    assert calling.calls > 20
