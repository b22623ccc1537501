"""Workers behind TLS: verified, or not used."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from otelctx.gateway.options import Options


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def secure(certificate: Path, workers: Any, run_server: Any) -> Iterator[str]:
    config = uvicorn.Config(
        workers[0], lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=0,
        ssl_certfile=certificate / "cert.pem", ssl_keyfile=certificate / "key.pem",
    )  # fmt: skip
    with run_server(uvicorn.Server(config)) as url:
        yield url.replace("http://127.0.0.1", "https://localhost")


def test_a_worker_whose_certificate_is_trusted_is_used(
    client: Any, edge: Any, secure: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    running = edge([secure], options=Options(health_path=""))
    assert [client.post(running.url, content=b"x").text for _ in range(3)] == ["ok"] * 3


def test_one_whose_certificate_is_not_is_not(client: Any, edge: Any, secure: str, workers: Any) -> None:
    answer = client.post(edge([secure], options=Options(health_path="")).url, content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert workers[0].seen == []
