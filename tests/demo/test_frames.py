"""The observer of a hop knows its states from the header values alone."""

from __future__ import annotations

from otelctx.context.state import EMPTY
from otelctx.delta import codec
from otelctx.delta.messages import Ack, AckKind, delta, full, ref
from otelctx.demo.frames import Follower, read_ack

FIRST = EMPTY.put("session.id", "s").put("user.tier", "free")
SECOND = FIRST.put("user.tier", "gold")


def line(frame: object) -> str:
    return codec.to_header(codec.encode_frame(frame))  # type: ignore[arg-type]


def test_a_full_a_delta_and_a_ref_are_followed() -> None:
    follower = Follower()
    seen = [follower.follow(line(f)) for f in (full(FIRST), delta(FIRST, SECOND), ref(SECOND), ref(FIRST))]
    assert [s.kind for s in seen] == ["full", "delta", "ref", "ref"]
    assert [s.state for s in seen] == [FIRST, SECOND, SECOND, FIRST]
    assert not any(s.signed for s in seen)


def test_what_builds_on_a_missed_frame_has_no_state() -> None:
    assert Follower().follow(line(ref(FIRST))).state is None
    assert Follower().follow(line(delta(FIRST, SECOND))).state is None


def test_an_ack_is_read() -> None:
    ack = Ack(AckKind.ACK, FIRST.root[:8])
    assert read_ack(codec.to_header(codec.encode_ack(ack, signed=False))) == ack
