"""The tap passes bytes on unchanged, and a reset as a reset."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from otelctx.demo.tap import Tap

REQUEST = (
    b"POST /v1 HTTP/1.1\r\nhost: x\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    b"otelctx: :QUJD:\r\ncontent-length: 3\r\n\r\nabc"
)
ANSWER = b"HTTP/1.1 400 Bad Request\r\notelctx-ack: :REVG:\r\ncontent-length: 2\r\n\r\nno"


async def tapped(handle: object) -> tuple[Tap, asyncio.Server]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)  # type: ignore[arg-type]
    tap = Tap("there")
    await tap.start()
    tap.target = server.sockets[0].getsockname()[:2]
    return tap, server


async def test_what_goes_by_is_passed_on_and_kept() -> None:
    got = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readexactly(len(REQUEST)))
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    tap, server = await tapped(handle)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(tap.url.rsplit(":", 1)[1]))
    writer.write(REQUEST)
    assert await reader.read() == ANSWER
    writer.close()
    await tap.close()
    server.close()
    assert got == [REQUEST]
    (exchange,) = tap.of("0af7651916cd43dd8448eb211c80319c")
    assert (exchange.hop, exchange.status, exchange.frame, exchange.ack) == ("there", 400, ":QUJD:", ":REVG:")
    assert tap.resets == 0


async def test_a_reset_arrives_as_a_reset() -> None:
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(1)
            writer.write(b"x")
            await reader.read()
            ended.set_result(None)
        except ConnectionResetError as error:
            ended.set_result(error)
        finally:
            writer.close()

    tap, server = await tapped(handle)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(tap.url.rsplit(":", 1)[1]))
    writer.write(b"a")
    assert await reader.read(1) == b"x"
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    assert isinstance(await asyncio.wait_for(ended, 60), ConnectionResetError)
    assert tap.resets == 1
    await tap.close()
    server.close()


async def test_without_a_target_the_connection_is_closed() -> None:
    tap = Tap("there")
    with pytest.raises(RuntimeError, match="not been started"):
        _ = tap.url
    await tap.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(tap.url.rsplit(":", 1)[1]))
    assert await reader.read() == b""
    writer.close()
    await tap.close()
