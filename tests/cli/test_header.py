"""``otelctx show header``: what is on the wire in readable form, and nothing but an error line for anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from otelctx.cli.header import explain
from otelctx.cli.program import program
from otelctx.context.state import EMPTY, Window, entry
from otelctx.delta import codec
from otelctx.delta.messages import Ack, AckKind, Held, NackReason, delta, full
from otelctx.errors import ConfigError
from otelctx.policy.trust import FRAME, Keyring

STATE = EMPTY.put("session.id", "s-1").put("user.tier", "gold")


def frame_line(*, signed: bool = False) -> str:
    body = codec.encode_frame(full(STATE))
    keys = Keyring.parse("7:" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=")
    return codec.to_header(body + keys.sign(FRAME, body, 1_800_000_000) if signed else body)


def ack_line() -> str:
    ack = Ack(
        AckKind.NACK,
        STATE.root[:8],
        Held.PROCESS,
        boot_id=255,
        reason=NackReason.ROOT,
        event=1,
        ups=(entry("usage.tokens.output", 5), entry("trace.note", b"\x00\xff")),
        window=Window(100, 512, 3),
    )
    return codec.to_header(codec.encode_ack(ack, signed=False))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program, ["show", "header", *arguments])
    return result.exit_code, result.output


def test_a_frame_is_shown_with_its_keys_and_who_signed_it() -> None:
    told = explain(frame_line(signed=True))
    assert (told["message"], told["kind"], told["root"]) == ("frame", "FULL", STATE.root.hex())
    assert told["put"] == {"session.id": "s-1", "user.tier": "gold"}
    assert told["signed by"]["key id"] == 7
    assert explain(frame_line())["signed by"] is None


def test_a_delta_is_shown_with_its_base() -> None:
    told = explain(codec.to_header(codec.encode_frame(delta(STATE, STATE.drop(["user.tier"])))))
    assert (told["kind"], told["base"], told["delete"]) == ("DELTA", STATE.root[:8].hex(), ["user.tier"])


def test_an_ack_is_shown_with_what_it_carries_up() -> None:
    told = explain(ack_line())
    assert (told["message"], told["kind"], told["reason"], told["held"]) == ("ack", "NACK", "ROOT", "PROCESS")
    assert told["up"] == {"usage.tokens.output": 5, "trace.note": "00ff"}
    assert told["window"]["used"] == 100
    assert told["boot id"] == "000000ff"


@pytest.mark.parametrize("prefix", ["otelctx: ", "Otelctx: ", ""])
def test_a_whole_line_is_read_too(prefix: str) -> None:
    code, output = run(prefix + frame_line(), "--json")
    assert code == 0
    assert json.loads(output)["put"]["user.tier"] == "gold"
    code, output = run(prefix + frame_line())
    assert (code, "user.tier" in output, "gold" in output) == (0, True, True)


@pytest.mark.parametrize(
    "value", ["", "garbage", "::", ":!!!!:", ":" + "QUJD" * 3 + ":", ":" + "A" * 5000 + ":", "otelctx-ack: :AAAA:"]
)
def test_garbage_is_one_clear_line(value: str) -> None:
    code, output = run("--", value)
    assert code == 1
    assert output.startswith("otelctx: not an otelctx or otelctx-ack header value: ")
    assert len(output.splitlines()) == 1


def test_a_frame_is_not_taken_for_an_ack_nor_an_ack_for_a_frame() -> None:
    with pytest.raises(ConfigError):
        explain("otelctx-ack: " + frame_line())
    with pytest.raises(ConfigError):
        explain("otelctx: " + ack_line())


@given(st.text() | st.binary().map(codec.to_header))
def test_anything_is_explained_or_refused(value: str) -> None:
    try:
        told = explain(value)
    except ConfigError:
        return
    json.dumps(told)


def test_what_a_value_holds_does_not_reach_the_terminal_raw() -> None:
    state = EMPTY.put("user.tier", "\x1b[31mred\nline")
    code, output = run(codec.to_header(codec.encode_frame(full(state))))
    assert code == 0
    assert "\x1b" not in output
    assert "\\x1b[31mred\\nline" in output
