"""The recordings are those of this code, and the schema that others compile is that of ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from otelctx.delta import limits
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.semconv import STATIC_TABLE, TABLE_REVISION
from scripts.vectors import example
from scripts.vectors.record import ROOT, differing

SCHEMA = ROOT / "proto" / "otelctx" / "v1" / "otelctx.proto"
PAGE = (ROOT / "docs" / "wire-format.md").read_text()


def test_recording_again_gives_the_committed_bytes() -> None:
    """If the format is meant to change: ``python -m scripts.vectors``, and look at what changed."""
    assert differing() == []


def test_a_page_without_a_place_for_the_example_is_an_error() -> None:
    with pytest.raises(ValueError, match="end of example"):
        example.inserted("no place")


def test_the_names_of_the_recordings_are_unique() -> None:
    for path in sorted((ROOT / "proto" / "vectors").glob("*.json")):
        for part in json.loads(path.read_text()).values():
            names = [item["name"] for item in part if "name" in item] if isinstance(part, list) else []
            assert len(set(names)) == len(names), path.name


def _fields(message: Descriptor) -> dict[str, tuple[int, str, bool]]:
    types = {name: value for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
    kinds = {value: name.removeprefix("TYPE_").lower() for name, value in types.items()}
    found = {}
    for field in message.fields:
        named = field.message_type or field.enum_type
        found[field.name] = (field.number, named.name if named else kinds[field.type], field.is_repeated)
    return found


def test_the_schema_is_the_one_that_our_code_was_generated_from() -> None:
    text = re.sub(r"//.*", "", SCHEMA.read_text())
    blocks = re.findall(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL)
    assert {name for name, _ in blocks} == set(pb.DESCRIPTOR.message_types_by_name)
    for name, block in blocks:
        outside = re.sub(r"enum \w+ \{.*?\}", "", block, flags=re.DOTALL)
        written = {
            field: (int(number), kind, bool(repeated))
            for repeated, kind, field, number in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", outside)
        }
        message = pb.DESCRIPTOR.message_types_by_name[name]
        assert written == _fields(message)
        for enum, values in re.findall(r"enum (\w+) \{(.*?)\}", block, re.DOTALL):
            numbers = {word: int(number) for word, number in re.findall(r"(\w+) = (\d+);", values)}
            assert numbers == {v.name: v.number for v in message.enum_types_by_name[enum].values}


def test_the_page_has_the_static_table() -> None:
    rows = {int(key_id): name for key_id, name in re.findall(r"^\| (\d+) \| `([a-z0-9_.]+)` \|", PAGE, re.MULTILINE)}
    assert rows == STATIC_TABLE
    assert f"revision {TABLE_REVISION}" in PAGE


def test_the_page_has_the_limits() -> None:
    section = PAGE.partition("## Limits")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| (\d+) [^|]*\|", section, re.MULTILINE))
    assert {name: int(number) for name, number in rows.items()} == {
        "header value of a frame": limits.MAX_HEADER_CHARS,
        "decoded message": limits.MAX_FRAME_BYTES,
        "header value of an ack": limits.MAX_ACK_CHARS,
        "entries put, and entries deleted, in one frame": limits.MAX_ENTRIES,
        "state, as a FULL with MAC": 2900,
        "value, text or bytes, downwards": 1024,
        "value, text or bytes, upwards": 256,
        "name of a key": 64,
    }


def test_the_page_names_each_recording() -> None:
    assert set(re.findall(r"`(\w+\.json)`", PAGE)) == {p.name for p in Path(ROOT / "proto" / "vectors").iterdir()}
