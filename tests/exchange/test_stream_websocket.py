"""The example in the module of ``StreamLink``: Starlette and the websockets library, one link at each end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from time import sleep
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect

from otelctx.context.current import REGISTRY, ContextKey, UpKey, session
from otelctx.exchange.node import Node
from otelctx.exchange.stream import StreamLink
from otelctx.settings import Settings

KEYS = "1:" + "QUJD" * 11 + "QUI="
TIER = ContextKey("stream.tier", str)
SEAT = ContextKey("stream.seat", int)
SPENT = UpKey("stream.spent", int, rule="sum")


def _started(server: uvicorn.Server) -> None:
    while not server.started:
        sleep(0.002)


async def test_over_a_real_websocket_both_ways_through_a_lost_base() -> None:
    node = Node(Settings(keys=KEYS), registry=REGISTRY)
    links: list[StreamLink] = []

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        link = StreamLink(node)
        links.append(link)
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                received = link.decode(await socket.receive_bytes())
                body = await socket.receive_text()
                if received.reply is not None:
                    await socket.send_bytes(received.reply)
                if received.control:
                    continue
                with received.entered(), SEAT.bound(len(body)):
                    answer = f"{TIER.get()}/{received.scope.incomplete}"
                    SPENT.record(len(body))
                    told = link.answer(received)
                    if told is not None:
                        await socket.send_bytes(told)
                    await link.asend(socket.send_bytes)
                    await socket.send_text(answer)

    app = Starlette(routes=[WebSocketRoute("/", endpoint)])
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="websockets-sansio")
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets})
    thread.start()
    await asyncio.to_thread(_started, server)
    try:
        url = f"ws://127.0.0.1:{sockets[0].getsockname()[1]}/"
        async with connect(url, proxy=None) as channel:
            await _converse(channel, StreamLink(Node(Settings(keys=KEYS), registry=REGISTRY)), links)
    finally:
        server.should_exit = True
        thread.join()


async def _converse(channel: Any, link: StreamLink, links: list[StreamLink]) -> None:
    sizes = []

    async def ask(body: str) -> tuple[Any, Any, str]:
        async def put(data: bytes) -> None:
            sizes.append(len(data))
            await channel.send(data)
            await channel.send(body)

        await link.asend(put)
        while True:
            received = link.decode(await channel.recv())
            if not received.control:
                with received.entered():
                    return await channel.recv(), SEAT.get(), received.scope.source

    with session("ws-1"), TIER.bound("gold " * 10):
        for body in ("one", "three"):
            assert await ask(body) == ("gold " * 10 + "/False", len(body), "frame")
        assert SPENT.get() == len("one") + len("three")
        assert sizes[1] < sizes[0]
        links[0].reset()  # as a server does that has dropped what it kept
        assert await ask("x") == ("None/True", 1, "frame")
        assert await ask("x") == ("gold " * 10 + "/False", 1, "frame")
        assert sizes[3] == sizes[0]
