"""Metadata: what a call brings in, and what goes out with one.

Names are lower case, and values text, except under ``-bin``, where they are bytes that gRPC encodes and decodes. Text
in such a place would break the whole block of headers for other implementations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter

from otelctx.context.keys import KeyRegistry
from otelctx.delta.codec import from_header, to_header
from otelctx.delta.limits import MAX_FRAME_BYTES, MAX_HEADER_CHARS
from otelctx.exchange import w3c
from otelctx.exchange.baggage import baggage_line, readable
from otelctx.exchange.client import ClientExchange
from otelctx.semconv import ACK_METADATA, FRAME_METADATA, HEADER

__all__ = ["MAX_BYTES", "Inbound", "Metadata", "ack_lines", "extract", "foreign", "outgoing", "weigh"]

Metadata = list[tuple[str, str | bytes]]

# gRPC refuses some calls above 8 KiB of metadata and all above 16; an entry counts 32 bytes beside its name and value.
MAX_BYTES: Final = 8192
_ENTRY: Final = 32
_BAGGAGE: Final = "baggage"
_TRACEPARENT: Final = "traceparent"
_TOO_LONG: Final = b":" * (MAX_HEADER_CHARS + 1)  # stands for any value that is not even looked at


class Inbound:
    """The metadata of one call, by name."""

    __slots__ = ("_values",)

    def __init__(self, metadata: Iterable[Any] | None) -> None:
        self._values: dict[str, list[str | bytes]] = {}
        for key, value in metadata or ():
            self._values.setdefault(key.lower(), []).append(value)

    def text(self, name: str) -> list[str]:
        return [value for value in self._values.get(name, ()) if isinstance(value, str)]

    def joined(self, name: str) -> str | None:
        """All values of a list-valued field as one. Taking one of them would lose the rest."""
        found = self.text(name)
        return ",".join(found) if found else None

    def lines(self, name: str) -> list[bytes | str]:
        """The values under a ``-bin`` name, each as the header line that would carry it over HTTP."""
        return [_line(value) for value in self._values.get(name, ())]

    def replace_baggage(self, value: str | None) -> None:
        """What the propagator shall see of the baggage."""
        self._values.pop(_BAGGAGE, None)
        if value:
            self._values[_BAGGAGE] = [value]

    def names(self) -> list[str]:
        return [name for name in self._values if not name.startswith(HEADER)]


def _line(value: str | bytes) -> bytes | str:
    if isinstance(value, str) or len(value) > MAX_FRAME_BYTES:
        return _TOO_LONG
    return to_header(value)


def ack_lines(*blocks: Iterable[Any] | None) -> list[bytes | str]:
    """The acks in the first of ``blocks`` that has any: the trailing metadata come first, the initial ones repeat
    them."""
    for block in blocks:
        found = [_line(value) for key, value in block or () if key.lower() == ACK_METADATA]
        if found:
            return found
    return []


def foreign(metadata: Iterable[Any] | None) -> Metadata:
    """``metadata`` without ours, which are for one hop and end where they are read."""
    return [item for item in metadata or () if not item[0].lower().startswith(HEADER)]


class _Getter(Getter[Inbound]):
    def get(self, carrier: Inbound, key: str) -> list[str] | None:
        name = key.lower()
        if name.startswith(HEADER):
            return None
        if name == _BAGGAGE:
            joined = carrier.joined(_BAGGAGE)
            line = None if joined is None else readable(joined)
            return None if line is None else [line]
        found = carrier.text(name)
        if len(found) > 1 and name == _TRACEPARENT:
            return None  # two parents contradict each other, and none is believed
        return found or None

    def keys(self, carrier: Inbound) -> list[str]:
        return carrier.names()


_GETTER: Final = _Getter()


def extract(inbound: Inbound) -> Context:
    """What the global propagator makes of it, from an empty Context. Never raises."""
    return w3c.extract(inbound, _GETTER)


def outgoing(
    present: Iterable[Any] | None, exchange: ClientExchange, context: Context, registry: KeyRegistry
) -> tuple[Metadata, int]:
    """``present`` as it goes out in a call, and the size of the frame in it: 0 if there was none or no room.

    Whatever ``otelctx*`` an inbound call has left there is removed first. ``context`` has the CLIENT span.
    """
    carrier: dict[str, str] = {}
    w3c.inject(carrier, context)
    injected = {name.lower(): value for name, value in carrier.items() if not name.lower().startswith(HEADER)}
    lines: Metadata = []
    baggage: list[str] = []
    for key, value in present or ():
        name = key.lower()
        if name == _BAGGAGE and isinstance(value, str):
            baggage.append(value)
        elif not name.startswith(HEADER) and name not in injected:
            lines.append((key, value))
    line = baggage_line(injected.pop(_BAGGAGE, None), baggage, exchange.members, registry)
    if line is not None:
        injected[_BAGGAGE] = line
    # Another character would make gRPC refuse the whole call.
    lines += [(name, value) for name, value in injected.items() if value.isascii() and value.isprintable()]
    for _, text in exchange.headers:
        frame = from_header(text)
        if weigh(lines) + weigh([(FRAME_METADATA, frame)]) <= MAX_BYTES:
            return [*lines, (FRAME_METADATA, frame)], len(frame)
    return lines, 0


def weigh(metadata: Sequence[Any]) -> int:
    """Bytes of ``metadata``, as the limits of HTTP/2 count them; bytes in base64, as some implementations do."""
    return sum(
        _ENTRY + len(key) + (len(value) if isinstance(value, str) else (len(value) + 2) // 3 * 4)
        for key, value in metadata
    )
