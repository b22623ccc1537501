"""SIGHUP, where there is a file of keys and where there is none."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelctx.cli.rereading import keys_on_hangup
from otelctx.exchange.node import Node, set_default_node
from otelctx.exchange.rotation import KeyFile
from otelctx.settings import Settings

OLD, NEW = (f"{n}:" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    set_default_node(None)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_hangup_asks_for_the_keys_and_takes_no_lock(tmp_path: Path) -> None:
    """A handler runs between any two steps of the main thread, which may hold every lock there is."""
    path = tmp_path / "keys"
    path.write_text(OLD)
    node = Node(Settings(keys=OLD, keys_file=path))
    assert isinstance(node.key_file, KeyFile)
    set_default_node(node)
    path.write_text(NEW)
    with keys_on_hangup():
        with node._lock:
            os.kill(os.getpid(), signal.SIGHUP)
        node.key_file.look()
    assert node.keyring.ids == (2,)


def test_without_a_file_a_hangup_means_what_it_meant() -> None:
    set_default_node(Node(Settings(keys=OLD)))
    before = signal.getsignal(signal.SIGHUP)
    with keys_on_hangup():
        assert signal.getsignal(signal.SIGHUP) is before
