"""What goes into a frame or an ack comes out of it, octet by octet, and the same state is always the same bytes."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State, Window, entry
from otelctx.delta.codec import decode_ack, decode_frame, encode_ack, encode_frame, from_header, split_mac, to_header
from otelctx.delta.messages import Ack, AckKind, Held, NackReason, delta, full, ref
from otelctx.policy.trust import ACK, FRAME, Keyring

KEYS = Keyring.parse("1:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVoxMjM0NTY=")
NOW = 1_800_000_000.0
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_./-]{0,20}", fullmatch=True) | st.sampled_from(
    ["session.id", "user.tier", "otelctx.incomplete", "usage.tokens.input"]
)
VALUES = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False).map(lambda x: x + 0.0)
    | st.binary(max_size=40)
)
CONTENTS = st.dictionaries(NAMES, VALUES, max_size=12)


def state(contents: dict[str, Any]) -> State:
    return State({name: entry(name, value) for name, value in contents.items()})


def travel(body: bytes, label: bytes) -> bytes:
    """Signed into a header line and out of it again."""
    read, mac = split_mac(from_header(to_header(body + KEYS.sign(label, body, NOW)).encode()))
    assert mac is not None
    assert KEYS.verify(label, read, mac, NOW) == "default"
    return read


@given(CONTENTS, CONTENTS)
def test_a_state_arrives_as_it_was_by_each_kind_of_frame(old: dict[str, Any], new: dict[str, Any]) -> None:
    base, target = state(old), state(new)
    for frame, start in ((full(target), EMPTY), (delta(base, target), base), (ref(target), target)):
        read = decode_frame(travel(encode_frame(frame), FRAME))
        assert read == frame
        arrived = start.apply(read.put, read.delete)
        assert arrived.root == read.root == target.root
        assert [(e.name, e.kind, repr(e.value)) for e in arrived.entries()] == [
            (e.name, e.kind, repr(e.value)) for e in target.entries()
        ]


@given(CONTENTS, CONTENTS, st.integers(0, 2**32))
def test_equal_states_are_equal_bytes_however_they_came_about(
    contents: dict[str, Any], detour: dict[str, Any], seed: int
) -> None:
    """HTTP/2 sends a repeated header line as one byte, so it must be the same line."""
    straight = state(contents)
    around = state(detour)
    names = list(contents)
    random.Random(seed).shuffle(names)
    for name in names:
        around = around.put(name, contents[name])
    around = around.drop(set(detour) - set(contents))
    again = EMPTY.apply(decode_frame(encode_frame(full(straight))).put, ())
    for base in (EMPTY, state(detour)):
        lines = {
            to_header(encode_frame(frame) + KEYS.sign(FRAME, encode_frame(frame), NOW))
            for made in (straight, around, again)
            for frame in (full(made), ref(made))
        }
        assert len(lines) == 2
        assert len({encode_frame(delta(base, made)) for made in (straight, around, again)}) == 1


@given(CONTENTS, NAMES, VALUES)
def test_other_states_are_other_bytes(contents: dict[str, Any], name: str, value: Any) -> None:
    one = state(contents)
    other = one.put(name, value)
    assert (encode_frame(ref(one)) == encode_frame(ref(other))) is (one.root == other.root)
    before, after = one.entry(name), other.entry(name)
    assert after is not None
    assert (one.root == other.root) is after.same(before)


def test_every_octet_and_every_kind_of_character_arrives() -> None:
    octets = bytes(range(256))
    text = "".join(map(chr, [*range(256), 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF]))
    sent = EMPTY.put("octets", octets).put("text", text).put("empty", "").put("none", b"")
    assert dict(EMPTY.apply(decode_frame(travel(encode_frame(full(sent)), FRAME)).put, ())) == dict(sent)
    for octet in octets:
        one = EMPTY.put("octet", bytes((octet,)) * 3)
        assert dict(EMPTY.apply(decode_frame(travel(encode_frame(full(one)), FRAME)).put, ())) == dict(one)


ACKS = st.builds(
    Ack,
    kind=st.sampled_from(AckKind),
    root=st.binary(min_size=8, max_size=8),
    held=st.sampled_from(Held),
    boot_id=st.integers(0, 2**32 - 1),
    reason=st.sampled_from(NackReason),
    table=st.integers(1, 2**32 - 1),
    final=st.booleans(),
    event=st.integers(0, 2**64 - 1),
    ups=st.dictionaries(NAMES, VALUES, max_size=4).map(lambda d: tuple(entry(n, v) for n, v in d.items())),
    window=st.none()
    | st.builds(
        Window,
        used=st.integers(0, 2**32 - 1),
        limit=st.integers(0, 2**32 - 1),
        evicted=st.integers(0, 2**64 - 1),
        level=st.integers(0, 4),
        generation=st.integers(0, 2**32 - 1),
        version=st.integers(0, 2**64 - 1),
    ),
    moved=st.text(st.characters(codec="ascii"), max_size=30),
)


@given(ACKS)
def test_an_ack_arrives_as_it_was_or_says_what_it_lacks(ack: Ack) -> None:
    body = encode_ack(ack, signed=True)
    read = decode_ack(travel(body, ACK))
    assert encode_ack(read, signed=True) == body
    if not read.truncated:
        assert read == ack
        return
    assert read.ups == ack.ups[: len(read.ups)]
    assert (len(read.ups), read.moved) != (len(ack.ups), ack.moved)
    fixed = ("kind", "root", "held", "boot_id", "reason", "table", "final", "event", "window")
    assert [getattr(read, name) for name in fixed] == [getattr(ack, name) for name in fixed]
