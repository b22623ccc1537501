from __future__ import annotations

import pytest

from otelctx.context.keys import KeyRegistry, KeySpec
from otelctx.context.state import EMPTY
from otelctx.errors import ConfigError
from otelctx.policy.egress import Egress, view


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "::1", "[::1]", "localhost", "10.1.2.3", "192.168.0.7", "fd12::1", "worker", "worker-2",
     "gpu.internal", "printer.local", "chat.ns.svc", "app.localhost", "::ffff:10.0.0.1", "WORKER.Internal."],
)  # fmt: skip
def test_inside_the_deployment_is_allowed_by_default(host: str) -> None:
    assert Egress().allows(host, 8000)


@pytest.mark.parametrize(
    "host",
    ["api.openai.com", "8.8.8.8", "2606:4700::1", "169.254.0.5", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "",
     "example.svc.com", "a..b", "x y", "internal.example.com", "metadata", "169.254.169.254",
     "metadata.google.internal", "100.100.100.200", "::ffff:169.254.169.254", "fd00:ec2::254",
     "METADATA.Google.Internal.", "metadata.azure.internal", "fd20:ce::254", "192.0.2.1", "198.18.0.1", "fe80::1%eth0"],
)  # fmt: skip
def test_everyone_else_is_not(host: str) -> None:
    assert not Egress().allows(host, 80)


@pytest.mark.parametrize(
    "host",
    ["2852039166", "0xa9fea9fe", "0XA9FEA9FE", "169.254.43518", "0251.0376.0251.0376", "127.1", "8.8.8.010"],
)  # fmt: skip
def test_an_address_in_disguise_is_no_name(host: str) -> None:
    """Resolvers read 2852039166 as 169.254.169.254, which would pass for a name without dots."""
    assert not Egress().allows(host, 80)
    with pytest.raises(ConfigError):
        Egress([f"*.{host}"])


def test_the_allow_list_takes_names_suffixes_and_networks_with_ports() -> None:
    egress = Egress(
        ["api.example.com", "*.corp.example:8443", "203.0.113.0/24", "198.51.100.7:9000", "[2001:db8::1]:80"]
    )
    assert egress.allows("api.example.com", 443)
    assert not egress.allows("evil.api.example.com", 443)
    assert egress.allows("a.b.corp.example", 8443)
    assert not egress.allows("a.corp.example", 443)
    assert not egress.allows("corp.example", 8443)
    assert egress.allows("203.0.113.99", 1)
    assert egress.allows("198.51.100.7", 9000)
    assert not egress.allows("198.51.100.7", 9001)
    assert egress.allows("2001:db8::1", 80)


def test_metadata_services_get_nothing_whatever_is_allowed() -> None:
    egress = Egress(["169.254.0.0/16", "metadata.google.internal", "0.0.0.0/0"])
    assert not egress.allows("169.254.169.254")
    assert not egress.allows("metadata.google.internal")
    assert egress.allows("169.254.0.5")


@pytest.mark.parametrize("entry", ["", "*", "http://x", "a b", "*.", "host:99999"])
def test_an_entry_that_is_nothing_is_named(entry: str) -> None:
    with pytest.raises(ConfigError, match="OTELCTX_EGRESS_ALLOW"):
        Egress([entry])


def test_decisions_are_remembered_within_bounds() -> None:
    egress = Egress()
    for n in range(10_000):
        egress.allows(f"host{n}")
    assert len(egress._decided) <= 4096


def test_local_keys_stay_and_unknown_ones_pass() -> None:
    registry = KeyRegistry()
    registry.declare(KeySpec("here", str, "local"))
    registry.declare(KeySpec("there", str))
    state = EMPTY.put("here", "x").put("there", "y").put("unknown", "z")
    assert dict(view(state, registry)) == {"there": "y", "unknown": "z"}
    plain = EMPTY.put("there", "y")
    assert view(plain, registry) is plain
