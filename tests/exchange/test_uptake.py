"""What an ack brings goes to the scope that it answers, if it is of the right kind and comes in time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.keys import KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import Window, entry
from otelctx.delta.messages import Ack, AckKind
from otelctx.exchange import uptake
from otelctx.exchange.node import Node
from otelctx.exchange.uptake import Askers, take_over

WINDOW = Window(used=10, limit=100, version=1)
ROOT = b"12345678"


def ack(root: bytes = ROOT, **fields: Any) -> Ack:
    return Ack(AckKind.ACK, root, **fields)


@pytest.fixture
def party(node: Callable[..., Node]) -> Node:
    found = node()
    found.registry.declare(KeySpec("uptake.spent", int, flow="up", rule="sum"))
    return found


@pytest.mark.parametrize("session", [True, False])
def test_a_window_is_taken_by_who_asked_in_a_session(party: Node, session: bool) -> None:
    """Where a frame was of none, the window would be somebody else's."""
    scope = Scope()
    assert take_over(party, scope, ack(window=WINDOW), session=session)
    assert scope.window == (WINDOW if session else None)


def test_a_value_of_another_type_than_the_one_declared_is_left_out(party: Node) -> None:
    scope = Scope()
    assert take_over(party, scope, ack(ups=(entry("uptake.spent", "ten"),), event=1), session=True)
    assert scope.up("uptake.spent") is None
    take_over(party, scope, ack(ups=(entry("uptake.spent", 10),), event=2), session=True)
    assert scope.up("uptake.spent") == 10


def test_of_askers_those_that_asked_last_are_remembered(party: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uptake, "_REMEMBERED", 2)
    askers, scope = Askers(), Scope()
    for root in (b"1" * 16, b"2" * 16, b"1" * 16, b"3" * 16):
        askers.remember(root, scope, session=True)
    heard = [askers.hear(party, ack(root * 8)) for root in (b"1", b"2", b"3")]
    assert heard == [True, None, True]


def test_an_ack_whose_asker_is_gone_came_too_late_and_is_no_strangers(party: Node) -> None:
    askers, scope = Askers(), Scope()
    askers.remember(ROOT * 2, scope, session=True)
    del scope
    gc.collect()
    assert askers.hear(party, ack()) is False
    assert askers.hear(party, ack(b"unheard!")) is None
