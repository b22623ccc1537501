"""The schema is flat and nothing reads it by reflection: deep nesting and expansion have nowhere to begin."""

from __future__ import annotations

import ast
from pathlib import Path

import otelctx
from otelctx.delta.v1 import otelctx_pb2

PACKAGE = Path(otelctx.__file__).parent
# Parsers and codecs whose cost is not that of the bytes that came.
FORBIDDEN = {"bz2", "google.protobuf.any_pb2", "google.protobuf.json_format", "google.protobuf.struct_pb2",
             "google.protobuf.text_format", "gzip", "lzma", "marshal", "pickle", "zlib"}  # fmt: skip


def test_no_message_contains_itself_a_map_or_anything_of_an_open_type() -> None:
    for message in otelctx_pb2.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            assert 1 <= field.number <= 15, (message.name, field.name)
            inner = field.message_type
            if inner is None:
                continue
            assert inner.file is otelctx_pb2.DESCRIPTOR, "no Any, no Struct"
            assert not inner.GetOptions().map_entry
            assert all(deeper.message_type is None for deeper in inner.fields), (message.name, field.name)


def test_nothing_between_the_wire_and_the_application_expands_or_reflects() -> None:
    """JSON and text parsing of protobuf have been made to recurse without end; compression expands, and its length
    tells of what it compresses."""
    found = {}
    for folder in ("context", "delta", "exchange", "policy", "asgi", "clients", "grpc"):
        for path in (PACKAGE / folder).rglob("*.py"):
            names = set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            if names & FORBIDDEN:
                found[str(path.relative_to(PACKAGE))] = names & FORBIDDEN
    assert found == {}
