"""``python -m benchmarks._sse PORT``: the worker behind the proxies, which costs as little as it can.

``/probe`` answers with five events at once. ``/hold/SECONDS`` is a stream that has an event every so many seconds, at a
moment of its own, until the client goes.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Final

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
CHUNK: Final = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
PROBE: Final = HEAD + CHUNK * 5 + b"0\r\n\r\n"
OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Worker(asyncio.Protocol):
    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1]
        if path == b"/probe":
            self._transport.write(PROBE)
        elif path.startswith(b"/hold/"):
            self._transport.write(HEAD + CHUNK)
            self._later(float(path.rpartition(b"/")[2]), random.random())
        else:
            self._transport.write(OK)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, period: float, share: float = 1.0) -> None:
        self._timer = asyncio.get_running_loop().call_later(period * share, self._event, period)

    def _event(self, period: float) -> None:
        self._transport.write(CHUNK)
        self._later(period)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
