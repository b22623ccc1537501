"""What a party knows of others stays out of logs, of exceptions, and of what debuggers and error reporters print."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import ContextKey, UpKey, session
from otelctx.context.scope import Scope, UpValue
from otelctx.context.state import EMPTY, entry
from otelctx.delta.baggage import parse
from otelctx.delta.codec import decode_frame, encode_frame, from_header, to_header
from otelctx.delta.messages import Ack, AckKind, delta, full
from otelctx.errors import ProtocolError
from otelctx.exchange.node import Node
from otelctx.policy.trust import FRAME, Key, Keyring
from otelctx.settings import Settings

SECRET = "whispered-word"
TIER = ContextKey("exchange.secrets.tier", str, visibility="public")
TOLD = UpKey("exchange.secrets.told", str, rule="last")
MASTER = bytes(range(100, 132))
SPELLINGS = (SECRET, repr(MASTER), MASTER.hex(), base64.b64encode(MASTER).decode())
RUBBISH = [b":AAAA:", b":" + b"A" * 5000 + b":", b"whispered-word", b":whispered-word:", b"", b"\xff\0\r\n"]


def unspoken(text: str) -> bool:
    return not any(spelling in text for spelling in SPELLINGS)


def complaint(body: bytes) -> str:
    try:
        decode_frame(body)
    except ProtocolError as error:
        return f"{error!s} {error!r} {error.__cause__!r} {vars(error)}"
    return ""


def keyed(**settings: Any) -> Node:
    return Node(Settings(keys=f"1:{base64.b64encode(MASTER).decode()}", **settings))


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)], ids=["stranger", "trusted"])
def test_whatever_happens_nothing_of_it_is_logged(
    wire: Any, caplog: pytest.LogCaptureFixture, trusted: tuple[str, ...]
) -> None:
    caplog.set_level(logging.DEBUG)
    wire.caller, wire.callee = keyed(), keyed(trusted_clients=trusted)
    with session(SECRET), TIER.bound(SECRET):
        for turn in range(6):
            if turn == 4:
                wire.callee = keyed()  # a refusal
            wire.call(lambda scope: scope.record(TOLD.spec, SECRET))
        for line in (*RUBBISH, to_header(encode_frame(full(EMPTY.put("session.id", SECRET))) + b"\xff")):
            wire.open([line], baggage=f"{TIER.spec.name}={SECRET},=;{SECRET}", forwarded=SECRET)
            wire.begin().close(200, [line], wire.now, wire.unix)
    assert "refuse" in wire.outcomes
    assert unspoken(caplog.text)


def test_an_error_says_what_is_wrong_and_not_what_it_was() -> None:
    body = encode_frame(full(EMPTY.put("session.id", "s").put("app.secret", SECRET)))
    for at in range(len(body)):
        for change in (b"", b"\xff", b"\0\0"):
            broken = body[:at] + change + body[at + 1 :]
            assert unspoken(complaint(broken))
    for line in RUBBISH:
        with pytest.raises(ProtocolError) as caught:
            decode_frame(from_header(line))
        assert unspoken(f"{caught.value!s} {caught.value!r}")


def test_no_repr_tells_a_value() -> None:
    state = EMPTY.put("session.id", SECRET).put(TIER.spec.name, SECRET)
    node = keyed()
    frame = full(state)
    line = to_header((body := encode_frame(frame)) + node.keyring.sign(FRAME, body, 1e9))
    shown: list[object] = [
        state,
        entry("app.secret", SECRET),
        frame,
        delta(EMPTY.put("session.id", "s"), state),
        Ack(AckKind.ACK, state.root[:8], ups=(entry(TOLD.spec.name, SECRET),)),
        UpValue("last", SECRET),
        Scope(state),
        parse((f"{TIER.spec.name}={SECRET},other={SECRET}",), node.registry),
        node.receive([line], (None, False), 1e9),
        node._receiver.read([line], trusted=True, verify=lambda body, mac: "default"),
        Key(1, "default", MASTER),
        Keyring([Key(1, "default", MASTER)]),
        node,
        node.settings,
    ]
    for thing in shown:
        assert unspoken(repr(thing)), type(thing)
        assert unspoken(str(thing)), type(thing)


def test_macs_and_seals_are_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, node: Callable[..., Node]
) -> None:
    """Whoever compares bytes of his own making must not learn how many are right."""
    from otelctx.policy import trust

    compared: list[tuple[bytes, bytes]] = []
    real = trust.hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(trust.hmac, "compare_digest", compare)
    keyring = node().keyring
    trailer = keyring.sign(FRAME, b"body", 1e9)
    forged = trailer[2:-1] + bytes([trailer[-1] ^ 1])
    assert keyring.verify(FRAME, b"body", forged, 1e9) is None
    assert [given for _, given in compared] == [forged[1:]] * 3, "each hour's, none left out by its first bytes"
    seal = keyring.seal(b"word", b"body")
    compared.clear()
    assert not keyring.sealed(b"word", b"body", seal[:-1] + bytes([seal[-1] ^ 1]))
    assert [len(one) for one, _ in compared] == [16]
