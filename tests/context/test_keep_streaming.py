"""A streamed response whose generator holds a span and a session, over a real server, read and left half-way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.context.current import current_scope, session
from otelctx.context.keep import keep_context
from otelctx.exchange.node import Node
from otelctx.settings import Settings


class App:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.left = asyncio.Event()
        self.sessions: list[str | None] = []
        self.asgi = FastAPI()
        self.asgi.add_middleware(ContextMiddleware, node=Node(Settings()), tracer_provider=provider)
        self.asgi.get("/stream")(self.stream)

    async def stream(self, endless: bool = False) -> StreamingResponse:
        with self.tracer.start_as_current_span("endpoint"):
            return StreamingResponse(keep_context(self.body(endless)))

    async def body(self, endless: bool) -> AsyncIterator[bytes]:
        try:
            with self.tracer.start_as_current_span("generate"), session("s-1"):
                for n in range(100_000 if endless else 3):
                    await asyncio.sleep(0)
                    with self.tracer.start_as_current_span("token") if n < 3 else contextlib.nullcontext():
                        scope = current_scope()
                        self.sessions.append(None if scope is None else scope.state.session_id)
                    yield b"x" * 1024
        finally:
            self.left.set()

    def one(self, name: str) -> Any:
        (span,) = [s for s in self.exporter.get_finished_spans() if s.name == name]
        return span


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", loop="asyncio"))
    listening = socket.create_server(("127.0.0.1", 0))  # who connects before it has started, waits
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@pytest.mark.parametrize("endless", [False, True], ids=["read to its end", "left half-way"])
async def test_span_and_session_of_a_streamed_generator(endless: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    async with served(app.asgi) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        query = "true" if endless else "false"
        head = f"GET /stream?endless={query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        if endless:
            await reader.readexactly(8192)
            writer.transport.abort()
        else:
            assert (await reader.read()).count(b"x" * 1024) == 3
        await app.left.wait()
        writer.close()
    generate, endpoint, server = app.one("generate"), app.one("endpoint"), app.one("GET /stream")
    assert generate.parent.span_id == endpoint.context.span_id
    assert endpoint.parent.span_id == server.context.span_id
    tokens = [s for s in app.exporter.get_finished_spans() if s.name == "token"]
    assert {span.parent.span_id for span in tokens} == {generate.context.span_id}
    assert set(app.sessions) == {"s-1"}
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
