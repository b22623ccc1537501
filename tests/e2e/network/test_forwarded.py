"""Redirects and forward proxies: what goes along is decided by where each hop of a request ends."""

from __future__ import annotations

import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
LISTED, INSIDE, OUTSIDE = "api.example.com", "api.internal", "elsewhere.example.com"
NAMES = ",".join(f"DNS:{name}" for name in (LISTED, INSIDE, OUTSIDE))


class Forward(socketserver.ThreadingTCPServer):
    """A forward proxy, for which every name is this host: what comes by CONNECT goes to the port ``tls``, the rest to
    ``plain``. ``heads`` are those of CONNECT."""

    daemon_threads = True

    def __init__(self, plain: int, tls: int) -> None:
        self.ports = {False: plain, True: tls}
        self.heads: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Passing)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Passing(socketserver.BaseRequestHandler):
    server: Forward

    def handle(self) -> None:
        near = self.request
        head = near.recv(65536)
        connect = head.startswith(b"CONNECT ")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.ports[connect])) as far:
            if connect:
                self.server.heads.append(head)
                near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                far.sendall(head)
            back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
            back.start()
            self._copy(near, far)
            back.join()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for all names, and its key, made for this run."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NO BACKEND: openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={NAMES}", "-days", "1", "-nodes"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    out = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([openssl, "req", *kind, *subject, *out], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


class Net:
    """One worker behind all names, on http and https, reached through ``proxy``; ``caller`` may send context to
    what is inside, and to ``LISTED`` on 443."""

    def __init__(self, origin: Any, proxy: Forward, caller: Any, options: dict[str, Any]) -> None:
        self.origin = origin
        self.proxy = proxy
        self.caller = caller
        self._options = options

    def ask(self, url: str, **options: Any) -> Any:
        return self.caller.ask(url, follow=True, headers={"baggage": "own=1"}, **self._options, **options)


@pytest.fixture
def net(
    worker: Any, serve: Any, certificate: tuple[Path, Path], client: Any, party: Callable[..., Any]
) -> Iterator[Net]:
    cert, key = certificate
    origin = worker()
    with serve(origin, ssl_certfile=str(cert), ssl_keyfile=str(key)) as port, Forward(origin.port, port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        trust = ssl.create_default_context(cafile=str(cert))
        library, options = {
            "requests": ({"proxies": dict.fromkeys(("http", "https"), proxy.url), "verify": str(cert)}, {}),
            "aiohttp": ({"proxy": proxy.url}, {"ssl": trust}),
        }.get(client.name, ({"proxy": proxy.url, "verify": trust}, {}))
        try:
            yield Net(origin, proxy, party(library=library, egress_allow=(f"{LISTED}:443",)), options)
            client.close()
        finally:
            proxy.shutdown()
            thread.join()


def carried(lines: dict[str, list[str]]) -> tuple[bool, list[str]]:
    """Whether a request that arrived has a frame, and its baggage."""
    ours = [name for name in lines if name.startswith("otelctx")]
    assert ours in ([], ["otelctx"])
    return ours != [], lines.get("baggage", [])


WITH, WITHOUT = (True, ["own=1,network.tier=gold"]), (False, ["own=1"])
REDIRECTS = {
    "the same origin": (f"https://{LISTED}/to", WITH),
    "the same origin, its port spelled": (f"https://{LISTED}:443/to", WITH),
    "the same origin, relative": ("/to", WITH),
    "the same origin, userinfo": (f"https://user:pw@{LISTED}/to", WITH),
    "another one that is allowed": (f"https://{INSIDE}/to", WITH),
    "http instead of https": (f"http://{LISTED}/to", WITHOUT),
    "another port": (f"https://{LISTED}:8443/to", WITHOUT),
    "another host": (f"https://{OUTSIDE}/to", WITHOUT),
    "another host, relative": (f"//{OUTSIDE}/to", WITHOUT),
    "another host, ours as userinfo": (f"https://{LISTED}@{OUTSIDE}/to", WITHOUT),
    "another host, ours as a label": (f"https://{LISTED}.{OUTSIDE}/to", WITHOUT),
}


@pytest.mark.parametrize("case", [name for name in REDIRECTS if "label" not in name])
def test_a_redirect(case: str, net: Net) -> None:
    """Our header and baggage go on to origins that may have them, as a frame of that hop's own, and to no other."""
    location, expected = REDIRECTS[case]
    net.origin.redirects["/from"] = location
    net.ask(f"https://{LISTED}/from")
    first, second = net.origin.arrived
    assert (first["path"], second["path"]) == (["/from"], ["/to"])
    assert (carried(first), carried(second)) == (WITH, expected)
    assert net.caller.kinds() == ["full", "full" if expected is WITH else None]


def test_a_ref_is_never_taken_along(net: Net) -> None:
    """What one origin holds means nothing to the next, and a second hop may be another worker: both get it whole."""
    for _ in range(4):
        net.ask(f"https://{LISTED}/to")
    assert net.caller.kinds()[-1] == "ref"
    net.origin.redirects["/from"] = f"https://{INSIDE}/to"
    assert net.ask(f"https://{LISTED}/from").source == "frame"
    assert net.caller.kinds() == ["ref", "full"]
    net.origin.redirects["/from"] = f"http://{OUTSIDE}/to"
    assert net.ask(f"https://{LISTED}/from").source == "none"
    assert net.caller.kinds() == ["ref", None]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_target_decides_and_not_the_proxy(scheme: str, net: Net) -> None:
    """The proxy is on the loopback, which may have everything. What it sees of a tunnel has nothing of ours."""
    seen = [net.ask(f"{scheme}://{host}/").source for host in (INSIDE, OUTSIDE, LISTED)]
    assert seen == ["frame", "none", "frame" if scheme == "https" else "none"]
    assert [carried(lines)[0] for lines in net.origin.arrived] == [source == "frame" for source in seen]
    assert len(net.proxy.heads) == (3 if scheme == "https" else 0)
    for head in net.proxy.heads:
        names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")}
        assert names.isdisjoint((b"otelctx", b"baggage", b"traceparent"))
