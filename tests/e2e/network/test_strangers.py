"""The usual reverse proxies in front of a worker: who is believed without a key, and who is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from otelctx.clients.dispatch import instrument
from otelctx.context.current import ContextKey, session
from otelctx.exchange.node import Node
from otelctx.settings import Settings

pytestmark = pytest.mark.e2e
TIER = ContextKey("network.tier", str, visibility="public")
INSIDE, OUTSIDE = "127.8.0.1", "127.9.0.1"  # both on this host, as are the proxy and the worker
APPEND = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
TRUST = {"keys": "", "trusted_proxies": ("127.0.0.1",), "trusted_clients": ("127.8.0.0/16",)}


def ask(url: str, client: str, forwarded: str | None = None) -> tuple[str, list[str]]:
    """What the application saw of an unsigned frame sent from ``client``, and the names of our response headers."""
    transport = httpx.HTTPTransport(local_address=client)
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    with httpx.Client(transport=transport, trust_env=False, timeout=60) as plain, session("chat-1"), TIER.bound("gold"):
        answer = instrument(plain, node=Node(Settings())).post(url, content=b"x", headers=headers)
    assert answer.status_code == 200
    seen = answer.json()
    assert seen["state"].get("network.tier") == {"frame": "gold", "none": None}[seen["source"]]
    return seen["source"], [name for name in answer.headers if name.startswith("otelctx")]


@pytest.mark.parametrize("trusted", [{"keys": ""}, TRUST, {**TRUST, "trusted_proxies": ()}])
def test_behind_a_plain_proxy_pass_nobody_is_believed(trusted: Any, nginx: Any, worker: Callable[..., Any]) -> None:
    """It forwards the internet from the loopback and says of nobody where they come from."""
    proxy = nginx(f"location / {{ proxy_pass {worker(**trusted).url}; }}")
    for client in (INSIDE, OUTSIDE, "127.0.0.1"):
        assert ask(proxy.url, client) == ("none", [])


@pytest.mark.parametrize("forwarded", [None, INSIDE, f"{INSIDE}, 127.0.0.1", "garbage", f"{INSIDE},"])
def test_a_proxy_that_appends_the_address_is_believed_and_the_client_is_not(
    forwarded: str | None, nginx: Any, worker: Callable[..., Any]
) -> None:
    """The right-most hop that is no proxy of ours counts: what a stranger writes in front of it is the stranger's."""
    proxy = nginx(f"location / {{ proxy_pass {worker(**TRUST).url}; {APPEND} }}")
    assert ask(proxy.url, OUTSIDE, forwarded) == ("none", [])
    assert ask(proxy.url, INSIDE, forwarded) == ("frame", ["otelctx-ack"])


def test_two_proxies_in_a_row(nginx: Any, worker: Callable[..., Any], tmp_path: Path) -> None:
    """The inner one appends the outer one's address, which is a proxy, too: the client behind both counts."""
    inner = tmp_path / "inner.sock"
    append = "proxy_set_header X-Forwarded-For $http_x_forwarded_for,127.0.0.1;"
    proxy = nginx(
        f"location / {{ proxy_pass http://unix:{inner}; {APPEND} }}",
        f"server {{ listen unix:{inner}; location / {{ proxy_pass {worker(**TRUST).url}; {append} }} }}",
    )
    assert ask(proxy.url, INSIDE) == ("frame", ["otelctx-ack"])
    assert ask(proxy.url, OUTSIDE) == ("none", [])


def test_a_proxy_that_is_trusted_as_a_client_is_the_operators_own_doing_and_is_seen_to_be(
    nginx: Any, worker: Callable[..., Any]
) -> None:
    """Who lists the proxy's own address as a client, and reads no X-Forwarded-For, believes everybody: the reason why
    there is no implicit trust in loopback. Listed as a proxy, too, it is none."""
    everybody = worker(keys="", trusted_clients=("127.0.0.1",))
    proxy = nginx(f"location / {{ proxy_pass {everybody.url}; }}")
    assert ask(proxy.url, OUTSIDE) == ("frame", ["otelctx-ack"])
    nobody = worker(keys="", trusted_clients=("127.0.0.1",), trusted_proxies=("127.0.0.1",))
    proxy.reload(f"location / {{ proxy_pass {nobody.url}; }}")
    assert ask(proxy.url, OUTSIDE) == ("none", [])
