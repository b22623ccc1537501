"""``acks.json``: acks to the byte, how one is shortened, and those that a sender must ignore."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from otelctx.context.keys import INT_MAX, INT_MIN
from otelctx.context.state import Window, entry
from otelctx.delta.codec import decode_ack, encode_ack, to_header
from otelctx.delta.messages import Ack, AckKind, Held, NackReason
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.policy.trust import ACK, FRAME, Keyring
from scripts.vectors.forms import ack_form, key_form
from scripts.vectors.samples import BOOT_A, KEYS, NOW, RING, STATES, seal_ack

__all__ = ["record"]

_ROOT = STATES["chat"].root[:8]
_PLAIN = Ack(AckKind.ACK, _ROOT, held=Held.PROCESS, boot_id=BOOT_A)
_WINDOW = Window(used=812, limit=2048, evicted=96, level=1, generation=3, version=17)
_USAGE = (entry("session.turn", 4), entry("usage.tokens.input", 120), entry("usage.tokens.output", 16))

_ACKS: dict[str, tuple[Ack, bool]] = {
    "ACK, held by the process": (_PLAIN, True),
    "ACK without MAC": (_PLAIN, False),
    "ACK, not held": (replace(_PLAIN, held=Held.NONE), True),
    "ACK, held by all workers": (replace(_PLAIN, held=Held.SHARED), True),
    "ACK, boot id 1": (replace(_PLAIN, boot_id=1), True),
    "ACK, boot id of 32 bits": (replace(_PLAIN, boot_id=2**32 - 1), True),
    "ACK, final": (replace(_PLAIN, final=True), True),
    "ACK of the empty state": (replace(_PLAIN, root=bytes(8), held=Held.NONE), True),
    "ACK with a window": (replace(_PLAIN, window=_WINDOW), True),
    "ACK with an empty window": (replace(_PLAIN, window=Window(0, 0)), True),
    "ACK with the largest window": (
        replace(_PLAIN, window=Window(2**32 - 1, 2**32 - 1, 2**64 - 1, 4, 2**32 - 1, 2**64 - 1)),
        True,
    ),
    "ACK with up values and their event": (replace(_PLAIN, event=0x1122334455667788, ups=_USAGE), True),
    "ACK with up values, event of 64 bits, window, final": (
        replace(_PLAIN, event=2**64 - 1, ups=_USAGE, window=_WINDOW, final=True),
        True,
    ),
    "ACK with an up value of each type": (
        replace(
            _PLAIN,
            ups=(
                entry("app.any", True),
                entry("app.bytes", b"\x00\xff"),
                entry("app.float", 0.25),
                entry("app.max", INT_MAX),
                entry("app.min", INT_MIN),
                entry("app.text", "ü"),
            ),
        ),
        True,
    ),
    "ACK with the longest up value": (replace(_PLAIN, ups=(entry("app.text", "ü" * 128),)), True),
    "ACK that names another place": (replace(_PLAIN, moved="10.0.0.7:8000"), True),
    "NACK, base unknown": (_PLAIN, True),
    "NACK, base unknown, without MAC": (_PLAIN, False),
    "NACK, root": (_PLAIN, True),
    "NACK, limit": (_PLAIN, True),
    "NACK, table": (_PLAIN, True),
}
_REASONS = {"root": NackReason.ROOT, "limit": NackReason.LIMIT, "table": NackReason.TABLE}


def _made(name: str, ack: Ack) -> Ack:
    if not name.startswith("NACK"):
        return ack
    reason = _REASONS.get(name.partition(", ")[2], NackReason.UNKNOWN_BASE)
    return replace(ack, kind=AckKind.NACK, held=Held.NONE, reason=reason, final=True)


def _recorded() -> list[dict[str, Any]]:
    found = []
    for name, (given, signed) in _ACKS.items():
        ack = _made(name, given)
        body = encode_ack(ack, signed=signed)
        trailer = RING.sign(ACK, body, NOW) if signed else b""
        form = {"name": name, "ack": ack_form(ack), "body": body.hex(), "signed": signed, "trailer": trailer.hex()}
        found.append({**form, "header": to_header(body + trailer)})
    return found


def _shortened() -> list[dict[str, Any]]:
    many = tuple(entry(f"app.k{at:02}", "v" * 24) for at in range(16))
    cases = {
        "sixteen up values, signed": (replace(_PLAIN, ups=_USAGE + many, event=5, window=_WINDOW), True),
        "sixteen up values, not signed": (replace(_PLAIN, ups=_USAGE + many, event=5, window=_WINDOW), False),
        "one up value of 256 bytes too many": (
            replace(_PLAIN, ups=(entry("app.a", "a" * 256), entry("app.b", "b" * 256))),
            True,
        ),
    }
    found = []
    for name, (ack, signed) in cases.items():
        body = encode_ack(ack, signed=signed)
        kept = len(decode_ack(body).ups)
        found.append({"name": name, "given": ack_form(ack), "signed": signed, "kept": kept, "body": body.hex()})
    return found


def _ignored() -> list[dict[str, Any]]:
    body = encode_ack(_PLAIN, signed=True)
    good = seal_ack(body)
    twice = pb.Ack.FromString(body)
    twice.up.add(id=34, int=1)
    twice.up.add(id=34, int=2)
    long = pb.Ack.FromString(body)
    long.up.add(name="app.long", text="x" * 257)
    bare = pb.Ack.FromString(body)
    bare.ClearField("root")
    old = pb.Ack.FromString(body)
    old.ClearField("table")
    kind = pb.Ack.FromString(body)
    kind.held = pb.Ack.Held.ValueType(3)
    cases = {
        "no MAC, where there are keys": [to_header(body)],
        "MAC of a frame": [to_header(body + RING.sign(FRAME, body, NOW))],
        "MAC of a key that is not known": [seal_ack(body, Keyring([replace(KEYS[0], key_id=9)]))],
        "MAC older than two hours": [seal_ack(body, now=NOW - 2 * 3600)],
        "one bit of the MAC": [good[:-3] + ("A" if good[-3] != "A" else "B") + good[-2:]],
        "two lines": [good, good],
        "two in one line": [f"{good}, {good}"],
        "no colons": [good.strip(":")],
        "not an ack": [seal_ack(b"\xff\xff\xff")],
        "over 512 characters": [to_header(body + bytes(400))],
        "no root": [seal_ack(bare.SerializeToString())],
        "no table revision": [seal_ack(old.SerializeToString())],
        "a word for held that does not exist": [seal_ack(kind.SerializeToString())],
        "an up key twice": [seal_ack(twice.SerializeToString())],
        "an up value of 257 bytes": [seal_ack(long.SerializeToString())],
        "the root of another exchange": [seal_ack(encode_ack(replace(_PLAIN, root=bytes(8)), signed=True))],
    }
    return [{"name": name, "lines": lines, "root": _ROOT.hex()} for name, lines in cases.items()]


def record() -> dict[str, Any]:
    return {
        "about": (
            "acks: to the byte. shortened: what is written of an ack that does not fit into 512 header characters. "
            "ignored: otelctx-ack lines that a sender whose frame has this root drops"
        ),
        "keys": [key_form(key) for key in KEYS],
        "time": NOW,
        "acks": _recorded(),
        "shortened": _shortened(),
        "ignored": _ignored(),
    }
