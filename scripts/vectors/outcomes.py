"""``outcomes.json``: what a receiver makes of header lines, for every row of its table."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from otelctx.context.state import State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import delta, full, ref
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Receiver, Refuse, Run
from otelctx.policy.trust import ACK, FRAME, Key, Keyring
from scripts.vectors import bodies
from scripts.vectors.forms import key_form, state_form
from scripts.vectors.samples import KEYS, NOW, RING, STATES, seal_frame

__all__ = ["outcome_form", "record"]

_DOMAIN: Final = "default"
_HELD: Final = ("chat", "thirteen keys of the table")
_CHAT: Final = STATES["chat"]
_FULL: Final = encode_frame(full(_CHAT))


@dataclass(frozen=True)
class Case:
    name: str
    lines: list[str]
    trusted: bool = False
    on_unknown_base: Literal["resync", "proceed"] = "resync"


def _strangers() -> Iterator[Case]:
    """Lines and MACs: what stands before parsing."""
    good = seal_frame(_FULL)
    yield Case("FULL", [good])
    yield Case("two lines", [good, good])
    yield Case("two lines, one of them empty", [good, ""])
    yield Case("no byte sequence", ["frame"])
    yield Case("an empty line", [""])
    yield Case("4097 characters", [":" + "A" * 4095 + ":"])
    yield Case("no MAC, untrusted", [to_header(_FULL)])
    yield Case("no MAC, trusted", [to_header(_FULL)], trusted=True)
    yield Case("MAC of an ack", [to_header(_FULL + RING.sign(ACK, _FULL, NOW))])
    yield Case("MAC of two hours ago", [seal_frame(_FULL, now=NOW - 7200)])
    yield Case("MAC of the hour before", [seal_frame(_FULL, now=NOW - 1)])
    yield Case("MAC of the hour after", [seal_frame(_FULL, now=NOW + 3600)])
    yield Case("MAC of a key that is not known", [seal_frame(_FULL, Keyring([Key(9, _DOMAIN, KEYS[0].master)]))])
    wrong = _FULL + RING.sign(FRAME, _FULL, NOW)[:-1] + b"\0"
    yield Case("a MAC that is not valid", [to_header(wrong)])
    yield Case("a MAC that is not valid, from a trusted address", [to_header(wrong)], trusted=True)
    yield Case("a MAC that is not valid, on what can't be parsed", [to_header(b"\xff" + wrong)])
    yield Case("a MAC alone", [to_header(RING.sign(FRAME, b"", NOW))])
    yield Case("a MAC alone, from a trusted address", [to_header(RING.sign(FRAME, b"", NOW))], trusted=True)
    yield Case("no bytes, from a trusted address", ["::"], trusted=True)
    look_alike = _FULL[-2:] + encode_frame(full(STATES["bytes.trailer"]))[:-2]
    yield Case("a value at the end that looks like a MAC, untrusted", [to_header(look_alike)])
    yield Case("a value at the end that looks like a MAC, trusted", [to_header(look_alike)], trusted=True)
    yield Case("a value at the end that looks like a MAC, with one behind", [seal_frame(look_alike)])
    yield Case("not protobuf, untrusted", [to_header(b"\xff")])
    yield Case("not protobuf, trusted", [to_header(b"\xff")], trusted=True)


def _wrong_root(message: Any) -> None:
    message.root = bytes(range(16))


def _newer_table(message: Any) -> None:
    message.table = 2


def _readable() -> Iterator[Case]:
    """What can be read, and is answered."""
    unheld = STATES["chat, other tier"]
    modes: tuple[Literal["resync", "proceed"], ...] = ("resync", "proceed")
    for mode in modes:
        yield Case(f"REF of a state that is held, {mode}", [_sealed(ref(_CHAT))], on_unknown_base=mode)
        yield Case(f"REF of a state that is not held, {mode}", [_sealed(ref(unheld))], on_unknown_base=mode)
        yield Case(f"DELTA to a base that is held, {mode}", [_sealed(delta(_CHAT, unheld))], on_unknown_base=mode)
        yield Case(f"DELTA to a base that is not held, {mode}", [_sealed(delta(unheld, _CHAT))], on_unknown_base=mode)
        wrong = bodies.changed(encode_frame(delta(_CHAT, unheld)), _wrong_root)
        yield Case(f"DELTA whose root is wrong, {mode}", [seal_frame(wrong)], on_unknown_base=mode)
        wrong = bodies.changed(_FULL, _wrong_root)
        yield Case(f"FULL whose root is wrong, {mode}", [seal_frame(wrong)], on_unknown_base=mode)
    yield Case("FULL whose root is of minus zero", [seal_frame(_minus_zero_root())])
    yield Case("REF of the empty state", [_sealed(ref(State()))])
    yield Case("REF of another domain", [seal_frame(encode_frame(ref(_CHAT)), Keyring([KEYS[1]]))])
    yield Case("REF without MAC, trusted", [to_header(encode_frame(ref(_CHAT)))], trusted=True)
    yield Case("REF signed by another key of the domain", [seal_frame(encode_frame(ref(_CHAT)), Keyring([KEYS[2]]))])
    for kind, body in (
        ("FULL", _FULL),
        ("REF", encode_frame(ref(_CHAT))),
        ("DELTA", encode_frame(delta(_CHAT, unheld))),
    ):
        newer = bodies.changed(body, _newer_table)
        yield Case(f"{kind} of a newer table", [seal_frame(newer)])
    unknown = bodies.changed(bodies.changed(_FULL, _newer_table), lambda m: m.put.add(id=62, text="x"))
    yield Case("FULL of a newer table, with an id of it", [seal_frame(unknown)])


def _minus_zero_root() -> bytes:
    """A FULL of −0.0, with a root over those bytes: what a sender sends that does not normalise."""

    def leaf(name: bytes, kind: int, raw: bytes) -> bytes:
        text = struct.pack(">H", len(name)) + name + bytes((kind,)) + struct.pack(">H", len(raw)) + raw
        return hashlib.sha256(text).digest()[:16]

    minus = struct.pack(">d", -0.0)
    root = hashlib.sha256(leaf(b"session.id", 1, b"s") + leaf(b"v", 4, minus)).digest()[:16]
    body = bodies.ACCEPTED["minus zero, which is stored as zero"]
    return bodies.changed(body, lambda m: m.MergeFrom(type(m)(root=root)))


def _sealed(frame: Any) -> str:
    return seal_frame(encode_frame(frame))


def _cases() -> Iterator[Case]:
    yield from _strangers()
    yield from _readable()
    for name, body in {**bodies.MALFORMED, **bodies.OVERSIZED, **bodies.LIMITS, **bodies.ACCEPTED}.items():
        yield Case(name, [seal_frame(body)])


def outcome_form(outcome: Accepted | Ignored | Refuse | Run) -> dict[str, Any]:
    if isinstance(outcome, Accepted):
        return {
            "outcome": "accepted",
            "kind": outcome.kind.name,
            "domain": outcome.domain,
            "root": outcome.state.root.hex(),
            "held": outcome.held.name,
        }
    if isinstance(outcome, Ignored):
        return {"outcome": "ignored", "reason": outcome.reason}
    form = {"reason": outcome.reason.name, "kind": outcome.kind.name, "root": outcome.root.hex()}
    return {"outcome": type(outcome).__name__.lower(), **form}


def _open(case: Case) -> dict[str, Any]:
    bases = BaseCache(Limits())
    for name in _HELD:
        bases.put(_DOMAIN, STATES[name], "192.0.2.1")
    receiver = Receiver(bases, on_unknown_base=case.on_unknown_base)
    outcome = receiver.open(
        case.lines,
        client="192.0.2.1",
        trusted=case.trusted,
        verify=lambda body, mac: RING.verify(FRAME, body, mac, NOW),
    )
    if isinstance(outcome, NeedBase):
        outcome = receiver.give_up(outcome)
    return outcome_form(outcome)


def record() -> dict[str, Any]:
    return {
        "about": (
            "each case meets a receiver that holds the states listed, in that domain, and has no shared store. "
            "trusted: the client's address is believed without MAC. A frame without MAC has the domain of no characters"
        ),
        "keys": [key_form(key) for key in KEYS],
        "time": NOW,
        "held": [{"domain": _DOMAIN, "state": state_form(STATES[name])} for name in _HELD],
        "cases": [
            {
                "name": case.name,
                "lines": case.lines,
                "trusted": case.trusted,
                "on_unknown_base": case.on_unknown_base,
                **_open(case),
            }
            for case in _cases()
        ],
    }
