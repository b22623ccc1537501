"""Bytes of frames and acks, and the header line that carries them.

    header line   ":" base64 ":"                      at most 4096 characters (RFC 9651, byte sequence)
    message       body [ 7a 11 | key id | MAC ]       at most 3060 bytes; body as in proto/otelctx/v1/otelctx.proto

The MAC is over the body's bytes as they stand, so they are split off before protobuf sees them and never serialised a
second time: protobuf does not promise the same bytes twice. This encoder does, within one version of the library, since
there are no maps and entries come sorted. HTTP/2 compresses a repeated line to one byte only because of it.

Inbound bytes are bounded before they are parsed, counted before they become Python objects (which cost ten times what
parsing costs), and checked before they become values. Whatever they are, nothing but a
:class:`~otelctx.errors.ProtocolError` is raised.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Final

from google.protobuf.message import DecodeError

from otelctx.context.keys import MAX_DOWN_BYTES, MAX_UP_BYTES, NAME, Value, normalise
from otelctx.context.state import Entry, Window, entry
from otelctx.delta.limits import (
    BASE_BYTES,
    MAC_BYTES,
    MAX_ACK_CHARS,
    MAX_ENTRIES,
    MAX_FRAME_BYTES,
    MAX_HEADER_CHARS,
    ROOT_BYTES,
)
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind, Held, NackReason
from otelctx.delta.table import TABLE, Table
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.errors import ContextLimitExceeded, ContextTypeError, MalformedFrame, OversizedFrame

__all__ = [
    "decode_ack",
    "decode_frame",
    "encode_ack",
    "encode_frame",
    "from_header",
    "has_trailer",
    "split_mac",
    "to_header",
]

# 64 entries put and 128 deleted, and what later versions may add. Fields are walked before it is known whose they are.
_MAX_FIELDS: Final = 256
_TRAILER: Final = b"\x7a\x11"  # field 15, length-delimited, 17 bytes: key id and MAC


# --- header line: one RFC 9651 byte sequence ---


def to_header(data: bytes) -> str:
    """``:base64:``. Raises :class:`~otelctx.errors.OversizedFrame` over 3060 bytes."""
    if len(data) > MAX_FRAME_BYTES:
        raise OversizedFrame(f"message of {len(data)} bytes; at most {MAX_FRAME_BYTES} go into a header")
    return f":{binascii.b2a_base64(data, newline=False).decode()}:"


def from_header(value: bytes | str) -> bytes:
    """Bytes of a header value. Bounded before it is decoded; strict, as RFC 9651 asks for items.

    Raises :class:`~otelctx.errors.OversizedFrame` or :class:`~otelctx.errors.MalformedFrame`.
    """
    if len(value) > MAX_HEADER_CHARS:
        raise OversizedFrame(f"header value of {len(value)} characters; at most {MAX_HEADER_CHARS} are read")
    if isinstance(value, str):
        value = value.encode("latin-1", "replace")
    value = value.strip(b" \t")
    if len(value) < 2 or value[:1] != b":" or value[-1:] != b":":
        raise MalformedFrame("a header value is one byte sequence between colons")
    try:
        data = binascii.a2b_base64(value[1:-1], strict_mode=True)
    except binascii.Error as exc:
        raise MalformedFrame(f"not base64: {exc}") from None
    if len(value) - 2 != (len(data) + 2) // 3 * 4:  # strict mode lets padding through that follows a whole group
        raise MalformedFrame("not base64: padding where there is nothing to pad")
    if len(data) > MAX_FRAME_BYTES:
        raise OversizedFrame(f"message of {len(data)} bytes; at most {MAX_FRAME_BYTES} are read")
    return data


# --- MAC trailer ---


def has_trailer(data: bytes) -> bool:
    """Whether the last 19 bytes look like a MAC trailer. Bytes of a value can, too: see :func:`split_mac`."""
    return len(data) > MAC_BYTES and data[-MAC_BYTES:-17] == _TRAILER


def split_mac(data: bytes) -> tuple[bytes, bytes | None]:
    """``(body, mac)``: ``mac`` is key id and 16 bytes, or ``None`` if the message has no trailer.

    Bytes that only look like a trailer, because they lie inside a value, are told apart by walking the fields. Raises
    :class:`~otelctx.errors.MalformedFrame` over 256 of them.
    """
    if not has_trailer(data):
        return data, None
    at = len(data) - MAC_BYTES
    return (data[:at], data[at + 2 :]) if _starts_field(data, at) else (data, None)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
    return 0, len(data) + 1  # past the end: no field starts there


def _starts_field(data: bytes, offset: int) -> bool:
    """Whether a field starts at ``offset``, behind which the 19 bytes of a trailer follow."""
    at = 0
    for _ in range(_MAX_FIELDS):
        if at >= offset:
            return at == offset
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
        wire_type = tag & 7
        if wire_type == 2:
            length, at = (data[at], at + 1) if at < offset and data[at] < 0x80 else _varint(data, at)
            at += length
        elif wire_type == 0:
            _, at = _varint(data, at)
        elif wire_type == 1:
            at += 8
        elif wire_type == 5:
            at += 4
        else:
            return False
    raise MalformedFrame(f"more than {_MAX_FIELDS} fields")


# --- entries ---


def _put_entry(message: pb.Entry, item: Entry, ids: Mapping[str, int]) -> None:
    key_id = ids.get(item.name)
    if key_id is not None:
        message.id = key_id
    else:
        message.name = item.name
    value = item.value
    if isinstance(value, str):
        message.text = value
    elif isinstance(value, bool):
        message.bool = value
    elif isinstance(value, int):
        message.int = value
    elif isinstance(value, float):
        message.float = value
    else:
        message.bytes = value


def _get_entry(message: pb.Entry, name: str, limit: int) -> Entry:
    if not name:
        raise MalformedFrame("an entry without a key")
    field = message.WhichOneof("value")
    if field is None:
        raise MalformedFrame("an entry without a value")
    value: Value = getattr(message, field)
    if isinstance(value, str) and len(value) * 4 <= limit:
        return entry(name, value)  # protobuf has seen to it that it is UTF-8
    try:
        return entry(name, normalise(value, limit))
    except ContextLimitExceeded as exc:
        raise OversizedFrame(exc.message) from None
    except ContextTypeError as exc:
        raise MalformedFrame(exc.message) from None


def _unique(entries: list[Entry]) -> tuple[Entry, ...]:
    if len({e.name for e in entries}) != len(entries):
        raise MalformedFrame("a key appears twice")
    return tuple(entries)


@lru_cache(maxsize=4096)
def _key_name(key_id: int, name: str, table: Table, revision: int) -> str:
    """The key of an entry of a frame in ``revision``, or "" if there is none."""
    if name:
        if name in table.ids(revision):
            raise MalformedFrame("a key of the table must be sent by its id")
        return _literal(name)
    if not key_id:
        return ""
    known = table.names(revision).get(key_id)
    if known is None:
        raise MalformedFrame("an id that the table of this revision does not have")
    return known


def _literal(name: str) -> str:
    if not NAME.fullmatch(name):
        raise MalformedFrame("a key name is [a-z0-9][a-z0-9_./-]{0,63}")
    return name


# --- frames ---


def encode_frame(frame: Frame, table: Table = TABLE) -> bytes:
    """Canonical bytes of ``frame``, without MAC: the same frame is always the same bytes."""
    ids = table.ids(frame.table)
    message = pb.Frame(kind=pb.Frame.Kind.ValueType(frame.kind), root=frame.root, base=frame.base, table=frame.table)
    for item in frame.put:
        _put_entry(message.put.add(), item, ids)
    for name in frame.delete:
        if name in ids:
            message.del_ids.append(ids[name])
        else:
            message.del_names.append(name)
    return message.SerializeToString(deterministic=True)


def decode_frame(body: bytes, table: Table = TABLE) -> Frame:
    """The frame in ``body`` (MAC split off). Its revision is not judged here: an unknown one is the receiver's to
    answer.

    Raises :class:`~otelctx.errors.MalformedFrame` or :class:`~otelctx.errors.OversizedFrame`.
    """
    message = pb.Frame()
    try:
        message.ParseFromString(body)
    except (DecodeError, ValueError):
        raise MalformedFrame("not a protobuf message") from None
    deleted = len(message.del_ids) + len(message.del_names)
    if len(message.put) > MAX_ENTRIES or deleted > MAX_ENTRIES:
        raise OversizedFrame(f"{len(message.put) + deleted} entries; at most {MAX_ENTRIES} are read")
    try:
        kind = FrameKind(message.kind)
    except ValueError:
        raise MalformedFrame(f"frame kind {message.kind}") from None
    if len(message.root) != ROOT_BYTES:
        raise MalformedFrame(f"a root of {len(message.root)} bytes")
    if len(message.base) != (BASE_BYTES if kind is FrameKind.DELTA else 0):
        raise MalformedFrame(f"a base of {len(message.base)} bytes in a {kind.name}")
    if message.table < 1:
        raise MalformedFrame("no table revision")
    if message.table > table.revision:  # its ids may mean anything: the root is all that can be answered to
        return Frame(kind, message.root, message.base, table=message.table)
    return _checked(message, kind, table)


def _checked(message: pb.Frame, kind: FrameKind, table: Table) -> Frame:
    revision = message.table
    put = _unique([_get_entry(m, _key_name(m.id, m.name, table, revision), MAX_DOWN_BYTES) for m in message.put])
    deleted = [_key_name(key_id, "", table, revision) for key_id in message.del_ids]
    deleted += [_key_name(0, name, table, revision) for name in message.del_names]
    delete = tuple(sorted(deleted))
    if (kind is FrameKind.REF and put) or (kind is not FrameKind.DELTA and delete):
        raise MalformedFrame(f"a {kind.name} carries no such entries")
    if "" in delete or len(set(delete)) != len(delete) or {e.name for e in put} & set(delete):
        raise MalformedFrame("a key is deleted twice, or put and deleted, or has no name")
    return Frame(kind, message.root, message.base, put, delete, revision)


# --- acks ---


def encode_ack(ack: Ack, *, signed: bool, table: Table = TABLE) -> bytes:
    """Bytes of ``ack``, without MAC, shortened to 512 header characters (MAC counted if ``signed``).

    Up entries are written in the order given, as far as there is room; if some are left out, ``truncated`` is set. So
    it is if ``moved`` does not fit, which is a hint and goes first.
    """
    room = (MAX_ACK_CHARS - 2) // 4 * 3 - (MAC_BYTES if signed else 0)
    data = _ack_bytes(ack, table)
    if len(data) > room and ack.moved:
        ack = replace(ack, moved="", truncated=True)
        data = _ack_bytes(ack, table)
    if len(data) <= room or not ack.ups:
        return data
    room -= len(_ack_bytes(replace(ack, ups=(), truncated=True), table))
    fits = sum(used <= room for used in accumulate(item.size for item in ack.ups))
    return _ack_bytes(replace(ack, ups=ack.ups[:fits], truncated=True), table)


def _ack_bytes(ack: Ack, table: Table) -> bytes:
    message = pb.Ack(
        kind=pb.Ack.Kind.ValueType(ack.kind),
        root=ack.root,
        held=pb.Ack.Held.ValueType(ack.held),
        boot_id=ack.boot_id,
        reason=pb.Ack.Reason.ValueType(ack.reason),
        table=ack.table,
        final=ack.final,
        event=ack.event,
        moved=ack.moved,
        truncated=ack.truncated,
    )
    ids = table.ids(1)  # the revision that every sender knows, however old it is
    for item in ack.ups:
        _put_entry(message.up.add(), item, ids)
    if ack.window is not None:
        w = ack.window
        message.window.CopyFrom(
            pb.Window(
                used=w.used,
                limit=w.limit,
                evicted=w.evicted,
                level=w.level,
                generation=w.generation,
                version=w.version,
            )
        )
    return message.SerializeToString(deterministic=True)


def decode_ack(body: bytes, table: Table = TABLE) -> Ack:
    """The ack in ``body`` (MAC split off). Raises :class:`~otelctx.errors.MalformedFrame` or ``OversizedFrame``."""
    if len(body) > MAX_ACK_CHARS:
        raise OversizedFrame(f"an ack of {len(body)} bytes")
    message = pb.Ack()
    try:
        message.ParseFromString(body)
        kind, held, reason = AckKind(message.kind), Held(message.held), NackReason(message.reason)
    except (DecodeError, ValueError):
        raise MalformedFrame("not an ack") from None
    if len(message.root) != BASE_BYTES or message.table < 1:
        raise MalformedFrame(f"an ack with a root of {len(message.root)} bytes and table revision {message.table}")
    if len(message.up) > MAX_ENTRIES:
        raise OversizedFrame(f"{len(message.up)} up entries")
    window = None
    if message.HasField("window"):
        w = message.window
        window = Window(w.used, w.limit, w.evicted, w.level, w.generation, w.version)
    return Ack(
        kind,
        message.root,
        held,
        message.boot_id,
        reason,
        message.table,
        message.final,
        message.event,
        _unique([_get_entry(m, _key_name(m.id, m.name, table, 1), MAX_UP_BYTES) for m in message.up]),
        window,
        message.moved,
        message.truncated,
    )
