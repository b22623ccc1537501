"""Hostile frames that reach each of the receiver's checks, and a MAC over every byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from otelctx.context.state import EMPTY, entry
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Frame, FrameKind, delta, full, ref
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Outcome, Receiver, Refuse
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.policy.trust import FRAME, Keyring

KEYS = Keyring.parse("1:QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVoxMjM0NTY=")
OTHERS = Keyring.parse("1:MTIzNDU2QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=")
NOW = 1_800_000_000.0
STATE = EMPTY.put("session.id", "s").put("user.tier", "gold").put("n", -7).put("f", 1.5).put("b", b"\x00\xff")
NEXT = STATE.put("user.tier", "silver").drop(["f"])


def receiver() -> Receiver:
    return Receiver(BaseCache(Limits()))


def signed(body: bytes, keys: Keyring = KEYS, now: float = NOW) -> bytes:
    return body + keys.sign(FRAME, body, now)


def read(to: Receiver, line: bytes | str, *more: str, trusted: bool = False, now: float = NOW) -> Outcome:
    outcome = to.open(
        [line, *more], client="c", trusted=trusted, verify=lambda body, mac: KEYS.verify(FRAME, body, mac, now)
    )
    return to.give_up(outcome) if isinstance(outcome, NeedBase) else outcome


@pytest.mark.parametrize("frame", [full(STATE), ref(STATE), delta(STATE, NEXT)], ids=lambda f: f.kind.name)
def test_every_changed_byte_is_refused(frame: Frame) -> None:
    """With no byte of a signed message another one, nor a single one missing at its end, does it stay believable."""
    to = receiver()
    read(to, to_header(signed(encode_frame(full(STATE)))))
    data = signed(encode_frame(frame))
    assert isinstance(read(to, to_header(data)), Accepted)
    for at in range(len(data)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = data[:at] + bytes((data[at] ^ flip,)) + data[at + 1 :]
            assert isinstance(read(to, to_header(changed)), Ignored)
        assert isinstance(read(to, to_header(data[:at])), Ignored)
        assert isinstance(read(to, to_header(data + data[: at + 1])), Ignored)


@pytest.mark.parametrize(
    ("age", "believed"), [(0, True), (3600, True), (7200, False), (86400, False), (-3600, True), (-7200, False)]
)
def test_a_frame_of_more_than_two_hours_is_no_credential(age: int, believed: bool) -> None:
    hour = NOW - NOW % 3600
    line = to_header(signed(encode_frame(full(STATE)), now=hour))
    assert isinstance(read(receiver(), line, now=hour + age), Accepted if believed else Ignored)


def test_a_younger_replay_yields_the_same_state_and_adds_nothing() -> None:
    to = receiver()
    line = to_header(signed(encode_frame(full(STATE))))
    first = read(to, line)
    assert read(to, line) == first
    assert len(to._bases) == 1


# --- hostile frames, signed with the right key, so that the later checks are reached ---

Rng = random.Random


def _name(rng: Rng) -> str:
    return rng.choice(["a", "b/c", "session.id", "x" * 64, "x" * 65, "", "Ä", "A", "a b", f"k{rng.randrange(70)}"])


def _entry(rng: Rng) -> pb.Entry:
    item = pb.Entry()
    if rng.random() < 0.5:
        item.id = rng.choice([0, 1, 2, 12, 20, 32, 63, 64, 2**31])
    elif rng.random() < 0.95:
        item.name = _name(rng)
    kind = rng.randrange(7)
    if kind == 0:
        item.text = rng.choice(["", "x", "\0\r\n", "ü" * 600, "x" * rng.randrange(1100)])
    elif kind == 1:
        item.int = rng.choice([0, -1, 2**63 - 1, -(2**63)])
    elif kind == 2:
        item.bool = rng.random() < 0.5
    elif kind == 3:
        item.float = rng.choice([0.0, -0.0, float("nan"), float("inf"), 5e-324])
    elif kind == 4:
        item.bytes = rng.randbytes(rng.randrange(1100))
    return item


def _fields(rng: Rng) -> bytes:
    """A frame whose fields are each plausible, and whose whole seldom is."""
    message = pb.Frame(
        kind=rng.choice([0, 1, 1, 2, 2, 3, 3, 4, -1]),  # type: ignore[arg-type]
        root=rng.choice([STATE.root, NEXT.root, bytes(16), b"", bytes(15), bytes(17)]),
        base=rng.choice([b"", b"", STATE.root[:8], NEXT.root[:8], bytes(8), bytes(7)]),
        table=rng.choice([1, 1, 1, 1, 0, 2, 2**32 - 1]),
    )
    message.put.extend([_entry(rng) for _ in range(rng.choice([0, 0, 1, 1, 2, 64, 65]))])
    message.del_ids.extend([rng.choice([0, 1, 12, 63, 2**31]) for _ in range(rng.choice([0, 0, 0, 1, 65]))])
    message.del_names.extend([_name(rng) for _ in range(rng.choice([0, 0, 0, 1, 2, 65]))])
    return message.SerializeToString()


def _good(rng: Rng) -> bytes:
    return encode_frame(rng.choice([full(STATE), delta(STATE, NEXT), ref(STATE)]))


def _wrong_root(rng: Rng) -> bytes:
    frame = rng.choice([full(STATE), full(NEXT), delta(STATE, NEXT), ref(NEXT)])
    root = rng.choice([rng.randbytes(16), STATE.root[:8] + rng.randbytes(8)])
    return encode_frame(Frame(frame.kind, root, frame.base, frame.put, frame.delete))


def _over_limits(rng: Rng) -> bytes:
    put = tuple(entry(f"k{n:02}", "x" * rng.randrange(900, 1000)) for n in range(3))
    if rng.random() < 0.5:
        put = tuple(entry(f"k{n:02}", n) for n in range(64))
    return encode_frame(Frame(FrameKind.FULL, rng.randbytes(16), put=put))


def _mutated(rng: Rng) -> bytes:
    data = bytearray(encode_frame(rng.choice([full(STATE), delta(STATE, NEXT), ref(STATE)])))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(2)] = rng.randbytes(1)  # another byte, or one more
    return bytes(data[: rng.randrange(len(data) // 2, len(data) + 1)])


def _unknown_fields(rng: Rng) -> bytes:
    """Fields that a later version may have, groups nested without end, and a trailer in the middle."""
    good = encode_frame(rng.choice([full(STATE), ref(STATE)]))
    return rng.choice(
        [
            good + b"\x7a\x11" + rng.randbytes(17),
            good + b"\x42\x03abc",
            good + b"\x4b" * rng.randrange(1, 1500),
            b"\x4b\x4c" * 700 + good,
            good + b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ]
    )


def _bytes(rng: Rng) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 18, 19, 20, 100, 3000]))


MAKERS: list[Callable[[Rng], bytes]] = [
    _good,
    _fields,
    _fields,
    _wrong_root,
    _over_limits,
    _mutated,
    _unknown_fields,
    _bytes,
]


def _line(rng: Rng, body: bytes) -> bytes | str:
    """Mostly signed as it should be; else in one of the ways in which it should not."""
    body = body[:3000]
    way = rng.random()
    if way < 0.8:
        return to_header(signed(body))
    if way < 0.85:
        return to_header(signed(body, OTHERS))
    if way < 0.9:
        return to_header(body)
    line = to_header(signed(body)).encode()
    return rng.choice([line[:-1], line[1:], line.replace(b"A", b"\n"), line + b";q=1", line * 3, b":" * 5000, b"\xff"])


def _word(outcome: Outcome) -> str:
    if isinstance(outcome, Accepted):
        return f"accepted {outcome.kind.name}"
    if isinstance(outcome, Ignored):
        return f"ignored {outcome.reason}"
    assert not isinstance(outcome, NeedBase)
    return f"{type(outcome).__name__.lower()} {outcome.reason.name}"


def test_hostile_frames_reach_every_check_and_none_gets_through() -> None:
    """Nothing is raised, a FULL is never refused, and every check has been reached many times."""
    rng = random.Random(20240229)
    to = receiver()
    seen: Counter[str] = Counter()
    for n in range(6_000):
        if n % 50 == 0:
            to = receiver()
            read(to, to_header(signed(encode_frame(full(STATE)))))
        line = _line(rng, rng.choice(MAKERS)(rng))
        more = ("::",) if rng.random() < 0.01 else ()
        outcome = read(to, line, *more, trusted=rng.random() < 0.2)
        seen[_word(outcome)] += 1
        if isinstance(outcome, Refuse):
            assert outcome.kind is not FrameKind.FULL
    assert set(seen) == {
        "accepted DELTA", "accepted FULL", "accepted REF",
        "ignored mac", "ignored malformed", "ignored oversized", "ignored repeated", "ignored untrusted",
        "refuse ROOT", "refuse UNKNOWN_BASE",
        "run LIMIT", "run ROOT", "run TABLE",
    }  # fmt: skip
    assert min(seen.values()) >= 10
