"""Frames, acks, MACs and header lines: written as recorded, and read back as what they were made of."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.state import State
from otelctx.delta.codec import decode_ack, decode_frame, encode_ack, encode_frame, from_header, split_mac, to_header
from otelctx.delta.messages import FrameKind, delta, full, ref
from otelctx.errors import ProtocolError
from otelctx.exchange.node import Node
from otelctx.policy.trust import ACK, FRAME, Key, Keyring
from otelctx.settings import Settings
from scripts.vectors.forms import ack_form, frame_form, read_ack, read_entry, read_frame

Load = Callable[[str], dict[str, Any]]
Ring = Callable[[dict[str, Any]], Keyring]


def _state(forms: list[dict[str, Any]]) -> State:
    return State({form["key"]: read_entry(form) for form in forms})


def test_frames_are_written_to_the_byte(vectors: Load) -> None:
    for recorded in vectors("frames")["frames"]:
        state, base = _state(recorded["state"]), recorded["base_state"]
        kind = FrameKind[recorded["frame"]["kind"]]
        frame = {
            FrameKind.FULL: lambda state=state: full(state),
            FrameKind.REF: lambda state=state: ref(state),
            FrameKind.DELTA: lambda state=state, base=base: delta(_state(base), state),
        }[kind]()
        assert frame_form(frame) == recorded["frame"], recorded["name"]
        assert encode_frame(frame).hex() == recorded["body"], recorded["name"]
        assert to_header(bytes.fromhex(recorded["body"] + recorded["trailer"])) == recorded["header"]


def test_frames_are_read_and_make_their_state(vectors: Load, ring: Ring) -> None:
    recording = vectors("frames")
    for recorded in recording["frames"]:
        body, mac = split_mac(from_header(recorded["header"]))
        assert body.hex() == recorded["body"], recorded["name"]
        if recorded["signed_by"] is None:
            assert mac is None
        else:
            (domain,) = (key["domain"] for key in recording["keys"] if key["id"] == recorded["signed_by"])
            assert mac is not None
            assert ring(recording).verify(FRAME, body, mac, recording["time"]) == domain
        frame = decode_frame(body)
        assert frame == read_frame(recorded["frame"])
        base = State() if recorded["base_state"] is None else _state(recorded["base_state"])
        assert base.apply(frame.put, frame.delete).root == frame.root == _state(recorded["state"]).root


def test_acks_are_written_to_the_byte_and_read_back(vectors: Load, ring: Ring) -> None:
    recording = vectors("acks")
    keys = ring(recording)
    for recorded in recording["acks"]:
        body = encode_ack(read_ack(recorded["ack"]), signed=recorded["signed"])
        trailer = keys.sign(ACK, body, recording["time"]) if recorded["signed"] else b""
        assert (body.hex(), trailer.hex()) == (recorded["body"], recorded["trailer"]), recorded["name"]
        assert to_header(body + trailer) == recorded["header"]
        read, mac = split_mac(from_header(recorded["header"]))
        assert ack_form(decode_ack(read)) == recorded["ack"]
        assert mac is None or keys.verify(ACK, read, mac, recording["time"]) == "default"


def test_an_ack_is_shortened_to_what_fits(vectors: Load) -> None:
    for recorded in vectors("acks")["shortened"]:
        given = read_ack(recorded["given"])
        body = encode_ack(given, signed=recorded["signed"])
        assert body.hex() == recorded["body"], recorded["name"]
        read = decode_ack(body)
        assert read.truncated
        assert read.ups == given.ups[: recorded["kept"]]
        assert len(to_header(body + bytes(19 if recorded["signed"] else 0))) <= 512


def _node(keys: list[dict[str, Any]]) -> Node:
    text = [f"{k['id']}@{k['domain']}:{base64.b64encode(bytes.fromhex(k['master'])).decode()}" for k in keys]
    return Node(Settings(keys=",".join(text)))


def test_acks_that_prove_nothing_or_say_nothing_are_ignored(vectors: Load) -> None:
    recording = vectors("acks")
    node = _node(recording["keys"])
    good = next(r for r in recording["acks"] if r["name"] == "ACK, held by the process")
    assert node.read_ack([good["header"]], recording["time"]) is not None
    for recorded in recording["ignored"]:
        ack = node.read_ack(recorded["lines"], recording["time"])
        assert ack is None or ack.root.hex() != recorded["root"], recorded["name"]


def test_keys_of_the_hour_and_macs(vectors: Load) -> None:
    recording = vectors("macs")
    keys = {k["id"]: Key(k["id"], k["domain"], bytes.fromhex(k["master"])) for k in recording["keys"]}
    for recorded in recording["macs"]:
        key, body = keys[recorded["key"]], bytes.fromhex(recorded["body"])
        assert key.for_hour(recorded["hour"]).hex() == recorded["hour_key"]
        trailer = Keyring([key]).sign(recorded["direction"].encode(), body, recorded["time"])
        assert trailer.hex() == recorded["trailer"]


def test_a_mac_is_accepted_in_its_hour_and_the_ones_beside_it(vectors: Load, ring: Ring) -> None:
    recording = vectors("macs")
    for recorded in recording["accepted"]:
        body, mac = bytes.fromhex(recorded["body"]), bytes.fromhex(recorded["mac"])
        domain = ring(recording).verify(recorded["direction"].encode(), body, mac, recorded["time"])
        assert domain == recorded["domain"], recorded["name"]


def test_header_lines_are_one_byte_sequence_or_nothing(vectors: Load) -> None:
    for recorded in vectors("headers")["headers"]:
        if len(recorded["lines"]) != 1:
            assert recorded["reason"] == "repeated"
        elif recorded["bytes"] is None:
            with pytest.raises(ProtocolError) as caught:
                from_header(recorded["lines"][0])
            assert caught.value.reason == recorded["reason"], recorded["name"]
        else:
            assert from_header(recorded["lines"][0]).hex() == recorded["bytes"], recorded["name"]
