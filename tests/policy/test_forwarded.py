"""Who stands behind a proxy, by the header that it has written and anybody may have begun."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelctx.policy.trust import ClientTrust

PROXY = "10.0.0.1"
TRUST = ClientTrust(["203.0.113.0/24", "fe80::/10"], ["10.0.0.0/8", "fd00::/8"])

junk = st.text(max_size=30) | st.sampled_from(
    ["unknown", "_hidden", "", " ", "10.0.0.1", "for=203.0.113.9", '"203.0.113.9"', "203.0.113.9;proto=http", "0"]
)
hop = junk | st.ip_addresses().map(str) | st.integers(0, 70000).map("203.0.113.9:{}".format)


@given(st.none() | st.text(max_size=40) | st.just(PROXY), st.lists(st.lists(hop, max_size=5).map(",".join), max_size=3))
def test_whatever_is_forwarded_a_client_is_an_address_or_nobody(peer: str | None, lines: list[str]) -> None:
    found = TRUST.resolve(peer, lines)
    assert found is None or found == str(ipaddress.ip_address(found))
    assert found is None or not TRUST.proxy(found) or peer == found
    assert TRUST.resolve(peer, [line.encode("latin-1", "replace") for line in lines]) in (found, None) or peer != PROXY


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(line: bytes) -> None:
    TRUST.resolve(PROXY, [line])


@given(st.lists(hop, max_size=6), st.ip_addresses(v=4))
@example(["203.0.113.9"], ipaddress.ip_address("198.51.100.1"))
def test_what_the_sender_has_written_before_does_not_matter(forged: list[str], client: ipaddress.IPv4Address) -> None:
    """Each proxy appends whom it sees. What stands left of the first hop that is no proxy is the sender's own."""
    if TRUST.proxy(str(client)):
        return
    line = ",".join([*forged, str(client), "10.9.9.9"])
    assert TRUST.resolve(PROXY, [line]) == str(client)


@given(st.text(max_size=60), st.sampled_from(["198.51.100.1", "2001:db8::1", "unix:", "", None]))
def test_from_a_peer_that_is_no_proxy_nothing_is_read(line: str, peer: str | None) -> None:
    assert TRUST.resolve(peer, [line]) == TRUST.resolve(peer)


@pytest.mark.parametrize(
    ("written", "client"),
    [
        ("203.0.113.9:4711", "203.0.113.9"),  # as some load balancers write it
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("[::ffff:203.0.113.9]:80", "203.0.113.9"),
        ("203.0.113.9:", None),
        ("203.0.113.9:x", None),
        ("203.0.113.9:123456", None),
        ("203.0.113.9:\u0661", None),
        ("203.0.113.9:80:80", None),
        ("[203.0.113.9]:80", None),
        ("[2001:db8::1", None),
        ("[2001:db8::1]x", None),
        ("2001:db8::1:x", None),
        ("203.0.113.009", None),
        ("0xcb007109", None),
        ("3405803785", None),
        ("203.0.113", None),
        ("203.0.113.9/32", None),
        ("unix:", None),
        ("fe80::1%eth0", None),  # a zone of another machine
        ("fe80::1%" + "x" * 10_000, None),
    ],
)
def test_a_hop_is_an_address_perhaps_with_a_port(written: str, client: str | None) -> None:
    assert TRUST.resolve(PROXY, [f"6.6.6.6, {written}"]) == client


def test_a_mapped_address_is_the_ipv4_address_that_it_is() -> None:
    """A server that listens on both families sees IPv4 clients so."""
    assert TRUST.trusted("::ffff:203.0.113.9")
    assert TRUST.proxy("::ffff:10.0.0.1")
    assert not TRUST.trusted("::203.0.113.9")


def test_a_zone_is_no_part_of_who_a_peer_is() -> None:
    """Any text may stand there, of any length: it would be in a span, and in memory for each of them."""
    assert TRUST.resolve("fe80::1%eth0") == TRUST.resolve("fe80::1%" + "x" * 10_000) == "fe80::1"
    assert TRUST.trusted("fe80::1%eth0")


@pytest.mark.parametrize("peer", ["unix:", "", "/run/app.sock", "@abstract", "localhost", "testclient", None])
def test_a_socket_of_this_machine_is_nobody(peer: str | None) -> None:
    trust = ClientTrust(["0.0.0.0/0", "::/0"], ["0.0.0.0/0", "::/0"])
    assert trust.resolve(peer, ["203.0.113.9"]) is None
    assert not trust.trusted(peer)


def test_so_many_proxies_of_ours_in_a_row_and_no_more() -> None:
    for count, client in ((31, "203.0.113.9"), (32, None), (100_000, None)):
        assert TRUST.resolve(PROXY, [",".join(["203.0.113.9", *["10.0.0.2"] * count])]) == client


def test_who_trusts_every_proxy_trusts_nobody_behind_one() -> None:
    """``0.0.0.0/0`` makes each hop a proxy, and a proxy does not itself send context."""
    trust = ClientTrust(["0.0.0.0/0"], ["0.0.0.0/0"])
    assert trust.resolve(PROXY, ["203.0.113.9, 198.51.100.1"]) is None


# an address that the server has taken from the header


@pytest.mark.parametrize(
    ("peer", "forwarded", "claimed"),
    [
        ("203.0.113.9", None, False),
        ("203.0.113.9", "", False),
        ("203.0.113.9", "198.51.100.1", False),  # written by somebody else, and not read
        ("203.0.113.9", "203.0.113.9", True),
        ("203.0.113.9", "203.0.113.9:4711", True),
        ("203.0.113.9", "6.6.6.6, 203.0.113.9, 127.0.0.1", True),
        ("203.0.113.9", "203.0.113.9" + ", 127.0.0.1" * 1000, True),
        ("::ffff:203.0.113.9", "203.0.113.9", True),
        ("2001:db8::1", "[2001:DB8:0::1]:80", True),
        ("fe80::1%eth0", "fe80::1%eth0", True),
        ("fe80::1%eth0", "[fe80::1%eth0]:80", True),
        ("unix:", "203.0.113.9", False),
        (None, "203.0.113.9", False),
    ],
)
def test_an_address_that_the_header_names_may_be_the_senders_own_words(
    peer: str | None, forwarded: str | None, claimed: bool
) -> None:
    """uvicorn rewrites the peer by itself, for whoever comes over the loopback."""
    assert ClientTrust(["203.0.113.0/24"]).claimed(peer, forwarded) is claimed


@pytest.mark.parametrize(
    ("peer", "forwarded", "claimed"),
    [
        ("203.0.113.9", "203.0.113.9", False),  # seen by the proxy in front
        ("203.0.113.9", "6.6.6.6, 203.0.113.9, 10.0.0.7", False),
        ("203.0.113.9", "203.0.113.9, 198.51.100.1", True),  # the proxy has seen another one
        ("203.0.113.9", "203.0.113.9, garbage", True),
        ("203.0.113.9", "203.0.113.9" + ",10.0.0.1" * 40, True),
        ("10.0.0.1", "203.0.113.9, 10.0.0.1", False),  # a proxy's own connection, resolved as ever
    ],
)
def test_behind_our_own_proxies_it_is_whom_the_last_of_them_has_seen(peer: str, forwarded: str, claimed: bool) -> None:
    assert TRUST.claimed(peer, forwarded) is claimed


@given(st.text(max_size=40), st.text(max_size=200))
def test_any_claim_is_survived(peer: str, forwarded: str) -> None:
    for trust in (TRUST, ClientTrust(["0.0.0.0/0"])):
        assert trust.claimed(peer, forwarded) in (True, False)
