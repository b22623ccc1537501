"""``macs.json``: key derivation and MAC step by step, and when one is accepted."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from typing import Any

from otelctx.delta.codec import encode_frame
from otelctx.delta.messages import ref
from otelctx.policy.trust import ACK, FRAME, Key, Keyring
from scripts.vectors.forms import key_form
from scripts.vectors.samples import KEYS, NOW, RING, STATES

__all__ = ["record"]

_HOUR = 3600
_BODY = encode_frame(ref(STATES["chat"]))
_LABEL = b"otelctx/1\0"


def _steps() -> Iterator[dict[str, Any]]:
    for key in KEYS:
        for time in (NOW, NOW + _HOUR, 0):
            for direction in (FRAME, ACK):
                yield _step(key, time, direction, _BODY)
    yield _step(KEYS[0], NOW, FRAME, b"")


def _step(key: Key, time: int, direction: bytes, body: bytes) -> dict[str, Any]:
    hour = time // _HOUR
    domain = key.domain.encode()
    return {
        "key": key.key_id,
        "time": time,
        "hour": hour,
        "prk": hmac.digest(b"", key.master, "sha256").hex(),
        "info": (_LABEL + domain + b"\0" + struct.pack(">Q", hour)).hex(),
        "hour_key": key.for_hour(hour).hex(),
        "direction": direction.decode(),
        "body": body.hex(),
        "input": (_LABEL + direction + struct.pack(">H", len(domain)) + domain + body).hex(),
        "trailer": Keyring([key]).sign(direction, body, time).hex(),
    }


def _accepted() -> Iterator[dict[str, Any]]:
    mac = RING.sign(FRAME, _BODY, NOW)[2:]
    other = Keyring([KEYS[1]]).sign(FRAME, _BODY, NOW)[2:]
    rotated = Keyring([KEYS[2]]).sign(FRAME, _BODY, NOW)[2:]
    unknown = Keyring([Key(9, "default", KEYS[0].master)]).sign(FRAME, _BODY, NOW)[2:]
    flipped = mac[:-1] + bytes((mac[-1] ^ 1,))
    cases = (
        ("the hour of signing", mac, FRAME, _BODY, NOW),
        ("the last second of it", mac, FRAME, _BODY, NOW + _HOUR - 1),
        ("the next hour", mac, FRAME, _BODY, NOW + _HOUR),
        ("the last second of the next hour", mac, FRAME, _BODY, NOW + 2 * _HOUR - 1),
        ("two hours later", mac, FRAME, _BODY, NOW + 2 * _HOUR),
        ("a clock that is an hour behind", mac, FRAME, _BODY, NOW - 1),
        ("a clock that is more than an hour behind", mac, FRAME, _BODY, NOW - _HOUR - 1),
        ("another domain", other, FRAME, _BODY, NOW),
        ("the second key of the domain", rotated, FRAME, _BODY, NOW),
        ("the other direction", mac, ACK, _BODY, NOW),
        ("a key id that is not listed", unknown, FRAME, _BODY, NOW),
        ("one bit of the MAC", flipped, FRAME, _BODY, NOW),
        ("one bit of the body", mac, FRAME, _BODY[:-1] + bytes((_BODY[-1] ^ 1,)), NOW),
        ("another key id on the same MAC", bytes((255,)) + mac[1:], FRAME, _BODY, NOW),
    )
    for name, seal, direction, body, time in cases:
        yield {
            "name": name,
            "mac": seal.hex(),
            "direction": direction.decode(),
            "body": body.hex(),
            "time": time,
            "domain": RING.verify(direction, body, seal, time),
        }


def record() -> dict[str, Any]:
    return {
        "about": (
            "prk = HMAC-SHA-256(no bytes, master); hour_key = HMAC-SHA-256(prk, info, 01); trailer = 7a 11, key id, "
            "HMAC-SHA-256(hour_key, input)[:16]. accepted: domain is null where a MAC is not valid at that time"
        ),
        "keys": [key_form(key) for key in KEYS],
        "macs": list(_steps()),
        "accepted": list(_accepted()),
    }
