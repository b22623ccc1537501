from __future__ import annotations

import base64
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError
from otelctx.policy.trust import ACK, FRAME, ClientTrust, Key, Keyring

SECRET = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(range(1, 33))).decode()
NOW = 1_800_000_000.0
BODY = b"some frame"
KEYS = Keyring.parse(f"1:{SECRET}")


def test_the_mac_is_what_the_wire_format_says() -> None:
    """Worked by hand, so that another language can be held to it."""
    prk = hmac.digest(bytes(32), bytes(range(32)), "sha256")
    info = b"otelctx/1\0default\0" + struct.pack(">Q", int(NOW) // 3600)
    key = hmac.digest(prk, info + b"\x01", "sha256")
    mac = hmac.digest(key, b"otelctx/1\0>" + b"\x00\x07default" + BODY, "sha256")[:16]
    assert KEYS.sign(FRAME, BODY, NOW) == b"\x7a\x11\x01" + mac


def test_previous_current_and_next_hour_are_accepted_and_no_other() -> None:
    mac = KEYS.sign(FRAME, BODY, NOW)[2:]
    hour = NOW - NOW % 3600
    for offset, ok in ((-7200, False), (-3600, True), (0, True), (3600, True), (7200, False)):
        assert (KEYS.verify(FRAME, BODY, mac, hour + offset) == "default") is ok


@given(st.integers(0, 16), st.integers(1, 255))
def test_any_changed_byte_of_the_mac_is_refused(at: int, flip: int) -> None:
    mac = bytearray(KEYS.sign(FRAME, BODY, NOW)[2:])
    mac[at] ^= flip
    assert KEYS.verify(FRAME, BODY, bytes(mac), NOW) is None


@given(st.binary(max_size=40))
def test_no_other_bytes_verify(mac: bytes) -> None:
    assert KEYS.verify(FRAME, BODY, mac, NOW) is None


def test_a_frame_is_no_ack_and_a_domain_is_no_other() -> None:
    mac = KEYS.sign(FRAME, BODY, NOW)[2:]
    assert KEYS.verify(ACK, BODY, mac, NOW) is None
    assert KEYS.verify(FRAME, BODY + b"x", mac, NOW) is None
    assert Keyring.parse(f"1@other:{SECRET}").verify(FRAME, BODY, mac, NOW) is None
    assert Keyring.parse(f"2:{SECRET}").verify(FRAME, BODY, mac, NOW) is None


def test_the_first_key_signs_and_all_verify() -> None:
    old, both = Keyring.parse(f"1:{SECRET}"), Keyring.parse(f"2@edge:{OTHER}, 1:{SECRET}")
    assert both.verify(FRAME, BODY, old.sign(FRAME, BODY, NOW)[2:], NOW) == "default"
    assert both.verify(FRAME, BODY, both.sign(FRAME, BODY, NOW)[2:], NOW) == "edge"
    assert old.verify(FRAME, BODY, both.sign(FRAME, BODY, NOW)[2:], NOW) is None


def test_a_clock_that_was_never_set_is_survived() -> None:
    for now in (0.0, 3599.0, 3600.0):
        assert KEYS.verify(FRAME, BODY, KEYS.sign(FRAME, BODY, now)[2:], now) == "default"
        assert KEYS.verify(FRAME, BODY, bytes((1,)) + bytes(16), now) is None


def test_a_verification_of_this_hour_derives_no_key() -> None:
    keys = Keyring.parse(f"1:{SECRET}")
    mac = keys.sign(FRAME, BODY, NOW)[2:]
    derived = dict(keys._derived)
    for _ in range(3):
        assert keys.verify(FRAME, BODY, mac, NOW) == "default"
    assert keys._derived == derived


def test_secrets_are_not_in_the_repr_of_a_key() -> None:
    assert SECRET not in repr(KEYS)
    assert "master" not in repr(Key(1, "default", b"0123456789abcdef"))


def test_hour_keys_do_not_pile_up() -> None:
    keys = Keyring.parse(f"1:{SECRET}")
    for hour in range(500):
        keys.sign(FRAME, BODY, hour * 3600)
    assert len(keys._derived) <= 8


def test_no_keys_sign_nothing_and_verify_nothing() -> None:
    empty = Keyring.parse("")
    assert not empty
    assert empty.sign(FRAME, BODY, NOW) == b""
    assert empty.verify(FRAME, BODY, bytes(17), NOW) is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1",
        "1:",
        "256:" + SECRET,
        "-1:" + SECRET,
        "1:not base64",
        "1:YWJj",
        f"1:{SECRET},1:{OTHER}",
        "1@ä:" + SECRET,
        "\u0661:" + SECRET,
        "1" * 5000 + ":" + SECRET,
        "1@" + "x" * 256 + ":" + SECRET,
    ],
)
def test_a_bad_key_is_named_without_its_secret(text: str) -> None:
    with pytest.raises(ConfigError, match="OTELCTX_KEYS") as caught:
        Keyring.parse(text)
    assert SECRET not in str(caught.value)


def test_nobody_is_trusted_by_default_loopback_included() -> None:
    trust = ClientTrust()
    assert trust.resolve("127.0.0.1", ["203.0.113.9"]) == "127.0.0.1"
    assert not trust.trusted("127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.5", ["10.0.0.1"], "203.0.113.5"),  # no proxy of ours: the header is anybody's
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),  # right-most that is no proxy
        ("10.0.0.1", ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [], None),  # a proxy does not itself send context
        ("10.0.0.1", ["10.0.0.2"], None),
        ("10.0.0.1", ["203.0.113.9, unknown"], None),
        ("10.0.0.1", ["203.0.113.9, "], None),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("unix:", [], None),
        (None, ["203.0.113.9"], None),
    ],
)
def test_the_client_is_the_right_most_hop_that_is_no_trusted_proxy(
    peer: str | None, forwarded: list[str], client: str | None
) -> None:
    assert ClientTrust((), ["10.0.0.0/8"]).resolve(peer, forwarded) == client


def test_trusted_clients_are_networks() -> None:
    trust = ClientTrust(["192.168.0.0/16", "2001:db8::/32"])
    assert trust.trusted("192.168.3.4")
    assert trust.trusted("::ffff:192.168.3.4")
    assert trust.trusted("2001:db8::1")
    assert not trust.trusted("192.169.0.1")
    assert not trust.trusted(None)
    assert not trust.trusted("unix:")
    with pytest.raises(ConfigError, match=r"OTELCTX_TRUSTED_CLIENTS.*'here'"):
        ClientTrust(["here"])
