"""One uvicorn in a process of its own, and a client for one connection to it.

``python -m benchmarks._uvicorn NAME HTTP`` serves what is called NAME in :mod:`benchmarks._served` by uvicorn's
implementation HTTP of the protocol, prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType

from benchmarks.harness import MissingPeer

__all__ = ["Connection", "Server"]


class Server(AbstractContextManager["Server"]):
    """Starts when it is made, and ends with the block."""

    def __init__(self, name: str, http: str = "httptools") -> None:
        command = [sys.executable, "-m", "benchmarks._uvicorn", name, http]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._name = name

    @cached_property
    def port(self) -> int:
        """Waits until it listens. Raises :class:`~benchmarks.harness.MissingPeer` if it does not start."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MissingPeer(f"a uvicorn that serves {self._name!r} did not start; standard error says why")
        return int(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process:  # closes its pipes and waits for it
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()


class Connection(AbstractContextManager["Connection"]):
    """One kept-alive connection that sends the same request to different paths."""

    def __init__(self, port: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self._rest = b"".join(b"%b: %b\r\n" % line for line in headers) + b"\r\n" + body
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, path: str) -> bytes:
        """The body of the answer, which says its length. Raises ``ConnectionError`` if the server hangs up."""
        self._socket.sendall(b"POST %b HTTP/1.1\r\n%b" % (path.encode(), self._rest))
        got = b""
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._read()
        length = int(got[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(got) < end + 4 + length:
            got += self._read()
        return got[end + 4 :]

    def _read(self) -> bytes:
        read = self._socket.recv(65536)
        if not read:
            raise ConnectionError("the server has closed the connection")
        return read


async def _serve(name: str, http: str) -> None:
    import uvicorn

    from benchmarks._served import application

    config = uvicorn.Config(
        application(name), port=0, http=http, loop="asyncio", lifespan="off", access_log=False, log_level="error"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        if serving.done():
            return await serving
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
