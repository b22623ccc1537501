"""Real backends for the whole run. What is missing is skipped, loudly; OTELCTX_E2E=required makes that a failure.

A failed test shows the end of the log of every backend that it uses.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from otelctx.errors import ConfigError
from otelctx.testing.backends import Backend, Collector, Jaeger, Launch, find, free_ports, poll

_running: list[Backend] = []
_BEFORE: pytest.StashKey[set[Backend]] = pytest.StashKey()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEFORE] = set(_running)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        used = [
            b
            for b in _running
            if b not in item.stash.get(_BEFORE, set()) or b in getattr(item, "funcargs", {}).values()
        ]
        report.sections.extend((f"log of {b.log}", b.tail(3000)) for b in used)
    return report


@pytest.fixture(scope="session")
def run_backend(to_the_end: set[int]) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Start a backend that runs to the end of the session, or skip because it is missing."""
    with ExitStack() as stack:

        def run(make: Callable[[], Backend]) -> Backend:
            backend = _run(stack, make)
            to_the_end.add(backend.pid)
            return backend

        yield run


def _run(stack: ExitStack, make: Callable[[], Backend]) -> Backend:
    try:
        backend = stack.enter_context(make())
    except ConfigError as exc:
        pytest.skip(f"NO BACKEND: {exc}")
    _running.append(backend)
    stack.callback(_running.remove, backend)
    return backend


@pytest.fixture(scope="session")
def backends() -> dict[str, Path]:
    """Paths of the built binaries."""
    try:
        return {name: find(name) for name in ("otelctx-collector", "jaeger")}
    except ConfigError as exc:
        pytest.skip(f"NO BACKEND: {exc}")


@pytest.fixture(scope="session")
def jaeger(run_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_backend(lambda: Jaeger(tmp_path_factory.mktemp("jaeger")))


@pytest.fixture(scope="session")
def start_collector(
    run_backend: Any, jaeger: Jaeger, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Collector]:
    """Start a collector in front of the run's Jaeger, or of ``to``, with the options of ``Collector``."""

    def start(folder: Path | None = None, to: str = jaeger.otlp, **options: Any) -> Collector:
        where = folder or tmp_path_factory.mktemp("collector")
        collector: Collector = run_backend(lambda: Collector(where, to, **options))
        return collector

    return start


@pytest.fixture(scope="session")
def collector(start_collector: Callable[..., Collector]) -> Collector:
    """A collector that keeps every trace."""
    return start_collector()


class Redis(Backend):
    """One Redis that keeps nothing on disk; ``port`` on the loopback."""

    port: int

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(folder / "redis.log")

    def plan(self) -> Launch:
        (self.port,) = free_ports(1)
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": str(self.folder)}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return Launch([_binary("redis-server"), *arguments], lambda: self.ask(b"PING") == b"+PONG\r\n")

    def ask(self, line: bytes) -> bytes:
        """One inline command and the start of its answer; empty if nothing answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                connection.sendall(line + b"\r\n")
                return connection.recv(4096)
        except OSError:
            return b""


class Nginx(Backend):
    """nginx with one server at ``url``, whose block holds ``directives``; ``around`` stands before that block. In
    both, ``@spare@`` is the number of another port, ``spare``."""

    url: str
    spare: int

    def __init__(self, folder: Path, directives: str, around: str = "") -> None:
        self.folder = folder
        self.directives = directives
        self.around = around
        super().__init__(folder / "nginx.log")

    def plan(self) -> Launch:
        self._port, self.spare = free_ports(2)
        self.url = f"http://127.0.0.1:{self._port}"
        self._write()
        command = [_binary("nginx"), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]
        return Launch(command, lambda: _listens(self._port))

    def reload(self, directives: str) -> None:
        """Go on with other ``directives``; returns when no connection is taken by the old ones any more."""
        self.directives = directives
        before = self._workers()
        self._write()
        self._process.send_signal(signal.SIGHUP)
        poll(lambda: bool(now := self._workers()) and before.isdisjoint(now), lambda: True, "nginx")

    def _workers(self) -> set[str]:
        pid = self._process.pid
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def _write(self) -> None:
        temporary = "".join(
            f"{kind}_temp_path {self.folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # A master that runs as root gives its workers away to a user who may not read the test's folder.
        user = "user root;" if os.geteuid() == 0 else ""
        written = (
            f"{user} pid {self.folder / 'nginx.pid'}; error_log stderr; worker_processes 1; daemon off; events {{}}"
            f"http {{ access_log off; {temporary} {self.around} "
            f"server {{ listen 127.0.0.1:{self._port}; {self.directives} }} }}"
        )
        (self.folder / "nginx.conf").write_text(written.replace("@spare@", str(self.spare)))


class Relay:
    """TCP to ``port``, byte by byte. ``crash``: so many times, a connection is cut as soon as something has come in, as
    by a process that dies with the request in its hands. ``sizes``: bytes of each piece that went to the server."""

    def __init__(self, port: int) -> None:
        self.crash = 0
        self.sizes: list[int] = []
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._run(self._pass, near)

    def _run(self, what: Callable[..., None], *arguments: Any) -> threading.Thread:
        self._threads.append(threading.Thread(target=what, args=arguments))
        self._threads[-1].start()
        return self._threads[-1]

    def _pass(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far:
            self._open += (near, far)
            back = self._run(self._copy, far, near)
            try:
                while data := near.recv(65536):
                    if self.crash:
                        self.crash -= 1
                        return
                    self.sizes.append(len(data))
                    far.sendall(data)
                far.shutdown(socket.SHUT_WR)
                back.join()
            finally:
                self._cut(near, far)  # to close them would not wake who reads
                back.join()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        self._cut(*self._open)
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _cut(*connections: socket.socket) -> None:
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _binary(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ConfigError(f"{name} is not installed")
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def redis_server(run_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_backend(lambda: Redis(tmp_path_factory.mktemp("redis")))


@pytest.fixture(scope="session")
def start_nginx(run_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Start an nginx whose server block holds the directives given."""
    return lambda directives: run_backend(lambda: Nginx(tmp_path_factory.mktemp("nginx"), directives))


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start an nginx for one test: ``nginx(directives, around)``, in a folder of its own."""
    with ExitStack() as stack:

        def start(directives: str, around: str = "") -> Backend:
            folder = tmp_path / "nginx"
            folder.mkdir()
            return _run(stack, lambda: Nginx(folder, directives, around))

        yield start


@pytest.fixture
def relay() -> Iterator[Callable[[int], Relay]]:
    with ExitStack() as stack:

        def start(port: int) -> Relay:
            made = Relay(port)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def exporting() -> Iterator[Callable[[str, str], Any]]:
    """A tracer whose spans go out one by one, in order, as they end: ``exporting(endpoint, service)``."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    with ExitStack() as stack:

        def make(endpoint: str, service: str) -> Any:
            # The collector's limits are under test, not the SDK's.
            limits = SpanLimits(max_span_attributes=1000)
            resource = Resource({"service.name": service})
            provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
            provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint, insecure=True)))
            stack.callback(provider.shutdown)
            return provider.get_tracer("test", "1.0")

        yield make
