"""Keys that change under traffic, and hours that pass, without a lost exchange."""

from __future__ import annotations

import base64
import gc
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otelctx.context.current import ContextKey
from otelctx.context.scope import Scope
from otelctx.delta.codec import from_header, split_mac
from otelctx.exchange import rotation
from otelctx.exchange.node import Node
from otelctx.exchange.rotation import KeyFile
from otelctx.settings import Settings

OLD, NEW = (f"{n}:" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
OTHER_DOMAIN = NEW.replace("2:", "2@edge:")
TIER = ContextKey("rotation.tier", str)


def key_id(line: str) -> int | None:
    """The key by which a header's value is signed."""
    mac = split_mac(from_header(line))[1]
    return None if mac is None else mac[0]


def turn(node: Node, *keys: str) -> None:
    node.reload(replace(node.settings, keys=",".join(keys)))


@pytest.fixture
def talk(wire: Any, chat: Scope) -> Callable[[], int]:
    """Eight exchanges of one session that changes half-way; the key of the last frame. Each arrives as it was meant."""
    tiers = iter(range(10_000))

    def speak() -> int:
        for _ in range(4):
            TIER.set(f"t{next(tiers)}")
            for _ in range(2):
                seen: list[Any] = []
                wire.call(lambda scope, seen=seen: seen.append((scope.state.root, scope.source, scope.incomplete)))
                assert seen == [(chat.state.root, "frame", False)]
        used = key_id(wire.client.headers[0][1])
        assert used is not None, "unsigned"
        return used

    return speak


@pytest.mark.parametrize("new", [NEW, OTHER_DOMAIN])
def test_in_the_documented_order_each_exchange_arrives_whole(wire: Any, talk: Callable[[], int], new: str) -> None:
    wire.caller.reload(Settings(keys=OLD))
    wire.callee.reload(Settings(keys=OLD))
    used = [talk()]
    for keys in ((OLD, new), (new, OLD), (new,)):
        for node in (wire.callee, wire.caller):  # not at the same moment
            turn(node, *keys)
            used.append(talk())
    assert used == [1, 1, 1, 1, 2, 2, 2]
    assert "ignored" not in wire.outcomes
    assert wire.outcomes.count("refuse") <= (1 if new is OTHER_DOMAIN else 0), "another domain has its own bases"


def test_in_the_documented_order_whoever_is_first_acks_are_believed(wire: Any, talk: Callable[[], int]) -> None:
    for node in (wire.caller, wire.callee):
        turn(node, OLD)
    talk()
    for keys in ((OLD, NEW), (NEW, OLD), (NEW,)):
        for node in (wire.caller, wire.callee):
            turn(node, *keys)
            talk()
            assert wire.client.ack_kind == "ack"
    assert wire.kinds[-1] == "ref"
    assert wire.kinds.count("full") == 3, "the link has lost nothing that it knew"


def test_in_the_wrong_order_context_is_refused_and_never_another_one(wire: Any, chat: Scope) -> None:
    """A signer that the other side does not know yet: its frames are a stranger's."""
    turn(wire.caller, OLD)
    turn(wire.callee, OLD)
    TIER.set("gold")
    for _ in range(4):
        wire.call()
    assert wire.kinds[-1] == "ref"
    turn(wire.caller, NEW)
    seen: list[Any] = []
    for _ in range(4):
        inbound = wire.call(lambda scope: seen.append((dict(scope.state), scope.source)))
        assert (inbound.outcome, inbound.reason, inbound.event) == ("ignored", "mac", "otelctx.context.rejected")
    assert seen == [({}, "none")] * 4
    assert wire.client.lost is None or wire.client.lost == "no_ack"
    turn(wire.callee, OLD, NEW)
    for _ in range(4):
        wire.call(lambda scope: seen.append((scope.state["rotation.tier"], scope.source)))
    assert seen[4:] == [("gold", "frame")] * 4


def test_what_was_made_with_the_old_keys_while_they_changed_is_not_kept(
    wire: Any, chat: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has looked up the old keys and writes what it made with them once the new ones are in use."""
    turn(wire.caller, OLD)
    turn(wire.callee, OLD, NEW)
    for _ in range(3):
        wire.call()
    chat.set(TIER.spec, "gold")
    old = wire.caller.keyring
    sign = type(old).sign

    def slow(keyring: Any, *args: Any) -> bytes:
        made = sign(keyring, *args)
        if keyring is old:
            turn(wire.caller, NEW, OLD)
        return made

    monkeypatch.setattr(type(old), "sign", slow)
    assert key_id(wire.begin().headers[0][1]) == 1
    assert key_id(wire.begin().headers[0][1]) == 2


def test_an_address_that_was_trusted_while_the_settings_changed_is_not_kept(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    party = node(trusted_clients=("10.0.0.0/8",))
    old = party.trust
    trusted = type(old).trusted

    def slow(trust: Any, *args: Any) -> bool:
        found = trusted(trust, *args)
        if trust is old:
            party.reload(Settings())
        return found

    monkeypatch.setattr(type(old), "trusted", slow)
    assert party.client("10.0.0.1", None) == ("10.0.0.1", True)
    assert party.client("10.0.0.1", None) == ("10.0.0.1", False)


def test_a_long_header_of_a_stranger_is_not_remembered(node: Callable[..., Node]) -> None:
    """Thousands of headers of 64 KiB, each another, would be a quarter of a gigabyte."""
    party = node(trusted_proxies=("10.0.0.0/8",))
    for n in range(100):
        forwarded = f"{n}," + "x" * 60_000 + ",203.0.113.9"
        assert party.client("10.0.0.1", forwarded)[0] == "203.0.113.9"
    assert party.era.clients == {}


@pytest.mark.parametrize("skew", [0.0, 3500.0, -3500.0])
def test_hours_pass_without_a_lost_exchange(wire: Any, talk: Callable[[], int], skew: float) -> None:
    """The hour is part of each key. Clocks may be an hour apart."""
    own = wire.open
    wire.open = lambda lines, **more: own(lines, **{"now": 1_800_000_000.0 + wire.now + skew, **more})
    for _ in range(150):
        wire.now += 599.0
        talk()
    assert wire.now > 24 * 3600
    assert set(wire.outcomes) == {"accepted"}


# the file


class Taker:
    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, keys: str) -> None:
        self.taken.append(keys)


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "keys"
    found.write_text(OLD)
    return found


def test_a_change_is_taken_once_the_file_stays_as_it_is(path: Path, taker: Taker) -> None:
    file = KeyFile(path, taker.take)
    file.look()
    file.look()
    assert taker.taken == [OLD]
    for cut in (10, 30, len(OLD)):  # somebody writes it piece by piece; cut short it would be another key
        path.write_text(f"{OLD}\n{NEW}"[:cut])
        file.look()
    path.write_text(f"{OLD}\n{NEW}\n")
    file.look()
    assert taker.taken == [OLD]
    for _ in range(3):
        file.look()
    assert taker.taken == [OLD, f"{OLD},{NEW}"]


def test_a_secret_that_kubernetes_mounts_changes_by_its_link(tmp_path: Path, taker: Taker) -> None:
    for version, keys in (("one", OLD), ("two", NEW)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(keys)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "keys").symlink_to("..data/keys")
    file = KeyFile(tmp_path / "keys", taker.take)
    file.look()
    file.look()
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", tmp_path / "..data")
    file.look()
    file.look()
    assert taker.taken == [OLD, NEW]


def test_who_asks_has_it_read_at_once(path: Path, taker: Taker) -> None:
    file = KeyFile(path, taker.take)
    file.ask()
    file.look()
    assert taker.taken == [OLD]


@pytest.mark.parametrize("text", ["", "\n", ",", "nonsense", "1:YWJj", f"{OLD},{OLD}", "\u00e4", "x" * 70_000, None])
def test_a_file_that_is_none_leaves_the_keys_from_before_and_says_so(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(Settings(keys=OLD, keys_file=path))
    assert node.key_file is not None
    node.key_file.look()
    node.key_file.look()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    for _ in range(5):
        node.key_file.look()
    assert node.keyring.ids == (1,)
    (record,) = caplog.records
    assert "the keys from before stay in use" in record.message
    assert OLD[2:] not in record.message
    path.write_text(NEW)
    node.key_file.look()
    node.key_file.look()
    assert node.keyring.ids == (2,)


def test_new_keys_are_told_by_their_ids_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "otelctx.exchange")
    node = Node(Settings(keys=OLD, keys_file=path))
    assert node.key_file is not None
    path.write_text(f"{NEW} {OLD}")
    node.key_file.look()
    node.key_file.look()
    assert caplog.messages == ["keys in use: 2, 1; 2 signs"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Looks come one after another; set when one was made."""
    looked = threading.Event()
    look = KeyFile.look

    def watched(file: KeyFile) -> None:
        look(file)
        looked.set()

    monkeypatch.setattr(rotation, "_EVERY", 0.001)
    monkeypatch.setattr(KeyFile, "look", watched)
    return looked


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "otelctx-keys"]


def test_a_node_watches_its_file_as_long_as_it_is_there(path: Path, quick: threading.Event) -> None:
    before = set(watchers())
    node: Node | None = Node(Settings(keys=OLD, keys_file=path))
    (thread,) = set(watchers()) - before
    path.write_text(NEW)
    while node is not None and node.keyring.ids != (2,):
        quick.clear()
        assert quick.wait(60)
    node = None
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_forked_worker_watches_for_itself(path: Path, quick: threading.Event) -> None:
    node = Node(Settings(keys=OLD, keys_file=path))
    path.write_text(NEW)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(1000):
                quick.clear()
                if node.keyring.ids == (2,) or not quick.wait(60):
                    break
            os.write(write, str(node.keyring.ids).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "(2,)"
    os.waitpid(pid, 0)


def test_a_node_without_a_file_has_no_thread() -> None:
    before = set(watchers())
    assert Node(Settings(keys=OLD)).key_file is None
    assert set(watchers()) == before
