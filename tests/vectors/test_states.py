"""Leaves and roots, computed here by hand and by the package."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.keys import NAME, KeySpec, normalise
from otelctx.context.state import State, encode_value
from otelctx.delta.codec import encode_frame
from otelctx.delta.messages import full
from otelctx.errors import ConfigError, ContextLimitExceeded, ContextTypeError
from otelctx.semconv import STATIC_TABLE, TABLE_REVISION
from scripts.vectors.forms import read_entry, read_value

Load = Callable[[str], dict[str, Any]]


def test_the_static_table_is_ours(vectors: Load) -> None:
    table = vectors("states")["table"]
    assert table["revision"] == TABLE_REVISION
    assert {row["id"]: row["name"] for row in table["ids"]} == STATIC_TABLE


def test_every_leaf_and_root_follows_from_its_definition(vectors: Load) -> None:
    """With nothing of the package: only hashes, lengths and the order of the names' bytes."""
    for recorded in vectors("states")["states"]:
        leaves = b""
        for item in sorted(recorded["entries"], key=lambda item: item["key"].encode()):
            name, raw = item["key"].encode(), bytes.fromhex(item["canonical"])
            text = struct.pack(">H", len(name)) + name + bytes((item["type_byte"],)) + struct.pack(">H", len(raw)) + raw
            leaf = hashlib.sha256(text).digest()[:16]
            assert leaf.hex() == item["leaf"], recorded["name"]
            leaves += leaf
        root = hashlib.sha256(leaves).digest()[:16] if leaves else bytes(16)
        assert root.hex() == recorded["root"], recorded["name"]


def test_every_state_has_the_recorded_leaves_root_and_size(vectors: Load) -> None:
    for recorded in vectors("states")["states"]:
        items = [read_entry(form) for form in recorded["entries"]]
        state = State({item.name: item for item in items})
        for item, form in zip(items, recorded["entries"], strict=True):
            assert (item.leaf.hex(), encode_value(item.value).hex()) == (form["leaf"], form["canonical"])
        assert [item.name for item in state.entries()] == [form["key"] for form in recorded["entries"]]
        assert (state.root.hex(), state.size) == (recorded["root"], recorded["full_size"])


def test_the_size_is_that_of_the_full_frame_with_mac_and_completeness_entry(vectors: Load) -> None:
    for recorded in vectors("states")["states"]:
        items = [read_entry(form) for form in recorded["entries"]]
        state = State({item.name: item for item in items})
        marked = 0 if "otelctx.incomplete" in state else 6
        assert len(encode_frame(full(state))) + 19 + marked == recorded["full_size"], recorded["name"]


def test_what_is_normalised_is_stored_so(vectors: Load) -> None:
    for recorded in vectors("states")["normalised"]:
        given, stored = normalise(read_value(recorded["given"])), read_value(recorded["stored"])
        assert encode_value(given) == encode_value(stored)


def test_what_is_no_value_or_name_is_refused(vectors: Load) -> None:
    for recorded in vectors("states")["refused"]:
        name, value = recorded["given"]["key"], read_value(recorded["given"])
        if NAME.fullmatch(name):
            with pytest.raises((ContextTypeError, ContextLimitExceeded)):
                normalise(value)
        else:
            with pytest.raises(ConfigError):
                KeySpec(name, str)
