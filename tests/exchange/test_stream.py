"""A link on a channel that keeps its order: what arrives is the sender's state or is marked, whatever is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.context.current import REGISTRY, ContextKey, session
from otelctx.delta.codec import decode_frame, split_mac
from otelctx.delta.messages import FrameKind
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node
from otelctx.exchange.stream import Received, StreamLink
from otelctx.settings import Settings

KEYS = "1:" + "QUJD" * 11 + "QUI="
TIER = ContextKey("stream.tier", str)
SEAT = ContextKey("stream.seat", int)
SECRET = ContextKey("stream.secret", str, flow="local")


def make(**options: Any) -> StreamLink:
    return StreamLink(Node(Settings(keys=options.pop("keys", KEYS)), registry=REGISTRY), **options)


@pytest.fixture
def ends() -> tuple[StreamLink, StreamLink]:
    return make(), make()


def kind(data: bytes) -> str:
    return decode_frame(split_mac(data)[0]).kind.name


def told(received: Received) -> tuple[Any, Any, str, bool]:
    with received.entered() as scope:
        return TIER.get(), SEAT.get(), scope.source, scope.incomplete


def test_an_unchanged_context_is_a_reference_and_a_changed_one_a_delta(ends: Any) -> None:
    here, there = ends
    kinds = []
    with session("s-1"), TIER.bound("gold " * 20):
        for seat in (1, 1, 2, 2):
            with SEAT.bound(seat):
                data = here.encode()
                kinds.append(kind(data))
                assert told(there.decode(data)) == ("gold " * 20, seat, "frame", False)
    assert kinds == ["FULL", "REF", "DELTA", "REF"]


def test_each_direction_has_states_of_its_own(ends: Any) -> None:
    here, there = ends
    with session("s-1"), TIER.bound("a"):
        assert kind(here.encode()) == "FULL"
        assert kind(there.encode()) == "FULL"
        assert kind(here.encode()) == "REF"


def test_a_lost_base_is_asked_for_once_and_healed(ends: Any) -> None:
    here, there = ends
    with session("s-1"), TIER.bound("gold"):
        here.encode()  # lost on the way
        received = [there.decode(here.encode()) for _ in range(3)]
        assert [told(one)[2:] for one in received] == [("none", True)] * 3
        assert [one.reason for one in received] == ["unknown_base"] * 3
        (reply,) = [one.reply for one in received if one.reply is not None]
        answer = here.decode(reply)
        assert answer.control
        assert told(answer)[2:] == ("none", False)
        data = here.encode()
        assert kind(data) == "FULL"
        assert told(there.decode(data)) == ("gold", None, "frame", False)


def test_a_one_way_channel_heals_within_sixty_four_messages() -> None:
    here, there = make(duplex=False), make(duplex=False)
    seen = []
    with session("s-1"), TIER.bound("gold"):
        here.encode()  # lost
        for _ in range(130):
            received = there.decode(here.encode())
            assert received.reply is None
            seen.append(told(received)[2])
    assert seen == ["none"] * 63 + ["frame"] * 67
    with session("s-1"), TIER.bound("gold"):
        kinds = [kind(here.encode()) for _ in range(128)]
    assert kinds.count("FULL") == 2


def test_every_session_on_a_one_way_channel_has_its_own_full_frames() -> None:
    here = make(duplex=False)
    kinds: dict[str, list[str]] = {"a": [], "b": []}
    for _ in range(70):
        for name, found in kinds.items():
            with session(name):
                found.append(kind(here.encode()))
    assert {name: [at for at, k in enumerate(found) if k == "FULL"] for name, found in kinds.items()} == {
        "a": [0, 64],
        "b": [0, 64],
    }


def test_without_a_session_or_a_context_nothing_is_built_upon(ends: Any) -> None:
    here, there = ends
    assert here.encode() == b""
    assert told(there.decode(b"")) == (None, None, "none", False)
    with TIER.bound("gold"):
        assert [kind(here.encode()) for _ in range(2)] == ["FULL", "FULL"]


def test_local_keys_stay_and_so_does_everything_where_egress_says_no(ends: Any) -> None:
    here, there = ends
    with session("s-1"), SECRET.bound("x"), there.decode(here.encode()).entered():
        assert SECRET.get() is None
    with session("s-1"):
        assert make(host="chat.example.com").encode() == b""
        assert make(host="chat.internal", port=80).encode() != b""


def test_what_could_not_be_sent_is_not_built_upon(ends: Any) -> None:
    here, there = ends

    def fail(data: bytes) -> None:
        raise OSError("closed")

    with session("s-1"), TIER.bound("gold"):
        assert told(there.decode(here.send(lambda data: data)))[0] == "gold"
        with TIER.bound("silver"), pytest.raises(OSError):
            here.send(fail)
        data = here.send(lambda data: data)
        assert kind(data) == "FULL"
        assert told(there.decode(data))[0] == "gold"


def test_unsigned_frames_are_believed_only_on_a_trusted_connection(ends: Any) -> None:
    here, there = make(signed=False), make()
    with session("s-1"), TIER.bound("gold"):
        data = here.encode()
        received = there.decode(data)
        assert (received.reason, received.reply, told(received)[2]) == ("untrusted", None, "none")
        trusted = make(trusted=True)
        assert told(trusted.decode(data))[0] == "gold"
        received = trusted.decode(make(keys="1:" + "QkJC" * 11 + "QUI=").encode())
        assert received.reason == "mac", "whatever bears a MAC needs a valid one"


def test_a_nack_is_believed_only_if_it_is_signed_as_the_frames_are() -> None:
    here, there = make(), make()
    plain = make(signed=False, trusted=True, keys="")
    with session("s-1"):
        here.encode()
        forged = make(trusted=True, keys="").decode(plain.encode() and plain.encode()).reply
        assert forged is not None
        here.decode(forged)
        assert kind(here.encode()) == "REF", "an unsigned one changes nothing"
        reply = there.decode(here.encode()).reply
        assert reply is not None
        here.decode(reply)
        assert kind(here.encode()) == "FULL"


def test_a_reconnect_starts_anew_on_both_ends(ends: Any) -> None:
    here, there = ends
    with session("s-1"), TIER.bound("gold"):
        there.decode(here.encode())
        here.reset()
        there.reset()
        data = here.encode()
        assert kind(data) == "FULL"
        assert told(there.decode(data))[0] == "gold"


def test_memory_is_bounded_and_the_sender_forgets_first(ends: Any) -> None:
    here, there = ends
    for number in range(2000):
        with session(f"s-{number}"), TIER.bound("x" * 900):
            assert told(there.decode(here.encode()))[2] == "frame"
    assert there._bases.bytes <= 2**20
    assert here._held.bytes <= 2**16
    for number in (0, 1000, 1999, 1998):
        with session(f"s-{number}"), TIER.bound("x" * 900):
            assert told(there.decode(here.encode()))[2] == "frame", "never a reference to what the other end forgot"


@given(st.binary(max_size=400) | st.binary(min_size=3000, max_size=4200))
def test_whatever_comes_nothing_is_raised_and_nothing_believed(data: bytes) -> None:
    for link in (make(), make(trusted=True, keys="")):
        received = link.decode(data)
        assert received.scope.source == "none" or not data.startswith(b"\0")
        assert link.decode(b"\0" + data).control


def test_text_in_place_of_bytes_is_malformed(ends: Any) -> None:
    assert ends[0].decode("text").reason == "malformed"
    with session("s-1"), TIER.bound("gold"):
        for form in (bytearray, memoryview):
            assert told(ends[1].decode(form(ends[0].encode())))[0] == "gold"


def test_to_sign_without_a_key_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="OTELCTX_KEYS"):
        make(keys="", signed=True)


def test_a_flipped_bit_never_makes_another_state() -> None:
    with session("s-1"), TIER.bound("gold"):
        whole = make(signed=False, keys="").encode()
        for at in range(len(whole) * 8):
            broken = bytearray(whole)
            broken[at // 8] ^= 1 << at % 8
            found = told(make(trusted=True, keys="").decode(bytes(broken)))
            assert found[2] == "none" or found[0] == "gold"


async def test_concurrent_senders_keep_the_order_of_their_frames(ends: Any) -> None:
    here, there = ends
    arrived: list[tuple[str, bytes]] = []

    async def sender(number: int) -> None:
        for step in range(5):
            with session(f"a-session-with-a-long-name-{number % 2}"), TIER.bound(f"{number}-{step}"):

                async def put(data: bytes, expected: str = f"{number}-{step}") -> None:
                    await asyncio.sleep(0)
                    arrived.append((expected, data))

                await here.asend(put)
            await asyncio.sleep(0)

    await asyncio.gather(*map(sender, range(8)))
    assert [told(there.decode(data))[0] for _, data in arrived] == [expected for expected, _ in arrived]
    assert {kind(data) for _, data in arrived} == {"FULL", "DELTA"}


async def test_a_cancelled_send_is_not_built_upon(ends: Any) -> None:
    here, there = ends
    with session("s-1"), TIER.bound("gold"):
        task = asyncio.create_task(here.asend(lambda data: asyncio.sleep(60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told(there.decode(here.encode()))[0] == "gold"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "lose", "reconnect", "deliver", "deliver", "answer"]),
        st.sampled_from("ab"),
        st.sampled_from(["gold", "silver" * 9, "tin"]),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(STEPS, st.booleans())
def test_over_a_queue_that_loses_and_reconnects_nothing_is_silently_wrong(steps: Any, duplex: bool) -> None:
    here, there = make(duplex=duplex), make(duplex=duplex)
    queue: deque[tuple[tuple[str, int], bytes]] = deque()
    replies: deque[bytes] = deque()

    def deliver() -> str:
        expected, data = queue.popleft()
        received = there.decode(data)
        if received.reply is not None:
            replies.append(received.reply)
        tier, seat, source, incomplete = told(received)
        assert (tier, seat) == expected if source == "frame" else incomplete
        return source

    for step, name, tier, seat in steps:
        with session(name), TIER.bound(tier), SEAT.bound(seat):
            if step in ("send", "lose"):
                data = here.encode()
                if step == "send":
                    queue.append(((tier, seat), data))
        if step == "deliver" and queue:
            deliver()
        if step == "answer" and replies:
            here.decode(replies.popleft())
        if step == "reconnect":
            queue.clear()
            replies.clear()
            here.reset()
            there.reset()
    while queue:
        deliver()
    for reply in replies:
        here.decode(reply)
    sources = []
    with session("a"), TIER.bound("last"), SEAT.bound(9):
        for _ in range(65 + 64):  # a NACK is repeated every 64 messages that can't be read
            queue.append((("last", 9), here.encode()))
            replies.clear()
            sources.append(deliver())
            for reply in replies:
                here.decode(reply)
    assert sources[-1] == "frame"


def test_the_lock_of_a_sync_link_is_held_while_sending(ends: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    here, there = ends
    arrived: list[tuple[str, bytes]] = []

    def note(text: str, data: bytes) -> None:
        arrived.append((text, data))

    def work(number: int) -> None:
        for step in range(10):
            text = f"{number}-{step}"
            with session("s"), TIER.bound(text):
                here.send(partial(note, text))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [told(there.decode(data))[0] for _, data in arrived] == [text for text, _ in arrived]


def test_on_a_one_way_channel_so_many_sessions_are_counted_and_the_others_begin_whole(node: Any) -> None:
    here, there = StreamLink(node(), duplex=False), StreamLink(node(), duplex=False)
    for n in (*range(600), 0):
        with session(f"chat-{n}"):
            data = here.encode()
            assert there.decode(data).scope.source == "frame"
    assert len(here._since_full) == 512
    assert decode_frame(split_mac(data)[0]).kind is FrameKind.FULL
