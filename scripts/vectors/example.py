"""The worked example of ``docs/wire-format.md``: bytes of the recordings, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otelctx.context.state import Entry, State, encode_value, entry
from otelctx.delta.codec import encode_ack, encode_frame
from otelctx.delta.messages import Ack, AckKind, Held, delta, full, ref
from otelctx.policy.trust import ACK, FRAME
from scripts.vectors.samples import BOOT_A, KEYS, NOW, RING, STATES, seal_ack, seal_frame

__all__ = ["inserted"]

_BEGIN: Final = "<!-- example: written by python -m scripts.vectors -->\n"
_END: Final = "<!-- end of example -->\n"
_CHAT: Final = STATES["chat"]
_OTHER: Final = STATES["chat, other tier"]
_WIRE: Final = {0: "varint", 1: "64 bits", 2: "length", 5: "32 bits"}


def inserted(page: str) -> str:
    """``page`` with the example in its place. Raises ``ValueError`` if it has no place for it."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page needs a line {_BEGIN.strip()!r} and, further down, {_END.strip()!r}")
    return before + _BEGIN + "\n".join(_lines()) + "\n" + _END + after


def _lines() -> Iterator[str]:
    key = KEYS[0]
    yield f"Key {key.key_id} of domain `{key.domain}` has the master `{key.master.hex()}`; it is {NOW}"
    yield f"(Unix time), hour {NOW // 3600}. So the hour's key is `{key.for_hour(NOW // 3600).hex()}`."
    yield ""
    yield "The state has three entries. What is hashed for a leaf: length of the name, name, type byte, length, value."
    yield ""
    yield "```"
    yield from _state(_CHAT)
    yield "```"
    body = encode_frame(full(_CHAT))
    yield from _message("The first request carries it whole, as a FULL of", body, FRAME, seal_frame(body))
    ack = Ack(AckKind.ACK, _CHAT.root[:8], Held.PROCESS, BOOT_A, event=5, ups=(entry("usage.tokens.output", 16),))
    body = encode_ack(ack, signed=True)
    yield from _message("Its answer, with an up value,", body, ACK, seal_ack(body))
    body = encode_frame(ref(_CHAT))
    yield from _message("The fourth request with the same state is a REF of", body, FRAME, seal_frame(body))
    body = encode_frame(delta(_CHAT, _OTHER))
    yield from _message("`user.tier` becomes `silver`: a DELTA of", body, FRAME, seal_frame(body))


def _state(state: State) -> Iterator[str]:
    for item in state.entries():
        yield f"{_preimage(item)}   {item.name} = {item.value!r}"
        yield f"    leaf {item.leaf.hex()}"
    yield f"root {state.root.hex()}"


def _preimage(item: Entry) -> str:
    name, raw = item.name.encode(), encode_value(item.value)
    parts = (len(name).to_bytes(2, "big"), name, bytes((item.kind,)), len(raw).to_bytes(2, "big"), raw)
    return " ".join(part.hex() for part in parts)


def _message(what: str, body: bytes, direction: bytes, header: str) -> Iterator[str]:
    trailer = RING.sign(direction, body, NOW)
    yield ""
    yield f"{what} {len(body)} bytes and a trailer; in the header {len(header)} characters:"
    yield ""
    yield "```"
    yield from _fields(body)
    yield f"{trailer.hex()}   MAC trailer: tag, length, key id, MAC"
    yield header
    yield "```"


def _fields(body: bytes) -> Iterator[str]:
    at = 0
    while at < len(body):
        start, tag = at, body[at]
        at += 1
        kind = tag & 7
        if kind == 2:
            at += 1 + body[at]  # no field of the example is longer than 127 bytes
        elif kind == 0:
            while body[at] & 0x80:
                at += 1
            at += 1
        else:
            at += 8 if kind == 1 else 4
        yield f"{body[start:at].hex()}   field {tag >> 3}, {_WIRE[kind]}"
