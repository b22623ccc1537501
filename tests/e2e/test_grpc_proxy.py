"""gRPC behind nginx: the frame, the ack in both places, and the refusal get through."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from otelctx.context.current import ContextKey, UpKey, session
from otelctx.exchange.node import Node
from otelctx.grpc import interceptors
from otelctx.grpc.client import instrument
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e
KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
TIER = ContextKey("e2e.grpc.tier", str)
SPENT = UpKey("e2e.grpc.spent", int, rule="sum")


@contextmanager
def serving(frames: list[int], port: int = 0) -> Iterator[int]:
    """A server in a process that has just started, as far as its node goes."""

    def unary(request: bytes, context: Any) -> bytes:
        SPENT.record(3)
        return (TIER.get() or "none").encode()

    def stream(request: bytes, context: Any) -> Iterator[bytes]:
        for _ in range(3):
            SPENT.record(1)
            yield (TIER.get() or "none").encode()

    class Watch(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            frames.extend(len(value) for key, value in details.invocation_metadata if key == "otelctx-bin")
            return continuation(details)

    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(unary),
        "stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(
            pool,
            [grpc.method_handlers_generic_handler("test.Chat", handlers)],
            [Watch(), *interceptors(node=Node(Settings(keys=KEYS)))],
            [("grpc.so_reuseport", 0)],
        )
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield bound
        finally:
            server.stop(0).wait()


def test_context_goes_through_nginx_both_ways_and_survives_a_restart(start_nginx: Callable[[str], Any]) -> None:
    frames: list[int] = []
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        port = first.enter_context(serving(frames))
        nginx = start_nginx(f"listen 127.0.0.1:@spare@ http2; location / {{ grpc_pass grpc://127.0.0.1:{port}; }}")
        bare = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{nginx.spare}"))
        stack.enter_context(session("chat-1"))
        stack.enter_context(TIER.bound("gold"))
        channel = instrument(bare, node=Node(Settings(keys=KEYS)))
        unary, stream = channel.unary_unary("/test.Chat/unary"), channel.unary_stream("/test.Chat/stream")
        assert [unary(b"x") for _ in range(5)] == [b"gold"] * 5
        assert list(stream(b"x")) == [b"gold"] * 3
        assert SPENT.get() == 5 * 3 + 3, "in trailing metadata too, which HTTP/1.1 would lose"
        assert frames[4] < frames[0] == frames[5], "a REF, and a stream's FULL"
        first.close()
        stack.enter_context(serving(frames, port))
        assert unary(b"x") == b"gold"
        assert frames[6:] == [frames[4], frames[0]], "refused for want of a base, and sent again once"
        assert SPENT.get() == 5 * 3 + 3 + 3
