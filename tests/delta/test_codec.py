from __future__ import annotations

import contextlib
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State, Window, entry
from otelctx.delta.codec import (
    decode_ack,
    decode_frame,
    encode_ack,
    encode_frame,
    from_header,
    split_mac,
    to_header,
)
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind, Held, NackReason, delta, full, ref
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.errors import MalformedFrame, OversizedFrame, ProtocolError

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_./-]{0,63}", fullmatch=True) | st.sampled_from(
    ["session.id", "user.tier", "otelctx.incomplete", "limit.tokens.total"]
)
VALUES = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False).map(lambda x: x + 0.0)
    | st.binary(max_size=40)
)
TRAILER = b"\x7a\x11" + bytes(17)


@st.composite
def states(draw: st.DrawFn) -> State:
    state = EMPTY
    for name, value in draw(st.dictionaries(NAMES, VALUES, max_size=15)).items():
        state = state.put(name, value)
    return state


@given(states(), states())
def test_frames_round_trip_and_the_same_frame_is_the_same_bytes(base: State, state: State) -> None:
    for frame in (full(state), ref(state), delta(base, state)):
        data = encode_frame(frame)
        assert decode_frame(data) == frame
        assert encode_frame(decode_frame(data)) == data


@given(states())
def test_the_size_that_a_state_counts_is_the_size_of_its_full_frame(state: State) -> None:
    reserved = 0 if "otelctx.incomplete" in state else 6
    assert state.size == len(encode_frame(full(state))) + len(TRAILER) + reserved


def test_the_largest_state_fits_into_a_header() -> None:
    state = EMPTY
    for at, size in enumerate([1024, 1024, 774]):
        state = state.put(f"k{at}", "x" * size)
    assert 2890 < state.size <= 2900
    assert len(to_header(encode_frame(full(state)) + TRAILER)) <= 4096


def test_sizes_with_mac_are_the_documented_ones(thirteen: State) -> None:
    def line(frame: Frame) -> int:
        return len(to_header(encode_frame(frame) + TRAILER))

    assert line(ref(thirteen)) == 58
    assert line(delta(thirteen, thirteen.put("user.tier", "silver"))) <= 86
    assert line(full(thirteen)) <= 330
    ack = Ack(AckKind.ACK, thirteen.root[:8], Held.PROCESS, 0xDEADBEEF)
    assert len(to_header(encode_ack(ack, signed=False))) <= 34
    windowed = Ack(AckKind.ACK, thirteen.root[:8], Held.PROCESS, 1, window=Window(480, 512, 90, 0, 1, 7))
    assert len(to_header(encode_ack(windowed, signed=False))) <= 54


def raw(**fields: object) -> bytes:
    values = {"kind": FrameKind.FULL, "root": bytes(16), "table": 1} | fields
    return pb.Frame(**values).SerializeToString()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff\xff",
        b"\x0a",
        b"",
        raw(kind=0),
        raw(kind=9),
        raw(table=0),
        raw(root=b""),
        raw(root=bytes(15)),
        raw(kind=FrameKind.DELTA),
        raw(kind=FrameKind.DELTA, base=bytes(7)),
        raw(kind=FrameKind.REF, base=bytes(8)),
        raw(put=[pb.Entry(text="x")]),
        raw(put=[pb.Entry(name="a")]),
        raw(put=[pb.Entry(id=63, text="x")]),
        raw(put=[pb.Entry(id=2**31, text="x")]),
        raw(put=[pb.Entry(name="session.id", text="x")]),
        raw(put=[pb.Entry(name="UPPER", text="x")]),
        raw(put=[pb.Entry(name="a", text="x"), pb.Entry(name="a", int=1)]),
        raw(put=[pb.Entry(name="a", float=float("nan"))]),
        raw(kind=FrameKind.REF, put=[pb.Entry(name="a", text="x")]),
        raw(del_names=["a"]),
        raw(kind=FrameKind.DELTA, base=bytes(8), del_names=[""]),
        raw(kind=FrameKind.DELTA, base=bytes(8), del_names=["a", "a"]),
        raw(kind=FrameKind.DELTA, base=bytes(8), del_ids=[99]),
        raw(kind=FrameKind.DELTA, base=bytes(8), del_names=["a"], put=[pb.Entry(name="a", int=1)]),
    ],
)
def test_what_is_malformed_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_frame(body)


@pytest.mark.parametrize(
    "body",
    [
        raw(put=[pb.Entry(name=f"k{n}", int=1) for n in range(65)]),
        raw(kind=FrameKind.DELTA, base=bytes(8), del_names=[f"k{n}" for n in range(65)]),
        raw(put=[pb.Entry(name="a", text="x" * 1025)]),
        raw(put=[pb.Entry()] * 1400),
    ],
)
def test_what_is_too_large_is_refused(body: bytes) -> None:
    with pytest.raises(OversizedFrame):
        decode_frame(body)


def test_entries_of_a_newer_table_are_not_read_at_all() -> None:
    frame = decode_frame(raw(table=2, put=[pb.Entry(id=60, text="x")]))
    assert (frame.table, frame.put) == (2, ())


@given(st.binary(max_size=4000))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    for decode in (decode_frame, decode_ack, lambda d: from_header(d), lambda d: split_mac(d)):
        with contextlib.suppress(ProtocolError):
            decode(data)


@given(st.binary(max_size=3060))
def test_header_values_round_trip(data: bytes) -> None:
    assert from_header(to_header(data)) == data
    assert from_header(f" {to_header(data)}\t".encode()) == data


@pytest.mark.parametrize(
    "value",
    [
        "",
        ":",
        "::x",
        "YWJj",
        ":YWJj",
        "YWJj:",
        ":YW=Jj:",
        ":Y W J j:",
        ":YWJj:;a=1",
        ":\xffWJj:",
        ":YQ:",
        ":YQ===:",
        ":YWJj=:",
        ":YWJj====:",
        ":====:",
        ":YQ==:,:YQ==:",
    ],
)
def test_a_header_value_is_one_strict_byte_sequence(value: str) -> None:
    with pytest.raises(MalformedFrame):
        from_header(value)


def test_a_header_value_is_bounded_before_it_is_decoded() -> None:
    assert len(from_header(":" + "A" * 4080 + ":")) == 3060
    with pytest.raises(OversizedFrame):
        from_header(":" + "A" * 4084 + ":")
    with pytest.raises(OversizedFrame):
        from_header(":" + "A" * 10_000_000 + ":")
    with pytest.raises(OversizedFrame):
        to_header(bytes(3061))


def test_a_trailer_is_split_only_where_a_field_starts() -> None:
    body = encode_frame(full(EMPTY.put("a", 1)))
    assert split_mac(body + TRAILER) == (body, TRAILER[2:])
    # The last 19 bytes of this one look like a trailer, but they are inside a value.
    lookalike = encode_frame(Frame(FrameKind.FULL, bytes(16), put=(entry("a", b"xx" + b"\x7a\x11" + bytes(15)),)))
    assert lookalike[-19:-17] == b"\x7a\x11"
    assert split_mac(lookalike) == (lookalike, None)


@given(
    ups=st.dictionaries(NAMES, st.text(max_size=40) | st.integers(-(2**63), 2**63 - 1), max_size=20),
    signed=st.booleans(),
)
def test_an_ack_stays_within_512_characters_and_says_when_it_was_shortened(
    ups: dict[str, str | int], signed: bool
) -> None:
    entries = tuple(entry(name, value) for name, value in ups.items())
    ack = Ack(AckKind.ACK, bytes(8), Held.SHARED, 7, final=True, event=2**64 - 1, ups=entries)
    data = encode_ack(ack, signed=signed)
    assert len(to_header(data + (TRAILER if signed else b""))) <= 512
    read = decode_ack(data)
    assert read.ups == entries[: len(read.ups)]
    assert read.truncated is (len(read.ups) < len(entries))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("first", range(12))
def test_an_ack_carries_as_many_values_as_there_is_room_for_and_no_more(first: int, signed: bool) -> None:
    entries = (entry("first", "x" * (first + 1)), *[entry(f"k{n:02}", "x" * 3) for n in range(60)])
    data = encode_ack(Ack(AckKind.ACK, bytes(8), event=1, ups=entries), signed=signed)
    room = 381 - (len(TRAILER) if signed else 0)
    assert len(to_header(data + (TRAILER if signed else b""))) <= 512
    assert len(data) <= room < len(data) + entries[1].size


@pytest.mark.parametrize(
    "fields", [{"root": bytes(7)}, {"root": b""}, {"table": 0}, {"kind": 2}, {"held": 3}, {"reason": 9}]
)
def test_a_malformed_ack_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        decode_ack(pb.Ack(**({"root": bytes(8), "table": 1} | fields)).SerializeToString())


def test_an_ack_of_too_many_values_is_refused() -> None:
    """Sixty-five fit into its bytes if their names are short enough."""
    singles = string.digits + string.ascii_lowercase
    up = [pb.Entry(name=name, bool=True) for name in [*singles, *(f"a{c}" for c in singles)]]
    assert len(decode_ack(pb.Ack(root=bytes(8), table=1, up=up[:64]).SerializeToString()).ups) == 64
    with pytest.raises(OversizedFrame, match="65 up entries"):
        decode_ack(pb.Ack(root=bytes(8), table=1, up=up[:65]).SerializeToString())


def test_an_ack_is_bounded_before_it_is_parsed_whatever_carries_it() -> None:
    """A header line has been measured by then; an envelope of an application's own has not."""
    body = pb.Ack(root=bytes(8), table=1, moved="w" * 494).SerializeToString()
    assert (len(body), decode_ack(body).moved) == (509, "w" * 494)
    for more in (4, 10_000_000):
        with pytest.raises(OversizedFrame):
            decode_ack(body + b"\xff" * more)  # which is no protobuf: it was not looked at


@pytest.mark.parametrize("moved", ["w" * 300, "w" * 500])
def test_a_hint_that_an_ack_has_no_room_for_goes_before_values_do(moved: str) -> None:
    ack = Ack(AckKind.ACK, bytes(8), event=1, ups=(entry("session.turn", 3), entry("k", "x" * 200)), moved=moved)
    data = encode_ack(ack, signed=True)
    assert len(to_header(data + TRAILER)) <= 512
    read = decode_ack(data)
    assert (read.moved, read.ups, read.truncated) == ("", ack.ups, True)


def test_acks_round_trip_whole() -> None:
    ack = Ack(
        AckKind.NACK, b"12345678", Held.NONE, 2**32 - 1, NackReason.ROOT, 1, True, 5, (entry("session.turn", 3),),
        Window(1, 2, 3, 4, 5, 6), "worker-2",
    )  # fmt: skip
    assert decode_ack(encode_ack(ack, signed=True)) == ack
