"""Each client that can be instrumented, behind one blocking interface: what holds for one shall hold for all."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otelctx.clients.dispatch import instrument
from otelctx.exchange.node import Node


class Reply(NamedTuple):
    status: int
    content: bytes


class Driver:
    """``refused``, ``cut`` and ``late`` are what ``error.type`` says of a refused connection, a body that breaks off
    and a head that does not come in time; ``raised`` is what the application gets for the second."""

    contribs: tuple[tuple[str, str], ...] = ()
    refused = cut = late = ""
    raised: type[Exception]

    def __init__(self, library: str, asynchronous: bool, seen: Any) -> None:
        self.library = import_module(library)
        self.asynchronous = asynchronous
        self.seen = seen
        self.clients: list[Any] = []
        self._runner = asyncio.Runner() if asynchronous else None

    def run(self, awaitable: Any) -> Any:
        """``awaitable``'s result; what a client without coroutines has done already is itself."""
        if not self.asynchronous:
            return awaitable

        async def wait() -> Any:
            return await awaitable

        assert self._runner is not None
        return self._runner.run(wait(), context=copy_context())

    def client(self, node: Node, **options: Any) -> Any:
        """``proxy`` is the URL of a proxy for everything, ``ca`` the file of a certificate to trust; with
        ``environment`` that of the process counts too. Other options are the library's."""
        made = self.plain(**options)
        seen = self.seen
        return instrument(made, node=node, tracer_provider=seen.tracers, meter_provider=seen.meters)

    def plain(self, *, environment: bool = False, ca: Path | None = None, **options: Any) -> Any:
        """The client before it is instrumented."""
        raise NotImplementedError

    def request(self, client: Any, method: str, url: str, **options: Any) -> Reply:
        """``content``, ``json``, ``headers`` (pairs), ``follow`` and ``timeout``, which is how long a read may take."""
        return self.start(client, method, url, **options)()

    def start(self, client: Any, method: str, url: str, **options: Any) -> Callable[[], Reply]:
        """What makes the request when it is called."""
        raise NotImplementedError

    def post(self, client: Any, url: str, **options: Any) -> Reply:
        return self.request(client, "POST", url, **options)

    def stream(self, client: Any, url: str, take: int | None, leave: BaseException | None = None) -> list[bytes]:
        """Read ``take`` chunks of a response, or all, and leave, perhaps by raising ``leave`` there."""
        raise NotImplementedError

    def open(self, client: Any, url: str) -> Any:
        """An open response, of which nothing has been read."""
        raise NotImplementedError

    def read(self, response: Any) -> bytes:
        raise NotImplementedError

    def forget(self) -> None:
        """After the application has dropped a response."""
        gc.collect()

    def body(self, chunks: list[bytes]) -> Any:
        """A request body that can be read once."""

        async def later() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        return later() if self.asynchronous else iter(chunks)

    def together(self, client: Any, url: str, times: int) -> list[int]:
        """So many requests at the same time, and their statuses."""
        with ThreadPoolExecutor(times) as pool:
            jobs = [pool.submit(copy_context().run, self.post, client, url) for _ in range(times)]
            return [job.result().status for job in jobs]

    def hang_up(self) -> None:
        """Close all clients, and with them their connections."""
        while self.clients:
            client = self.clients.pop()
            self.run(client.aclose() if hasattr(client, "aclose") else client.close())

    def close(self) -> None:
        self.hang_up()
        if self._runner is not None:
            self._runner.close()

    @contextmanager
    def instrumented(self) -> Iterator[None]:
        """OpenTelemetry's own instrumentations of this library are active."""
        others = []
        for module, name in self.contribs:
            found = pytest.importorskip(module, reason=f"no contrib instrumentation {module}")
            if not hasattr(found, name):
                pytest.skip(f"this version of {module} has no {name}")
            others.append(getattr(found, name)())
        for other in others:
            other.instrument(tracer_provider=self.seen.tracers)
        try:
            yield
        finally:
            for other in others:
                other.uninstrument()


class Httpx(Driver):
    def __init__(self, library: str, asynchronous: bool, seen: Any) -> None:
        super().__init__(library, asynchronous, seen)
        name = {"httpx": "HTTPXClientInstrumentor", "httpx2": "HTTPX2ClientInstrumentor"}[library]
        self.contribs = (("opentelemetry.instrumentation.httpx", name),)
        self.raised = self.library.RemoteProtocolError
        self.refused, self.cut = f"{library}.ConnectError", f"{library}.RemoteProtocolError"
        self.late = f"{library}.ReadTimeout"

    def plain(self, *, environment: bool = False, ca: Path | None = None, **options: Any) -> Any:
        cls = self.library.AsyncClient if self.asynchronous else self.library.Client
        verify = True if ca is None else ssl.create_default_context(cafile=ca)
        self.clients.append(cls(trust_env=environment, verify=verify, **{"timeout": 60, **options}))
        return self.clients[-1]

    def start(self, client: Any, method: str, url: str, follow: bool = False, **options: Any) -> Callable[[], Reply]:
        if "timeout" in options:
            options["timeout"] = self.library.Timeout(60, read=options["timeout"])

        def make() -> Reply:
            response = self.run(client.request(method, url, follow_redirects=follow, **options))
            return Reply(response.status_code, response.content)

        return make

    def stream(self, client: Any, url: str, take: int | None, leave: BaseException | None = None) -> list[bytes]:
        chunks: list[bytes] = []

        async def astream() -> None:
            async with client.stream("POST", url) as response:
                if take != 0:
                    async for chunk in response.aiter_raw():
                        chunks.append(chunk)
                        if len(chunks) == take:
                            break
                if leave is not None:
                    raise leave

        def stream() -> None:
            with client.stream("POST", url) as response:
                if take != 0:
                    for chunk in response.iter_raw():
                        chunks.append(chunk)
                        if len(chunks) == take:
                            break
                if leave is not None:
                    raise leave

        self.run(astream()) if self.asynchronous else stream()
        return chunks

    def open(self, client: Any, url: str) -> Any:
        return self.run(client.send(client.build_request("POST", url), stream=True))

    def read(self, response: Any) -> bytes:
        return bytes(self.run(response.aread() if self.asynchronous else response.read()))

    def together(self, client: Any, url: str, times: int) -> list[int]:
        if not self.asynchronous:
            return super().together(client, url, times)

        async def gather() -> list[int]:
            return [r.status_code for r in await asyncio.gather(*[client.post(url) for _ in range(times)])]

        return list(self.run(gather()))


class Requests(Driver):
    contribs = (
        ("opentelemetry.instrumentation.requests", "RequestsInstrumentor"),
        ("opentelemetry.instrumentation.urllib3", "URLLib3Instrumentor"),
    )
    refused, cut = "requests.exceptions.ConnectionError", "urllib3.exceptions.ProtocolError"
    late = "requests.exceptions.ReadTimeout"

    def plain(self, *, environment: bool = False, ca: Path | None = None, proxy: str | None = None) -> Any:
        self.raised = self.library.exceptions.ChunkedEncodingError
        made = self.library.Session()
        made.trust_env = environment
        made.verify = True if ca is None else str(ca)
        made.proxies = {} if proxy is None else {"http": proxy, "https": proxy}
        self.clients.append(made)
        return made

    def start(self, client: Any, method: str, url: str, **options: Any) -> Callable[[], Reply]:
        if "content" in options:
            options["data"] = options.pop("content")
        options["headers"] = dict(options.get("headers", ()))
        options["allow_redirects"] = options.pop("follow", False)

        def make() -> Reply:
            response = client.request(method, url, **options)
            return Reply(response.status_code, response.content)

        return make

    def stream(self, client: Any, url: str, take: int | None, leave: BaseException | None = None) -> list[bytes]:
        chunks: list[bytes] = []
        with client.post(url, stream=True) as response:
            if take != 0:
                for chunk in response.iter_content(None):
                    chunks.append(chunk)
                    if len(chunks) == take:
                        break
            if leave is not None:
                raise leave
        return chunks

    def open(self, client: Any, url: str) -> Any:
        return client.post(url, stream=True)

    def read(self, response: Any) -> bytes:
        return bytes(response.content)


class Aiohttp(Driver):
    contribs = (("opentelemetry.instrumentation.aiohttp_client", "AioHttpClientInstrumentor"),)
    refused, cut = "aiohttp.client_exceptions.ClientConnectorError", "aiohttp.client_exceptions.ClientPayloadError"
    late = "TimeoutError"

    def plain(self, *, environment: bool = False, ca: Path | None = None, **options: Any) -> Any:
        self.raised = self.library.ClientPayloadError
        verify = True if ca is None else ssl.create_default_context(cafile=ca)

        async def make() -> Any:
            connector = self.library.TCPConnector(ssl=verify)
            return self.library.ClientSession(connector=connector, trust_env=environment, **options)

        self.clients.append(self.run(make()))
        return self.clients[-1]

    def start(self, client: Any, method: str, url: str, **options: Any) -> Callable[[], Reply]:
        if "content" in options:
            options["data"] = options.pop("content")
        if "timeout" in options:
            options["timeout"] = self.library.ClientTimeout(total=options["timeout"])
        options["allow_redirects"] = options.pop("follow", False)

        async def make() -> Reply:
            async with client.request(method, url, **options) as response:
                return Reply(response.status, await response.read())

        return lambda: Reply(*self.run(make()))

    def stream(self, client: Any, url: str, take: int | None, leave: BaseException | None = None) -> list[bytes]:
        chunks: list[bytes] = []

        async def stream() -> None:
            async with client.post(url) as response:
                if take != 0:
                    async for chunk in response.content.iter_any():
                        chunks.append(chunk)
                        if len(chunks) == take:
                            break
                if leave is not None:
                    raise leave

        self.run(stream())
        return chunks

    def open(self, client: Any, url: str) -> Any:
        return self.run(client.post(url))

    def read(self, response: Any) -> bytes:
        return bytes(self.run(response.read()))

    def forget(self) -> None:
        """aiohttp itself holds a response until its connection is gone, and then complains of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            for client in self.clients:
                self.run(client.close())
            gc.collect()

    def together(self, client: Any, url: str, times: int) -> list[int]:
        async def one() -> int:
            async with client.post(url) as response:
                return int(response.status)

        async def gather() -> list[int]:
            return list(await asyncio.gather(*[one() for _ in range(times)]))

        return list(self.run(gather()))


DRIVERS: dict[str, tuple[Callable[..., Driver], str, bool]] = {
    "httpx": (Httpx, "httpx", False),
    "httpx-async": (Httpx, "httpx", True),
    "httpx2": (Httpx, "httpx2", False),
    "httpx2-async": (Httpx, "httpx2", True),
    "requests": (Requests, "requests", False),
    "aiohttp": (Aiohttp, "aiohttp", True),
}


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest, seen: Any) -> Iterator[Driver]:
    cls, library, asynchronous = DRIVERS[request.param]
    made = cls(library, asynchronous, seen)
    yield made
    made.close()
