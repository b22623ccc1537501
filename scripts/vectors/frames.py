"""``frames.json``: FULL, DELTA and REF, plain and signed, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from otelctx.context.state import State
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.messages import Frame, delta, full, ref
from otelctx.policy.trust import FRAME, Keyring
from scripts.vectors.forms import frame_form, key_form, put_all, state_form
from scripts.vectors.samples import KEYS, NOW, RING, STATES, VALUES

__all__ = ["record"]

_Case = tuple[str, Frame, State | None, State, int | None]  # name, frame, base, result, signing key


def _cases() -> Iterator[_Case]:
    plain = [name for name in STATES if name not in VALUES]
    for name in plain:
        yield f"FULL: {name}", full(STATES[name]), None, STATES[name], 1
    for name in VALUES:
        yield f"FULL: {name}", full(STATES[name]), None, STATES[name], None
    chat = STATES["chat"]
    yield "FULL without MAC", full(chat), None, chat, None
    yield "FULL signed by another domain", full(chat), None, chat, 7
    yield "FULL signed by key 255", full(chat), None, chat, 255
    yield "REF", ref(chat), chat, chat, 1
    yield "REF without MAC", ref(chat), chat, chat, None
    thirteen, changed = STATES["thirteen keys of the table"], STATES["thirteen, one changed"]
    yield "DELTA of one string", delta(thirteen, changed), thirteen, changed, 1
    yield "DELTA without MAC", delta(thirteen, changed), thirteen, changed, None
    bare = STATES["chat without tier"]
    yield "DELTA that deletes by id", delta(chat, bare), chat, bare, 1
    literal = STATES["literal keys"]
    fewer = literal.drop(["app/a-b_c.d", "0"])
    yield "DELTA that deletes by name", delta(literal, fewer), literal, fewer, 1
    mixed = put_all({"user.tier": "gold", "zz": -5, "a" * 64: False}, fewer.drop(["session.id"]))
    yield "DELTA that puts and deletes, by id and by name", delta(literal, mixed), literal, mixed, 1
    marked = STATES["incomplete"]
    yield "DELTA that marks the state incomplete", delta(chat, marked), chat, marked, 1
    yield "DELTA that changes a type only", *_typed(), 1


def _typed() -> tuple[Frame, State, State]:
    one, true = put_all({"session.id": "s", "a": 1}), put_all({"session.id": "s", "a": True})
    return delta(one, true), one, true


def record() -> dict[str, Any]:
    frames = []
    for name, frame, base, state, signer in _cases():
        body = encode_frame(frame)
        trailer = b"" if signer is None else _ring(signer).sign(FRAME, body, NOW)
        frames.append(
            {
                "name": name,
                "frame": frame_form(frame),
                "base_state": None if base is None else state_form(base),
                "state": state_form(state),
                "body": body.hex(),
                "signed_by": signer,
                "trailer": trailer.hex(),
                "header": to_header(body + trailer),
            }
        )
    return {
        "about": (
            "header = ':' base64(body, trailer) ':'; base_state, with the frame applied, gives state, whose root is "
            "the frame's. Bytes are those of this implementation; what a receiver must agree on are values and roots"
        ),
        "keys": [key_form(key) for key in KEYS],
        "time": NOW,
        "frames": frames,
    }


def _ring(signer: int) -> Keyring:
    return RING if KEYS[0].key_id == signer else Keyring([key for key in KEYS if key.key_id == signer])
