"""What a process remembers, for how long, and what a forked one starts with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from otelctx.context.current import session
from otelctx.context.scope import Scope, UpValue
from otelctx.context.state import EMPTY, Window
from otelctx.delta.limits import Limits
from otelctx.delta.messages import full
from otelctx.errors import ConfigError
from otelctx.exchange.links import Links
from otelctx.exchange.node import Node, default_node, set_default_node
from otelctx.exchange.pending import Batch, Pending
from otelctx.settings import Settings

KEY = ("default", "s1")
UNIX = 1_800_000_000.0


def in_child(report: Callable[[], str]) -> str:
    """What ``report`` says in a forked process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, report().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_each_forked_worker_draws_a_boot_id_of_its_own(node: Callable[..., Node]) -> None:
    parent = node()
    mine = parent.boot_id
    children = {in_child(lambda: str(parent.boot_id)) for _ in range(2)}
    assert parent.boot_id == mine
    assert len(children | {str(mine)}) == 3
    assert "0" not in children


def test_a_forked_worker_works_though_a_thread_held_every_lock(node: Callable[..., Node], wire: Any) -> None:
    """The thread doesn't exist in the child, so it would never let go."""
    link = wire.caller.links.get(("http", "localhost", 80))
    caller, callee = wire.caller, wire.callee
    with caller._lock, callee._lock, callee.pending._lock, caller.links._lock, link.lock, session("s1"):
        said = in_child(lambda: wire.call().outcome)
    assert said == "accepted"


def test_a_forked_worker_does_not_claim_the_bases_of_its_parent(wire: Any, chat: Scope) -> None:
    for _ in range(4):
        wire.call()
    assert wire.kinds[-1] == "ref"
    lines = [value for _, value in wire.begin().headers]
    assert in_child(lambda: wire.open(lines).outcome) == "refuse"
    assert wire.open(lines).outcome == "accepted"


def test_the_default_node_is_made_once_and_can_be_replaced(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTELCTX_TRUSTED_CLIENTS", "127.0.0.1")
    assert default_node() is default_node()
    assert default_node().settings.trusted_clients == ("127.0.0.1",)
    mine = node()
    set_default_node(mine)
    assert default_node() is mine


def test_a_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTELCTX_KEYS", "nonsense")
    with pytest.raises(ConfigError, match="OTELCTX_KEYS"):
        default_node()


def test_new_keys_take_hold_without_losing_bases(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    for _ in range(4):
        wire.call()
    fresh = Settings(keys="2:" + "QUJD" * 12 + "," + wire.caller.settings.keys)
    wire.callee.reload(fresh)
    wire.caller.reload(fresh)
    wire.call()
    assert (wire.kinds[-1], wire.outcomes[-1]) == ("ref", "accepted")
    with pytest.raises(ConfigError, match="OTELCTX_KEYS"):
        wire.callee.reload(Settings(keys="9:!"))
    assert wire.call().outcome == "accepted"


def test_event_ids_are_forgotten_only_after_thousands(node: Callable[..., Node]) -> None:
    party = node()
    assert all(party.first_time(event) for event in range(1, 4097))
    assert not party.first_time(1)
    assert party.first_time(5000)
    assert party.first_time(2)


def test_many_threads_see_one_boot_id_and_each_event_once(node: Callable[..., Node]) -> None:
    party = node()
    ids, first = set(), []

    def work() -> None:
        ids.add(party.boot_id)
        first.extend(event for event in range(1, 200) if party.first_time(event))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 1
    assert sorted(first) == list(range(1, 200))


def test_addresses_are_remembered_but_not_for_ever(node: Callable[..., Node]) -> None:
    party = node(trusted_clients=("10.0.0.0/8",))
    assert party.client("10.0.0.1", None) == ("10.0.0.1", True)
    for n in range(5000):
        party.client(f"192.0.2.{n % 256}", str(n))
    assert len(party.era.clients) <= 4096
    known = len(party.era.clients)
    party.client("9" * 300, None)  # as a server may have it from a header
    party.client("10.0.0.1", "9" * 300)
    assert len(party.era.clients) == known
    assert party.client(None, None) == (None, False)


# links


def test_links_go_least_recently_used_first_over_their_bytes() -> None:
    links = Links(Limits(link_bytes=10_000), "until_ack")
    first = links.get(("http", "a", 80))
    links.get(("http", "b", 80))
    assert links.get(("http", "a", 80)) is first
    for name in "cdef":
        links.get(("http", name, 80))
        assert links.get(("http", "a", 80)) is first
    assert links.bytes <= 10_000
    assert len(links) == 4


def test_a_link_weighs_what_it_has_learned(wire: Any, chat: Scope) -> None:
    before = wire.caller.links.bytes
    for n in range(50):
        with session(f"s{n}"):
            wire.call()
    links = wire.caller.links
    link = links.get(("http", "localhost", 80))
    assert links.bytes - before >= 50 * 300
    assert links.bytes == link.bytes == link.sender.bytes
    link.sender._held.drop_process()
    assert link.sender._held.bytes == 0


# what waits for the next ack


def total(value: int) -> dict[str, UpValue]:
    return {"n": UpValue("sum", value)}


def test_what_waits_is_bounded_per_session_and_in_sessions() -> None:
    pending = Pending(sessions=3)
    for n in range(10):
        pending.put(("default", f"s{n}"), Batch(total(n)))
    assert len(pending) == 3
    for n in range(10):
        pending.put(KEY, Batch(total(1), event=n + 1, shown=True))
    taken = []
    while (batch := pending.take(KEY, {})[0]).ups:
        taken.append(batch.event)
    assert taken == [7, 8, 9, 10]


def test_what_waits_unseen_is_joined_by_its_rules() -> None:
    pending = Pending()
    pending.put(KEY, Batch(total(1)), Window(used=2, limit=9, version=2))
    pending.put(KEY, Batch(total(2)), Window(used=1, limit=9, version=1))
    batch, window = pending.take(KEY, total(4))
    assert batch.ups == total(7)
    assert batch.event != 0
    assert window == Window(used=2, limit=9, version=2)
    assert pending.take(KEY, {}) == (Batch({}), None)
    assert len(pending) == 0


def test_nothing_waits_where_there_is_nothing() -> None:
    pending = Pending()
    pending.put(KEY, Batch({}))
    assert len(pending) == 0
    pending.put(KEY, Batch({}), Window(used=1, limit=2))
    assert pending.take(("other", "s1"), {})[1] is None
    assert pending.take(KEY, {})[1] == Window(used=1, limit=2)


# what is known by heart


def test_a_long_frame_is_made_anew_each_time_and_a_short_one_once(node: Callable[..., Node]) -> None:
    """Four thousand lines of four kilobytes would be more than all bases take."""
    one, long = node(), EMPTY.put("session.id", "s").put("app.long", "x" * 600)
    for state, kept in ((long, 0), (EMPTY.put("session.id", "s"), 1)):
        assert one.wire(full(state), UNIX) == one.wire(full(state), UNIX)
        assert len(one.era.wires) == kept


def test_a_frame_of_another_revision_of_the_table_is_another_line(node: Callable[..., Node]) -> None:
    one, frame = node(), full(EMPTY.put("session.id", "s"))
    assert one.wire(replace(frame, table=2), UNIX) != one.wire(frame, UNIX)


@pytest.fixture
def known(wire: Any, chat: Scope) -> list[bytes | str]:
    """The line of a REF that the callee has accepted twice."""
    for _ in range(5):
        wire.call()
    lines: list[bytes | str] = [value for _, value in wire.begin().headers]
    assert (wire.kinds[3:], wire.open(lines).outcome) == (["ref", "ref"], "accepted")
    return lines


def test_a_line_known_by_heart_is_no_credential_for_ever(wire: Any, known: list[bytes | str]) -> None:
    assert wire.open(known, now=UNIX + wire.now + 3600).outcome == "accepted"
    assert wire.open(known, now=UNIX + wire.now + 3 * 3600).reason == "mac"


def test_a_line_known_by_heart_needs_its_base_all_the_same(wire: Any, known: list[bytes | str]) -> None:
    wire.callee._bases.clear()
    assert wire.open(known).outcome == "refuse"


def test_a_line_known_by_heart_ends_with_its_key(wire: Any, known: list[bytes | str]) -> None:
    wire.callee.reload(Settings(keys="1:" + "QUJD" * 12))
    assert wire.open(known).reason == "mac"


def test_an_ack_known_by_heart_ends_with_its_key_and_its_hours(wire: Any, known: list[bytes | str]) -> None:
    acks: list[bytes | str] = []
    wire.call(tamper=lambda lines: acks.extend(lines) or lines)
    assert wire.caller.read_ack(acks, UNIX + wire.now) is not None
    assert wire.caller.read_ack(acks, UNIX + wire.now + 3 * 3600) is None
    wire.caller.reload(Settings(keys="1:" + "QUJD" * 12))
    assert wire.caller.read_ack(acks, UNIX + wire.now) is None


def test_what_is_known_by_heart_is_bounded(node: Callable[..., Node]) -> None:
    from otelctx.delta.messages import Frame, FrameKind

    party = node()
    for n in range(10_000):
        party.wire(Frame(FrameKind.REF, n.to_bytes(16, "big")), UNIX)
    assert 0 < len(party.era.wires) <= 4096
