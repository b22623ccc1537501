from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, entry
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Frame, FrameKind, Held, NackReason, delta, full, ref
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Outcome, Receiver, Refuse, Run

STATE = EMPTY.put("session.id", "s").put("user.tier", "gold")
OTHER = STATE.put("user.tier", "silver")
TRAILER = b"\x7a\x11\x01" + bytes(16)


def receiver(on_unknown_base: str = "resync") -> Receiver:
    return Receiver(BaseCache(Limits()), on_unknown_base=on_unknown_base)  # type: ignore[arg-type]


def send(to: Receiver, frame: Frame | bytes, *, mac: str | None = "default", trusted: bool = False) -> Outcome:
    body = frame if isinstance(frame, bytes) else encode_frame(frame)
    line = to_header(body + TRAILER if mac is not None else body)
    outcome = to.open([line], client="c", trusted=trusted, verify=lambda b, m: mac if mac else None)
    return to.give_up(outcome) if isinstance(outcome, NeedBase) else outcome


def test_full_then_ref_then_delta() -> None:
    to = receiver()
    for frame, state in ((full(STATE), STATE), (ref(STATE), STATE), (delta(STATE, OTHER), OTHER), (ref(OTHER), OTHER)):
        outcome = send(to, frame)
        assert isinstance(outcome, Accepted)
        assert (outcome.kind, outcome.state.root, outcome.held) == (frame.kind, state.root, Held.PROCESS)
        assert outcome.signed


@pytest.mark.parametrize("frame", [ref(STATE), delta(STATE, OTHER)])
def test_without_the_base_the_app_does_not_run_or_runs_without_anything(frame: Frame) -> None:
    outcome = send(receiver(), frame)
    assert isinstance(outcome, Refuse)
    assert (outcome.reason, outcome.root) == (NackReason.UNKNOWN_BASE, frame.root)
    assert isinstance(send(receiver("proceed"), frame), Run)


def test_a_full_never_refuses_a_request() -> None:
    wrong_root = replace(full(STATE), root=bytes(16))
    outcome = send(receiver(), wrong_root)
    assert isinstance(outcome, Run)
    assert outcome.reason is NackReason.ROOT
    large = (*tuple(entry(f"k{n}", "x" * 900) for n in range(3)), entry("z", "x" * 250))
    outcome = send(receiver(), Frame(FrameKind.FULL, bytes(16), put=large))
    assert isinstance(outcome, Run)
    assert outcome.reason is NackReason.LIMIT
    newer = send(receiver(), replace(full(STATE), table=2))
    assert isinstance(newer, Run)
    assert newer.reason is NackReason.TABLE


def test_a_delta_whose_result_has_another_root_is_not_half_applied() -> None:
    to = receiver()
    send(to, full(STATE))
    outcome = send(to, replace(delta(STATE, OTHER), root=bytes(16)))
    assert isinstance(outcome, Refuse)
    assert outcome.reason is NackReason.ROOT
    assert isinstance(send(to, ref(OTHER)), Refuse)


def test_a_base_is_of_one_trust_domain() -> None:
    to = receiver()
    send(to, full(STATE), mac="a")
    assert isinstance(send(to, ref(STATE), mac="b"), Refuse)
    assert isinstance(send(to, ref(STATE), mac=None, trusted=True), Refuse)
    assert isinstance(send(to, ref(STATE), mac="a"), Accepted)


def test_a_state_without_session_is_accepted_and_not_kept() -> None:
    to = receiver()
    outcome = send(to, full(EMPTY.put("user.tier", "gold")))
    assert isinstance(outcome, Accepted)
    assert outcome.held is Held.NONE


def test_strangers_learn_nothing() -> None:
    to = receiver()
    assert send(to, full(STATE), mac=None) == Ignored("untrusted", len(to_header(encode_frame(full(STATE)))))
    assert isinstance(send(to, full(STATE), mac=None, trusted=True), Accepted)
    bad = send(to, full(STATE), mac="")
    assert isinstance(bad, Ignored)
    assert bad.reason == "mac"
    # A frame with a MAC needs a valid one, whatever the address.
    assert isinstance(send(to, full(STATE), mac="", trusted=True), Ignored)


def test_a_repeated_line_is_ignored_even_if_each_is_good() -> None:
    line = to_header(encode_frame(full(STATE)) + TRAILER)
    outcome = receiver().open([line, line], client="c", trusted=False, verify=lambda b, m: "default")
    assert outcome == Ignored("repeated", 2 * len(line))


def test_resume_takes_only_the_base_that_was_asked_for() -> None:
    to = receiver()
    line = to_header(encode_frame(ref(STATE)) + TRAILER)
    need = to.open([line], client="c", trusted=False, verify=lambda b, m: "default")
    assert isinstance(need, NeedBase)
    for base in (OTHER, None):
        outcome = to.resume(need, base, client="c")
        assert isinstance(outcome, Refuse)
        assert outcome.reason is NackReason.UNKNOWN_BASE
    assert isinstance(to.resume(need, STATE, client="c"), Accepted)
    assert isinstance(send(to, ref(STATE)), Accepted)


@given(
    st.lists(
        st.binary(max_size=200) | st.binary(max_size=80).map(lambda b: to_header(b).encode()), min_size=1, max_size=2
    )
)
def test_any_bytes_in_a_header_are_survived(lines: list[bytes]) -> None:
    outcome = receiver().open(lines, client="c", trusted=True, verify=lambda b, m: "default")
    assert isinstance(outcome, Accepted | Ignored | NeedBase | Run | Refuse)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_never_yields_another_state(at: int, flip: int) -> None:
    """Even if the MAC were no protection at all, the root is."""
    data = bytearray(encode_frame(full(STATE)))
    data[at % len(data)] ^= flip
    outcome = send(receiver(), bytes(data))
    if isinstance(outcome, Accepted):
        assert outcome.state.root == STATE.root
