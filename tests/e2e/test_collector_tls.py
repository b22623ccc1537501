"""OTLP under TLS to the real collector, by both protocols: what the standard variables say is what happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otelctx.testing.backends import Backend, Launch, find, free_ports
from otelctx.testing.receiver import OtlpReceiver

pytestmark = pytest.mark.e2e

CODE = """
from opentelemetry import metrics
from otelctx.sdk.configure import configure
handle = configure("secured", logs=False)
metrics.get_meter("app").create_counter("app.count").add(1)
found = handle.check()
print(found.ok)
print(found)
handle.shutdown(1.0)
print("dropped", sorted(handle.dropped()))
"""
PROTOCOLS = ["grpc", "http/protobuf"]


class Tls(Backend):
    """A collector with a plain, a TLS and an mTLS port for either protocol; ``ports[kind, protocol]``."""

    ports: dict[tuple[str, str], int]

    def __init__(self, folder: Path, to: int) -> None:
        self.folder, self.to = folder, to
        self._binary = find("otelctx-collector")
        super().__init__(folder / "collector.log")

    def plan(self) -> Launch:
        kinds = [(kind, protocol) for kind in ("plain", "tls", "mtls") for protocol in PROTOCOLS]
        self.ports = dict(zip(kinds, free_ports(len(kinds)), strict=True))
        server = f"cert_file: {self.folder}/server.pem, key_file: {self.folder}/server.key"
        tls = {
            "plain": "",
            "tls": f", tls: {{{server}}}",
            "mtls": f", tls: {{{server}, client_ca_file: {self.folder}/ca.pem}}",
        }
        receivers = "\n".join(
            f"  otlp/{kind}: {{protocols: {{"
            f"grpc: {{endpoint: '127.0.0.1:{self.ports[kind, PROTOCOLS[0]]}'{tls[kind]}}}, "
            f"http: {{endpoint: '127.0.0.1:{self.ports[kind, PROTOCOLS[1]]}'{tls[kind]}}}}}}}"
            for kind in tls
        )
        pipeline = "{receivers: [otlp/plain, otlp/tls, otlp/mtls], exporters: [otlp]}"
        (self.folder / "config.yaml").write_text(
            f"receivers:\n{receivers}\n"
            f"exporters: {{otlp: {{endpoint: '127.0.0.1:{self.to}', tls: {{insecure: true}}}}}}\n"
            "service:\n  telemetry: {metrics: {level: none}}\n"
            f"  pipelines: {{traces: {pipeline}, metrics: {pipeline}, logs: {pipeline}}}\n"
        )
        command = [str(self._binary), "--config", str(self.folder / "config.yaml")]
        return Launch(command, lambda: "Everything is ready" in self.tail())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server and a client that it signed, and another authority."""
    if shutil.which("openssl") is None:
        pytest.skip("NO BACKEND: openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl("req", "-x509", *new, *files, "-days", "2", "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


@pytest.fixture(scope="module")
def behind() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def collector(run_backend: Any, certificates: Path, behind: OtlpReceiver) -> Any:
    return run_backend(lambda: Tls(certificates, behind.port))


@pytest.fixture
def ask(certificates: Path) -> Callable[..., str]:
    """Configure, check and end in a process of its own; what it printed."""

    def run(protocol: str, scheme: str, port: int, ca: str | None = None, *, client: bool = False) -> str:
        variables = {
            "ENDPOINT": f"{scheme}://localhost:{port}",
            "PROTOCOL": protocol,
            **({"CERTIFICATE": f"{certificates}/{ca}.pem"} if ca else {}),
            **({"CLIENT_KEY": f"{certificates}/client.key"} if client else {}),
            **({"CLIENT_CERTIFICATE": f"{certificates}/client.pem"} if client else {}),
        }
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_CA_BUNDLE")}
        environment |= {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
        environment["OTEL_LOGS_EXPORTER"] = "none"
        command = [sys.executable, "-c", CODE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("kind", "scheme", "ca", "client"),
    [("plain", "http", None, False), ("tls", "https", "ca", False), ("mtls", "https", "ca", True)],
)
def test_what_is_set_up_rightly_arrives(
    ask: Any, collector: Any, behind: OtlpReceiver, protocol: str, kind: str, scheme: str, ca: str, client: bool
) -> None:
    before = len(behind.spans())
    out = ask(protocol, scheme, collector.ports[kind, protocol], ca, client=client)
    assert out.startswith("True\na test span was delivered"), out
    assert out.endswith("dropped []\n")
    behind.wait_for(lambda spans: len(spans) > before)


WRONG = [
    ("the other protocol's port", "plain", True, "http", None, "OTEL_EXPORTER_OTLP_PROTOCOL="),
    ("TLS to a plain port", "plain", False, "https", "ca", "write http:// in OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("plain to a TLS port", "tls", False, "http", None, "write https:// in OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("an authority that did not sign", "tls", False, "https", "other", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    ("no certificate of one's own", "mtls", False, "https", "ca", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("kind", "other", "scheme", "ca", "told"), [pytest.param(*w[1:], id=w[0]) for w in WRONG])
def test_what_is_set_up_wrongly_is_said_and_counted(
    ask: Any, collector: Any, protocol: str, kind: str, other: bool, scheme: str, ca: str | None, told: str
) -> None:
    """opentelemetry-python #1747, #1801: else it is lost in silence, or looks like a collector that is down."""
    port = collector.ports[kind, PROTOCOLS[1 - PROTOCOLS.index(protocol)] if other else protocol]
    out = ask(protocol, scheme, port, ca)
    assert out.startswith("False\ntraces do not arrive"), out
    assert told in out.splitlines()[1]
    assert out.endswith("dropped ['metrics', 'traces']\n"), out


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_is_not_there_is_to_be_started(ask: Any, collector: Any, protocol: str, refused: str) -> None:
    out = ask(protocol, "http", int(refused.rpartition(":")[2]))
    assert "start the collector" in out.splitlines()[1]
    assert out.endswith("dropped ['metrics', 'traces']\n"), out
