"""What can be instrumented, and what instrumenting changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from otelctx.clients import abandoned
from otelctx.clients import aiohttp as aiohttp_shell
from otelctx.clients import httpx as httpx_shell
from otelctx.clients import requests as requests_shell
from otelctx.clients.dispatch import instrument
from otelctx.clients.target import Target
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node, set_default_node


def test_a_subclass_is_what_its_base_is(node: Callable[..., Node]) -> None:
    import openai

    client = openai.DefaultHttpxClient()
    assert instrument(client, node=node()) is client
    assert hasattr(client._transport, "_inner")
    client.close()


@pytest.mark.parametrize("thing", [object(), None, httpx, httpx.Client])
def test_what_can_not_be_instrumented_is_told_what_can(thing: object) -> None:
    with pytest.raises(
        ConfigError, match=r"httpx\.Client, .*httpx2\.AsyncClient, requests\.Session, aiohttp\.ClientSession"
    ):
        instrument(thing)
    for shell, what in (
        (httpx_shell, "client of httpx"),
        (requests_shell, "session of requests"),
        (aiohttp_shell, "aiohttp"),
    ):
        with pytest.raises(ConfigError, match=f"not a .*{what}"):
            shell.instrument(thing)


def test_a_wrong_environment_is_reported_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    set_default_node(None)
    monkeypatch.setenv("OTELCTX_KEYS", "nonsense")
    with httpx.Client(trust_env=False) as client, pytest.raises(ConfigError, match="OTELCTX_KEYS"):
        instrument(client)
    set_default_node(None)


def test_no_library_is_imported_before_a_client_of_it_is_there() -> None:
    code = (
        "import sys, otelctx.clients.dispatch\n"
        "import otelctx.clients.httpx, otelctx.clients.requests, otelctx.clients.aiohttp\n"
        "known = ('httpx', 'httpx2', 'requests', 'urllib3', 'aiohttp', 'opentelemetry.sdk')\n"
        "print([m for m in known if m in sys.modules])\n"
        "import requests\n"
        "otelctx.clients.dispatch.instrument(requests.Session())\n"
        "print([m for m in known if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "['requests', 'urllib3']"]


# where a request goes


def target(**changes: Any) -> Target:
    values: dict[str, Any] = {
        "method": "POST",
        "scheme": "https",
        "host": "worker",
        "port": None,
        "raw_path": b"/v1",
        "userinfo": False,
        "body": 10,
        "headers": [],
        "sent": 0,
    }
    return Target.of(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "https://worker/v1"),
        ({"port": 443}, "https://worker/v1"),
        ({"port": 8443}, "https://worker:8443/v1"),
        ({"scheme": "http", "port": 443}, "http://worker:443/v1"),
        ({"host": "::1", "port": 80, "scheme": "http"}, "http://[::1]/v1"),
        ({"userinfo": True}, "https://REDACTED:REDACTED@worker/v1"),
        ({"raw_path": b"/v1?a=1&token=t0p&Signature=x"}, "https://worker/v1?a=1&token=REDACTED&Signature=REDACTED"),
        ({"raw_path": b"/v1?"}, "https://worker/v1"),
        ({"raw_path": b"/v1?a=%F0%9F%98%80&api-key=x#y"}, "https://worker/v1?a=%F0%9F%98%80&api-key=REDACTED"),
    ],
)
def test_the_url_of_a_span_has_no_credentials(changes: dict[str, Any], url: str) -> None:
    assert target(**changes).url() == url


def test_the_url_of_a_span_is_bounded() -> None:
    assert len(target(raw_path=b"/" + b"x" * 10_000 + b"?" + b"y" * 10_000).url()) == 2048


@pytest.mark.parametrize(
    ("changes", "idempotent"),
    [
        ({}, False),
        ({"method": "GET"}, True),
        ({"headers": [(b"Idempotency-Key", b"1")]}, True),
        ({"method": "GET", "headers": [(b"If-Match", b"x")]}, False),
        ({"headers": [(b"Idempotency-Key", b"1"), (b"If-None-Match", b"x")]}, False),
    ],
)
def test_when_a_bare_412_is_not_the_applications(changes: dict[str, Any], idempotent: bool) -> None:
    assert target(**changes).idempotent is idempotent


@pytest.mark.parametrize("name", [b"Upgrade", b"Expect"])
def test_a_handshake_and_a_body_that_waits_for_leave_can_not_be_repeated(name: bytes) -> None:
    assert target(headers=[(name, b"x")]).body is None


# what nobody ends


def test_what_is_handed_over_is_ended_in_a_thread_also_after_a_fork(
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    import os

    done: list[int] = []
    abandoned.watch()
    abandoned.hand_over(lambda: done.append(1))
    eventually(lambda: done == [1])
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            abandoned.watch()
            abandoned.hand_over(lambda: os._exit(os.write(write, b"ended") - 5))
            eventually(lambda: False)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "ended"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_error_in_what_is_handed_over_does_not_end_the_thread(
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    done: list[int] = []

    def broken() -> None:
        raise RuntimeError("an exporter that fails")

    abandoned.watch()
    abandoned.hand_over(broken)
    abandoned.hand_over(lambda: done.append(1))
    eventually(lambda: done == [1])
