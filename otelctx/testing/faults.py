"""What can go wrong between two nodes, by name: pure tables over header lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from otelctx.semconv import ACK_HEADER, HEADER

__all__ = ["ON_REQUEST", "ON_RESPONSE", "Fault", "Lines"]

Lines = list[tuple[bytes, bytes]]
Fault = Literal[
    "frame_lost",
    "frame_tampered",
    "ack_lost",
    "ack_tampered",
    "request_lost",
    "response_lost",
    "restarted",
    "other_worker",
    "stranger",
]

_FRAME: Final = HEADER.encode()
_ACK: Final = ACK_HEADER.encode()


def _without(wanted: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [line for line in lines if line[0].lower() != wanted]


def _flipped(wanted: bytes) -> Callable[[Lines], Lines]:
    def flip(lines: Lines) -> Lines:
        return [(name, _other(value) if name.lower() == wanted else value) for name, value in lines]

    return flip


def _other(value: bytes) -> bytes:
    """``value`` with another base64 character in its middle."""
    at = len(value) // 2
    return value[:at] + (b"B" if value[at : at + 1] == b"A" else b"A") + value[at + 1 :]


# Of the faults that change lines on their way, what they do to them. The others are of the nodes themselves.
ON_REQUEST: Final[Mapping[Fault, Callable[[Lines], Lines]]] = {
    "frame_lost": _without(_FRAME),
    "frame_tampered": _flipped(_FRAME),
}
ON_RESPONSE: Final[Mapping[Fault, Callable[[Lines], Lines]]] = {
    "ack_lost": _without(_ACK),
    "ack_tampered": _flipped(_ACK),
}
