"""Where context may go: to whom the operator says, and to a metadata service in no spelling of it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


METADATA = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"]


def spellings(dotted: str) -> list[str]:
    """Every way in which some resolver, translator or URL library takes an IPv4 address."""
    a, b, c, d = (int(part) for part in dotted.split("."))
    number = a << 24 | b << 16 | c << 8 | d
    high, low = f"{a:02x}{b:02x}", f"{c:02x}{d:02x}"
    return [
        dotted, f"{dotted}.", f"[{dotted}]", str(number), hex(number), oct(number).replace("o", ""),
        f"{a}.{b << 16 | c << 8 | d}", f"{a}.{b}.{c << 8 | d}", ".".join(map(hex, (a, b, c, d))),
        ".".join(f"0{part:o}" for part in (a, b, c, d)), f"::ffff:{dotted}", f"[::FFFF:{dotted}]",
        f"::ffff:{high}:{low}", f"::{dotted}", f"::{high}:{low}", f"64:ff9b::{dotted}", f"64:ff9b::{high}:{low}",
        f"2002:{high}:{low}::1", f"::ffff:{dotted}%eth0", dotted.replace(".", "\u3002"),
        dotted.translate({ord(str(n)): 0xFF10 + n for n in range(10)}), f"user@{dotted}", f"{dotted}%00.internal",
        f"{dotted}#.internal", f"{dotted}/.internal", f" {dotted}", f"{dotted}\n", "%31" + dotted[1:],
    ]  # fmt: skip


@pytest.mark.parametrize("dotted", METADATA)
def test_a_metadata_address_gets_nothing_however_it_is_spelled(dotted: str) -> None:
    everything = Egress(["0.0.0.0/0", "::/0", "*.internal"])
    for host in spellings(dotted):
        assert not Egress().allows(host, 80), host
        assert not everything.allows(host, 80), host
        assert not everything.listed(host, 80), host


@pytest.mark.parametrize(
    "host",
    ["fd00:ec2::254", "FD00:EC2::254", "fd00:0ec2:0:0:0:0:0:254", "[fd00:ec2::254]", "fd00:ec2::0.0.2.84",
     "fd00:ec2::254%eth0", "fd00:ec2::254%25eth0", "fd00:ec2::23", "fd20:ce::254"],
)  # fmt: skip
def test_a_metadata_address_of_ipv6_gets_nothing_however_it_is_spelled(host: str) -> None:
    """It is inside a network that is allowed by default, and a zone makes Python call it another address."""
    assert not Egress().allows(host, 80)
    assert not Egress(["::/0"]).allows(host, 80)


@pytest.mark.parametrize(
    "host",
    ["metadata", "METADATA", "metadata.", "metadata.google.internal", "Metadata.Google.Internal.", "instance-data",
     "instance-data.ec2.internal", "instance-data.eu-west-1.compute.internal", "metadata.azure.internal",
     "\uff4detadata", "metadata\u3002google\u3002internal", "user@metadata.google.internal",
     "metadata.google.internal%00"],
)  # fmt: skip
def test_a_metadata_name_gets_nothing_however_it_is_spelled(host: str) -> None:
    assert not Egress().allows(host, 80)
    assert not Egress(["*.internal", "*.google.internal", "metadata"]).allows(host, 80)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "[::]", "::", "0x0", "255.255.255.255", "localhost..", "[::1", "::1]"]
)
def test_what_stands_for_this_machine_or_for_all_is_nobody(host: str) -> None:
    assert not Egress().allows(host, 80)


def test_an_international_name_is_the_same_in_both_of_its_forms() -> None:
    """httpx gives the one, requests the other."""
    for entry in ("b\u00fccher.example", "xn--bcher-kva.example", "B\u00dcCHER.Example"):
        egress = Egress([entry])
        for host in ("b\u00fccher.example", "xn--bcher-kva.example", "XN--BCHER-KVA.example."):
            assert egress.allows(host, 443), (entry, host)
        assert not egress.allows("bucher.example", 443)
    assert Egress(["*.b\u00fccher.example"]).allows("a.xn--bcher-kva.example", 443)


@pytest.mark.parametrize("host", ["stra\u00dfe.example", "fa\u00df.example", "e\uff58ample.com", "a\u200db.example"])
def test_a_name_that_resolvers_read_differently_is_no_name(host: str) -> None:
    egress = Egress(["strasse.example", "fass.example", "example.com", "ab.example"])
    assert not egress.allows(host, 443)
    with pytest.raises(ConfigError):
        Egress([host])


@given(st.text(max_size=80), st.none() | st.integers(-1, 70000))
def test_any_host_is_decided(host: str, port: int | None) -> None:
    for egress in (Egress(), Egress(["*.example", "10.0.0.0/8"])):
        assert egress.allows(host, port) in (True, False)
        assert not (egress.listed(host, port) and not egress.allows(host, port))


@given(st.ip_addresses(), st.booleans())
def test_an_address_is_allowed_or_not_whatever_its_form(address: ipaddress.IPv4Address, brackets: bool) -> None:
    forms = [str(address), address.exploded, address.exploded.upper(), f"{address}."]
    if brackets:
        forms.append(f"[{address}]")
    assert len({Egress().allows(form, 80) for form in forms}) == 1


def test_a_host_too_long_to_be_one_is_refused_and_not_remembered() -> None:
    egress = Egress()
    assert not egress.allows("a" * 100_000, 80)
    assert egress._decided == {}
