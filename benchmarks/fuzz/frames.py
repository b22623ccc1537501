"""Structure-aware inputs for the receiver: each maker breaks a valid frame where one of the receiver's checks looks.

What a maker makes is right up to its check: signed with the right key, of the right length and form. Random bytes would
never come further than the second one. Sometimes it is right altogether.
"""

from __future__ import annotations

import random
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import Any, Final

from otelctx.context.state import EMPTY, State, entry
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_frame, encode_frame, from_header, split_mac
from otelctx.delta.limits import MAX_HEADER_CHARS, Limits
from otelctx.delta.messages import Frame, FrameKind, delta, full, ref
from otelctx.delta.receiver import Accepted, NeedBase, Outcome, Receiver
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.errors import MalformedFrame, OversizedFrame
from otelctx.policy.trust import FRAME, Keyring

__all__ = ["CHECKS", "MAKERS", "Lines", "Target", "header", "signed"]

Lines = list[bytes]
Rng = random.Random

# In the order in which the receiver makes them.
CHECKS: Final = (
    "one line", "length", "syntax", "decoded length", "mac", "parse", "entry count", "key", "value", "base", "root",
)  # fmt: skip
ACCEPTED: Final = "accepted"

KEYS: Final = Keyring.parse("1:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVoxMjM0NTY=")
STRANGERS: Final = Keyring.parse("1:MTIzNDU2QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=")
NOW: Final = 1_800_000_000.0
STATE: Final = EMPTY.put("session.id", "s").put("user.tier", "gold").put("n", -7).put("f", 1.5).put("b", b"\x00\xff")
NEXT: Final = STATE.put("user.tier", "silver").drop(["f"])
LARGE: Final = State({f"k{n:02}": entry(f"k{n:02}", "x" * 20) for n in range(60)}).put("session.id", "large")
KNOWN: Final = (STATE, NEXT, LARGE)  # what the target holds
_OFTEN: Final = (STATE, NEXT, STATE, NEXT, STATE, LARGE)  # one of sixty keys takes its time


def header(data: bytes) -> bytes:
    """The header value of a message of any length."""
    return b":" + b2a_base64(data, newline=False) + b":"


def _sealed(body: bytes, keys: Keyring = KEYS, now: float = NOW) -> bytes:
    return body + keys.sign(FRAME, body, now)


def _good(rng: Rng) -> Frame:
    one, other = rng.choice(_OFTEN), rng.choice(_OFTEN)
    return rng.choice([full, ref, lambda state: delta(other, state)])(one)


def _message(rng: Rng, frame: Frame | None = None) -> pb.Frame:
    return pb.Frame.FromString(encode_frame(frame or _good(rng)))


def signed(message: pb.Frame | bytes) -> Lines:
    return [header(_sealed(message if isinstance(message, bytes) else message.SerializeToString()))]


def lines(rng: Rng) -> Lines:
    good = signed(encode_frame(_good(rng)))[0]
    return [rng.choice([good, good, b"", b"::", b":" * rng.randrange(5000)]) for _ in range(rng.randrange(1, 6))]


def length(rng: Rng) -> Lines:
    good = signed(encode_frame(_good(rng)))[0]
    wanted = rng.choice([rng.randrange(4090, 4103), rng.randrange(4097, 70_000), rng.randrange(4097, 70_000)])
    padding = rng.choice([b" ", b"A", b":", b"=", b"\xff", b"\x00"])
    return [rng.choice([good + padding * (wanted - len(good)), b":" + padding * (wanted - 2) + b":"])]


def syntax(rng: Rng) -> Lines:
    data = bytearray(signed(encode_frame(_good(rng)))[0])
    for _ in range(rng.randrange(1, 4)):
        at, bad = rng.randrange(len(data)), rng.choice(b':=-_ \t\n\r\0\xff;,%"A')
        data[at : at + rng.randrange(2)] = bytes((bad,) * rng.randrange(2))
    whole = bytes(data)
    return [rng.choice([whole, whole + b";q=1", whole + b", " + whole, whole[: rng.randrange(len(whole) + 1)]])]


def decoded_length(rng: Rng) -> Lines:
    wanted = rng.randrange(3040, 3070)
    body = encode_frame(full(LARGE))
    return [header(_sealed(body + b"\x42" + rng.randbytes(wanted))[:wanted])]


def mac(rng: Rng) -> Lines:
    body = encode_frame(_good(rng))
    data = bytearray(_sealed(body))
    way = rng.randrange(7)
    if way == 0:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif way == 1:
        data = bytearray(_sealed(body, STRANGERS))
    elif way == 2:
        data = bytearray(_sealed(body, now=NOW + 3600 * rng.randrange(-3, 4)))
    elif way == 3:
        data = bytearray(body)
    elif way == 4:
        data = data[: rng.randrange(len(data))]
    elif way == 5:
        data += rng.randbytes(rng.randrange(1, 40))
    else:  # a value that looks like a trailer
        data = bytearray(encode_frame(full(STATE.put("z", b"x" + b"\x7a\x11" + rng.randbytes(15)))))
    return [header(bytes(data[:3060]))]


def parse(rng: Rng) -> Lines:
    message = _message(rng)
    body = bytearray(encode_frame(_good(rng)))
    way = rng.randrange(8)
    if way == 0:
        for _ in range(rng.randrange(1, 5)):
            body[rng.randrange(len(body))] = rng.randrange(256)
    elif way == 1:
        body = bytearray(rng.randbytes(rng.choice([1, 20, 300, 3000])))
    elif way == 2:  # groups without an end, nested
        body += b"\x4b" * rng.randrange(1, 2500)
    elif way == 3:  # lengths and varints that never end
        body += rng.choice([b"\x22\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * rng.randrange(1, 30), b"\x22\x80"])
    elif way == 4:  # fields of later versions, many of them
        body += b"\x42\x00" * rng.randrange(1400)
    else:
        message.kind = rng.choice([0, 1, 2, 3, 4, 99])
        message.root = rng.randbytes(rng.choice([0, 15, 16, 17, 2000]))
        message.base = rng.randbytes(rng.choice([0, 7, 8, 9]))
        message.table = rng.choice([0, 1, 2, 2**32 - 1])
        body = bytearray(message.SerializeToString())
    return signed(bytes(body[:3040]))


def entry_count(rng: Rng) -> Lines:
    body = encode_frame(_good(rng))
    count = rng.choice([rng.randrange(60, 70), rng.randrange(66, 240)])  # of more fields none is looked at
    way = rng.randrange(4)
    if way == 0:  # entries without anything
        body += b"\x22\x00" * count
    elif way == 1:
        body += b"".join([b"\x22\x05\x12\x01%c\x28\x01" % rng.randrange(97, 123) for _ in range(count)])
    elif way == 2:
        ids = rng.randbytes(rng.choice([count, 2900])).replace(b"\xff", b"\x01")  # packed: one field
        body += b"\x2a%c%c%b" % (len(ids) & 0x7F | 0x80, len(ids) >> 7, ids)
    else:
        body += b"".join([b"\x32\x01%c" % rng.randrange(97, 123) for _ in range(count)])
    return signed(body[:3040])


_NAMES: Final = (
    "", "a", "A", "a b", "ü", "session.id", "user.tier", "x" * 64, "x" * 65, "x" * 900, "k00", "\0", "-a", "a\n",
)  # fmt: skip


def key(rng: Rng) -> Lines:
    message = _message(rng, rng.choice([full(rng.choice(_OFTEN)), delta(STATE, NEXT), delta(rng.choice(_OFTEN), NEXT)]))
    for _ in range(rng.randrange(1, 4)):
        item = pb.Entry(text="x")
        if rng.random() < 0.5:
            item.name = rng.choice(_NAMES)
        elif rng.random() < 0.9:
            item.id = rng.choice([0, 1, 12, 22, 63, 64, 2**32 - 1])
        way = rng.randrange(4)
        if way == 0:
            message.del_names.append(rng.choice(_NAMES))
        elif way == 1:
            message.del_ids.append(rng.choice([0, 1, 12, 63, 2**32 - 1]))
        elif len(message.put) < 64:
            message.put.insert(rng.randrange(len(message.put) + 1), item)
    return signed(message.SerializeToString()[:3040])


def value(rng: Rng) -> Lines:
    message = _message(rng, rng.choice([full(STATE), delta(STATE, NEXT), full(NEXT), full(rng.choice(_OFTEN))]))
    for _ in range(rng.randrange(1, 3)):
        item = rng.choice(message.put) if message.put else message.put.add(name="z")
        way = rng.randrange(6)
        if way == 0:
            item.text = rng.choice(["", "\0\r\n", "ü" * 600, "x" * rng.choice([1023, 1024, 1025, 1100]), "\U0001f600"])
        elif way == 1:
            item.bytes = rng.randbytes(rng.choice([0, 1, 1024, 1025]))
        elif way == 2:
            item.float = rng.choice([float("nan"), float("inf"), -0.0, 5e-324, 1e308])
        elif way == 3:
            item.int = rng.choice([0, -1, 2**63 - 1, -(2**63)])
        elif way == 4:
            item.bool = rng.random() < 0.5
        else:
            for field in ("text", "int", "bool", "float", "bytes"):
                item.ClearField(field)
    return signed(message.SerializeToString()[:3040])


def base(rng: Rng) -> Lines:
    one = rng.choice(KNOWN)
    unknown = one.put("n", rng.randrange(10**6))
    frame = rng.choice([ref(unknown), delta(unknown, one), delta(unknown, unknown.put("m", 1)), ref(one)])
    if rng.random() < 0.3:
        frame = Frame(FrameKind.DELTA, one.root, rng.choice([bytes(8), one.root[:7] + b"\0"]), frame.put)
    return signed(encode_frame(frame))


def root(rng: Rng) -> Lines:
    frame = _good(rng)
    way = rng.randrange(5)
    if way == 0:  # the base is found by the first half, and is not the one that is meant
        return signed(encode_frame(Frame(FrameKind.REF, rng.choice(KNOWN).root[:8] + rng.randbytes(8))))
    if way == 1:
        put = tuple(entry(f"k{n:02}", "x" * rng.randrange(900, 960)) for n in range(3))
        return signed(encode_frame(Frame(FrameKind.FULL, rng.randbytes(16), put=put)))
    if way == 2:  # over the limits only together with its base
        put = tuple(entry(f"m{n:02}", "x" * rng.randrange(5, 20)) for n in range(rng.randrange(1, 64)))
        return signed(encode_frame(Frame(FrameKind.DELTA, rng.randbytes(16), LARGE.root[:8], put)))
    gone = frame.put[: rng.randrange(len(frame.put) + 1)] if frame.kind is not FrameKind.REF else frame.put
    wrong = rng.choice([rng.randbytes(16), bytes(16), frame.root[:8] + bytes(8), rng.choice(KNOWN).root])
    base_of = frame.base
    return signed(encode_frame(Frame(frame.kind, wrong, base_of, gone, frame.delete)))


MAKERS: Final[dict[str, Callable[[Rng], Lines]]] = {
    "one line": lines,
    "length": length,
    "syntax": syntax,
    "decoded length": decoded_length,
    "mac": mac,
    "parse": parse,
    "entry count": entry_count,
    "key": key,
    "value": value,
    "base": base,
    "root": root,
}

# Words of the codec's messages; a message without any of them would be a check that nobody counts.
_PARSE: Final = ("not a protobuf message", "frame kind", "a root of", "a base of", "no table revision")
_KEY: Final = ("without a key", "of the table", "key name", "an id that", "appears twice", "deleted", "no such entries")
_VALUE: Final = ("without a value", "NaN", "64 bit", "bytes")


class Target:
    """A receiver that holds :data:`KNOWN`, and says at which check a frame ended."""

    def __init__(self) -> None:
        self.receiver = Receiver(BaseCache(Limits()))
        for state in KNOWN:
            self.open(signed(encode_frame(full(state))))

    def open(self, lines: Sequence[bytes]) -> Outcome:
        """What is measured: from the lines to the outcome."""
        outcome = self.receiver.open(lines, client="c", trusted=False, verify=self._verify)
        return self.receiver.give_up(outcome) if isinstance(outcome, NeedBase) else outcome

    @staticmethod
    def _verify(body: bytes, mac: bytes) -> str | None:
        return KEYS.verify(FRAME, body, mac, NOW)

    def check(self, lines: Sequence[bytes], outcome: Outcome) -> str:
        """The check that the frame did not pass, or ``accepted``. Raises :class:`ValueError` if there is none of that
        kind."""
        if isinstance(outcome, Accepted):
            return ACCEPTED
        if len(lines) != 1:
            return "one line"
        try:
            body, mac = split_mac(from_header(lines[0]))
        except OversizedFrame:
            return "length" if len(lines[0]) > MAX_HEADER_CHARS else "decoded length"
        except MalformedFrame as exc:
            return "mac" if "fields" in exc.message else "syntax"
        if mac is None or self._verify(body, mac) is None:
            return "mac"
        try:
            decode_frame(body)
        except OversizedFrame as exc:
            return "entry count" if "entries" in exc.message else "value"
        except MalformedFrame as exc:
            return _of(exc.message)
        reason: Any = outcome.reason
        return {"UNKNOWN_BASE": "base", "ROOT": "root", "LIMIT": "root", "TABLE": "parse"}[reason.name]


def _of(message: str) -> str:
    for check, words in (("parse", _PARSE), ("key", _KEY), ("value", _VALUE)):
        if any(word in message for word in words):
            return check
    raise ValueError(f"no check says {message!r}")
