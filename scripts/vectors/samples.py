"""What the recordings are made of: keys, a clock, boot ids, and states with every type at its limits."""

from __future__ import annotations

from typing import Final

from otelctx.context.keys import INT_MAX, INT_MIN, Value
from otelctx.context.state import State
from otelctx.delta.codec import to_header
from otelctx.policy.trust import ACK, FRAME, Key, Keyring
from scripts.vectors.forms import put_all

__all__ = ["BOOT_A", "BOOT_B", "KEYS", "NOW", "RING", "STATES", "VALUES", "seal_ack", "seal_frame"]

NOW: Final = 1_767_225_600  # 2026-01-01T00:00:00Z, the beginning of hour 490896
BOOT_A: Final = 0x0A0B0C0D
BOOT_B: Final = 0x0B0B0B0B

# The first signs. The second is another project's; the third has the same domain, for a rotation under way.
KEYS: Final = (
    Key(1, "default", bytes(range(32))),
    Key(7, "other.example", bytes(range(100, 132))),
    Key(255, "default", bytes(range(200, 216))),
)
RING: Final = Keyring(KEYS)

# Every type at its limits; the names are what the recordings call them.
VALUES: Final[dict[str, Value]] = {
    "str.empty": "",
    "str.ascii": "gold",
    "str.unicode": "naïve 名前 🧵",
    "str.nul": "a\0b",
    "str.longest": "x" * 1024,
    "str.longest.utf8": "ü" * 512,
    "int.zero": 0,
    "int.one": 1,
    "int.minus_one": -1,
    "int.varint": 64,
    "int.max": INT_MAX,
    "int.min": INT_MIN,
    "bool.false": False,
    "bool.true": True,
    "float.zero": 0.0,
    "float.one": 1.0,
    "float.tenth": 0.1,
    "float.smallest": 5e-324,
    "float.largest": 1.7976931348623157e308,
    "float.inf": float("inf"),
    "float.minus_inf": float("-inf"),
    "bytes.empty": b"",
    "bytes.octets": bytes(range(256)),
    "bytes.trailer": b"\x7a\x11" + bytes(17),
    "bytes.longest": b"\xff" * 1024,
}

_CHAT: Final[dict[str, Value]] = {"session.id": "chat-42abc", "tenant.id": "acme", "user.tier": "gold"}
_THIRTEEN: Final[dict[str, Value]] = {
    "session.id": "chat-42abc", "tenant.id": "acme", "user.id": "u-1234567", "gen_ai.conversation.id": "c-998877",
    "gen_ai.request.model": "SmolLM2-135M", "gen_ai.agent.name": "planner", "cloud.region": "eu-west-1",
    "client.locale": "en-GB", "user.tier": "gold", "request.priority": 1, "limit.tokens.total": 1000,
    "prompt.version": "v3.1.0", "canary.arm": "ring",
}  # fmt: skip


def _filled() -> State:
    """2900 bytes to the last: two values of 1024, and one that fills up."""
    state = put_all({"session.id": "s", "a": "x" * 1024, "b": b"y" * 1024})
    return state.put("c", "z" * (2900 - state.size - 9))


STATES: Final[dict[str, State]] = {
    "empty": State(),
    "one": put_all({"session.id": "chat-1"}),
    "chat": put_all(_CHAT),
    "chat, other tier": put_all({**_CHAT, "user.tier": "silver"}),
    "chat without tier": put_all({"session.id": "chat-42abc", "tenant.id": "acme"}),
    "no session": put_all({"tenant.id": "acme"}),
    "thirteen keys of the table": put_all(_THIRTEEN),
    "thirteen, one changed": put_all({**_THIRTEEN, "prompt.version": "v3.1.1"}),
    "literal keys": put_all({"session.id": "s", "app/a-b_c.d": "x", "0": 1, "a" * 64: True}),
    "sorted by bytes": put_all({"a.b": 1, "a-b": 2, "a/b": 3, "a_b": 4, "ab": 5, "a0": 6, "session.id": "s"}),
    "incomplete": put_all({**_CHAT, "otelctx.incomplete": True}),
    "one and true are different": put_all({"session.id": "s", "a": 1, "b": True, "c": 1.0, "d": "1", "e": b"1"}),
    "64 entries": put_all({"session.id": "s", "otelctx.incomplete": True, **{f"k{at:02}": at for at in range(62)}}),
    "2900 bytes": _filled(),
    **{name: put_all({"session.id": "s", "v": value}) for name, value in VALUES.items()},
}


def seal_frame(body: bytes, ring: Keyring = RING, now: float = NOW) -> str:
    """The header value of a signed frame."""
    return to_header(body + ring.sign(FRAME, body, now))


def seal_ack(body: bytes, ring: Keyring = RING, now: float = NOW) -> str:
    """The header value of a signed ack."""
    return to_header(body + ring.sign(ACK, body, now))
