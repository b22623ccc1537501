"""The relay in front of the collector: passes on, refuses, or swallows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from scripts.soak.relay import Relay


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """In front of a server that sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = Relay()
    await relay.start()
    relay.target = server.sockets[0].getsockname()
    yield relay
    await relay.close()
    server.close()
    await server.wait_closed()


async def ask(relay: Relay) -> bytes | None:
    """What comes back for a word; ``None`` if nothing does in a fifth of a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    try:
        writer.write(b"hello")
        async with asyncio.timeout(0.2):
            return await reader.read(5)
    except TimeoutError:
        return None
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_it_passes_on_both_ways(relay: Relay) -> None:
    assert await ask(relay) == b"hello"


async def test_it_refuses_and_it_swallows_until_it_is_told_otherwise(relay: Relay) -> None:
    await relay.switch("refuse")
    assert await ask(relay) == b""
    await relay.switch("swallow")
    assert await ask(relay) is None
    await relay.switch("through")
    assert await ask(relay) == b"hello"


async def test_a_switch_ends_the_connections_that_there_are(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    writer.write(b"hello")
    assert await reader.read(5) == b"hello"
    await relay.switch("swallow")
    with suppress(ConnectionError):  # a reset is an end too
        assert await reader.read(5) == b""
    writer.transport.abort()
