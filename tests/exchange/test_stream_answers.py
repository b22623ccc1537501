"""What the handling of a message on a link records goes back to the scope that the message was sent from, once."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.context.current import REGISTRY, ContextKey, UpKey, current_scope, session
from otelctx.context.state import Window
from otelctx.delta.codec import decode_ack, split_mac
from otelctx.exchange.node import Node
from otelctx.exchange.stream import Received, StreamLink
from otelctx.settings import Settings

KEYS = "1:" + "QUJD" * 11 + "QUI="
SEAT = ContextKey("stream.seat", int)
SPENT = UpKey("stream.spent", int, rule="sum")
WORST = UpKey("stream.worst", int, rule="max")
NOTES = [UpKey(f"stream.note.{n}", str, rule="last") for n in range(6)]


def make(**options: Any) -> StreamLink:
    return StreamLink(Node(Settings(keys=options.pop("keys", KEYS)), registry=REGISTRY), **options)


@pytest.fixture
def ends() -> tuple[StreamLink, StreamLink]:
    return make(), make()


def handle(link: StreamLink, data: bytes, spent: int = 0, worst: int | None = None) -> Received:
    received = link.decode(data)
    with received.entered():
        if spent:
            SPENT.record(spent)
        if worst is not None:
            WORST.record(worst)
    return received


def ack_of(answer: bytes) -> Any:
    assert answer[:1] == b"\0"
    return decode_ack(split_mac(answer[1:])[0])


def test_up_values_and_the_window_come_back_into_the_scope_of_the_sender(ends: Any) -> None:
    here, there = ends
    with session("s-1") as scope:
        for round_ in range(1, 4):  # FULL, then REF
            received = there.decode(here.encode())
            with received.entered():
                SPENT.record(5)
                WORST.record(round_)
                received.scope.report(Window(round_, 100, 0, 0, 1, round_))
            answer = there.answer(received)
            assert answer is not None
            assert here.decode(answer).control
            assert (SPENT.get(), WORST.get()) == (5 * round_, round_)
            assert scope.window == Window(round_, 100, 0, 0, 1, round_)


def test_the_answer_names_its_message_says_whether_it_is_final_and_bears_an_event_id(ends: Any) -> None:
    here, there = ends
    with session("s-1"):
        received = there.decode(here.encode())
        with received.entered():
            SPENT.record(1)
            first = there.answer(received, final=False)
            SPENT.record(2)
        last = there.answer(received)
        assert first is not None
        assert last is not None
        acks = [ack_of(first), ack_of(last)]
        assert [ack.final for ack in acks] == [False, True]
        assert [[(up.name, up.value) for up in ack.ups] for ack in acks] == [
            [("stream.spent", 1)],
            [("stream.spent", 2)],
        ], "increments, each told once"
        assert 0 not in {ack.event for ack in acks}
        assert acks[0].event != acks[1].event
        for answer in (first, last, last, first):  # a channel that repeats adds nothing
            here.decode(answer)
        assert SPENT.get() == 3


def test_where_there_is_nothing_to_tell_nothing_is_sent(ends: Any) -> None:
    here, there = ends
    with session("s-1"):
        received = handle(there, here.encode())
        assert there.answer(received) is None
        received = handle(there, here.encode(), spent=1)
        assert there.answer(received) is not None
        assert there.answer(received) is None, "nor twice"
    assert there.answer(there.decode(b"")) is None
    assert there.answer(there.decode(b"\0nonsense")) is None
    assert there.answer(there.decode(b"nonsense")) is None


def test_what_came_too_late_for_its_answer_waits_for_the_sessions_next_one(ends: Any) -> None:
    here, there = ends
    with session("s-1"):
        received = there.decode(here.encode())
        with received.entered():
            SPENT.record(1)
            here.decode(there.answer(received) or b"")
            SPENT.record(10)  # and the handler forgets to tell
        assert SPENT.get() == 1
        here.decode(there.answer(handle(there, here.encode())) or b"")
        assert SPENT.get() == 11


def test_without_a_session_a_message_has_its_answer_all_the_same(ends: Any) -> None:
    here, there = ends
    with SEAT.bound(1):
        scope = current_scope()
        answer = there.answer(handle(there, here.encode(), spent=4))
        here.decode(answer or b"")
        assert scope is not None
        assert scope.up("stream.spent") == 4
        assert scope.window is None


def test_what_does_not_fit_into_one_answer_comes_with_the_next(ends: Any) -> None:
    here, there = ends
    with session("s-1"):
        received = there.decode(here.encode())
        with received.entered():
            for note in NOTES:
                note.record("x" * 120)
            first = there.answer(received, final=False)
        assert first is not None
        assert len(first) < 512
        here.decode(first)
        got = sum(note.get() is not None for note in NOTES)
        assert 0 < got < len(NOTES)
        while (more := there.answer(handle(there, here.encode()))) is not None:
            here.decode(more)
        assert all(note.get() == "x" * 120 for note in NOTES)


def test_each_scope_gets_what_its_own_messages_have_brought(ends: Any) -> None:
    here, there = ends
    with session("s-1") as first:
        one = handle(there, here.encode(), spent=1)
    with session("s-2") as second:
        two = handle(there, here.encode(), spent=2)
        here.decode(there.answer(two) or b"")
        here.decode(there.answer(one) or b"")  # its block is over
    assert (first.up("stream.spent"), second.up("stream.spent")) == (None, 2)


def test_a_scope_that_is_gone_is_not_kept_for_an_answer(ends: Any) -> None:
    here, there = ends
    with session("s-1"):
        received = handle(there, here.encode(), spent=1)
    gc.collect()
    assert [scope() for scope, _ in here._askers._scopes.values()] == [None]
    assert here.decode(there.answer(received) or b"").control


def test_the_scopes_that_are_remembered_are_bounded() -> None:
    here = make()
    for number in range(1100):
        with session(f"s-{number}"):
            here.encode()
    assert len(here._askers._scopes) == 1024


def test_a_one_way_channel_has_no_answers() -> None:
    here, there = make(duplex=False), make(duplex=False)
    with session("s-1"):
        assert there.answer(handle(there, here.encode(), spent=1)) is None
    assert not here._askers._scopes


def test_an_answer_is_believed_only_if_it_is_signed_as_the_frames_are(ends: Any) -> None:
    here, _ = ends
    strangers = make(keys="", trusted=True)
    with session("s-1"):
        data = here.encode()
        forged = strangers.answer(handle(strangers, make(keys="").encode(), spent=9))
        assert forged is not None
        here.decode(forged)
        assert SPENT.get() == 0
        other = "1:" + "QkJC" * 11 + "QUI="
        wrong = make(keys=other)
        here.decode(wrong.answer(handle(wrong, make(keys=other).encode(), spent=9)) or b"")
        assert SPENT.get() == 0
        plain, unsigned = make(keys="", trusted=True), make(keys="")
        unsigned.decode(plain.answer(handle(plain, unsigned.encode(), spent=9)) or b"")
        assert SPENT.get() == 9, "on a link without keys the connection vouches for it"
    assert data


def test_an_answer_to_nothing_that_was_sent_here_is_ignored(ends: Any) -> None:
    here, there = ends
    with session("s-1"), SEAT.bound(1):
        foreign = there.answer(handle(there, make().encode(), spent=3))
    with session("s-1"):
        here.encode()
        assert foreign is not None
        here.decode(foreign)
        here.reset()
        assert SPENT.get() == 0


def test_keys_that_are_not_declared_as_up_keys_here_change_nothing() -> None:
    from otelctx.context.keys import KeyRegistry

    bare = StreamLink(Node(Settings(keys=KEYS), registry=KeyRegistry()))
    there = make()
    with session("s-1") as scope:
        bare.decode(there.answer(handle(there, bare.encode(), spent=3)) or b"")
        assert scope.ups() == {}


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.sampled_from(["once", "twice", "lost"])), max_size=30)
)
def test_sums_are_counted_at_most_once_whatever_the_channel_does_to_answers(steps: Any) -> None:
    here, there = make(), make()
    expected = 0
    with session("s-1"):
        for seat, spent, fate in steps:
            with SEAT.bound(seat):
                answer = there.answer(handle(there, here.encode(), spent=spent))
            assert answer is not None
            for _ in range({"once": 1, "twice": 2, "lost": 0}[fate]):
                here.decode(answer)
            expected += 0 if fate == "lost" else spent
        assert SPENT.get() == expected
