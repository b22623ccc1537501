"""A MAC over every byte, and what a replay is worth."""

from __future__ import annotations

import pytest

from otelctx.context.state import EMPTY
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Frame, delta, full, ref
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Outcome, Receiver
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
