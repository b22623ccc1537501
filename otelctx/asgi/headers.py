"""The request's headers, read once, and the trace context in them.

Header bytes are latin-1, as HTTP has it, so any byte is survived. Values are decoded only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter

from otelctx.asgi.types import Headers, Message
from otelctx.exchange import w3c
from otelctx.exchange.baggage import readable
from otelctx.semconv import HEADER
from otelctx.telemetry.events import SPAN_KEY

__all__ = ["FORWARDED", "TRACEPARENT", "Inbound", "extract", "passable", "remote", "without_ours"]

# Ours are hop-by-hop: the propagator and the application never see them.
_OURS: Final = HEADER.encode()
_BAGGAGE: Final = b"baggage"
_TRACESTATE: Final = b"tracestate"
TRACEPARENT: Final = b"traceparent"
FORWARDED: Final = b"x-forwarded-for"
_TELLING: Final = frozenset({_BAGGAGE, _TRACESTATE, TRACEPARENT, FORWARDED})
_MORE: Final = (_BAGGAGE, _TRACESTATE)
_NONE: Final[Mapping[bytes, list[bytes]]] = {}


# Names that have come in lower case, none of them ours: looked at once, and not with every request. Who fills it with
# others makes reading headers a little slower, and nothing else.
_usual: Final[set[bytes]] = set()
# Those of them that say nothing to us either.
passable: Final[set[bytes]] = set()
_answered: Final[set[bytes]] = set()  # those that applications have answered with
_MAX_USUAL: Final = 512
_MAX_NAMES: Final = 1024  # bytes of all names of a request


class Inbound:
    """A request's headers. ``first`` has the first line of each name, in lower case, and ``get`` looks there; ``ours``:
    some ``otelctx*`` line came.
    """

    __slots__ = ("_repeated", "first", "get", "ours", "raw")

    def __init__(self, raw: Headers) -> None:
        """Looks through ``raw`` once."""
        self.raw = raw
        first = dict(raw)
        if len(first) == len(raw) and _usual.issuperset(first):
            self._repeated, self.ours = _NONE, False
        else:
            first, self._repeated, self.ours = _read(raw, first)
        self.first: dict[bytes, bytes] = first
        self.get = first.get

    def lines(self, name: bytes) -> list[bytes]:
        found = self._repeated.get(name)
        if found is not None:
            return found
        value = self.first.get(name)
        return [] if value is None else [value]

    def joined(self, name: bytes) -> str | None:
        """All lines of a list-valued field as one, as RFC 9110 has it."""
        if name not in self.first:
            return None
        return b",".join(self.lines(name)).decode("latin-1")

    def replace_baggage(self, value: str | None) -> None:
        """What the propagator shall see of the baggage."""
        self._repeated = {name: lines for name, lines in self._repeated.items() if name != _BAGGAGE}
        if not value:
            self.first.pop(_BAGGAGE, None)
        else:
            self.first[_BAGGAGE] = value.encode("latin-1", "replace")

    def names(self) -> list[bytes]:
        return [name for name in self.first if not name.startswith(_OURS)]

    def rest(self) -> Headers:
        """The headers without ours."""
        return [line for line in self.raw if not line[0].lower().startswith(_OURS)]


def _read(raw: Headers, first: dict[bytes, bytes]) -> tuple[dict[bytes, bytes], Mapping[bytes, list[bytes]], bool]:
    """``first``, ``repeated`` and ``ours`` of headers that are not just the usual ones; ``first`` is a dict of them."""
    if len(first) == len(raw):
        names = b"\n".join(first)
        if names.islower():
            ours = _OURS in names and any(name.startswith(_OURS) for name in first)
            if not ours and len(names) <= _MAX_NAMES and len(_usual) < _MAX_USUAL:
                _usual.update(first)
                passable.update(first.keys() - _TELLING)
            return first, _NONE, ours
    # Names that repeat, or a server that doesn't lower them.
    first = {}
    repeated: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        name = name.lower()
        if name in first:
            repeated.setdefault(name, [first[name]]).append(value)
        else:
            first[name] = value
    if TRACEPARENT in repeated:
        # Two parents contradict each other, and none is believed: the trace begins anew, as W3C's test suite has it.
        del repeated[TRACEPARENT], first[TRACEPARENT]
    return first, repeated, any(name.startswith(_OURS) for name in first)


def without_ours(message: Message) -> Message:
    """A head or trailers of a response, without lines of ours that the application has copied from somewhere. What has
    none is given back as it is; ``headers`` is a list in any case."""
    given = message.get("headers")
    headers: Headers = given if type(given) is list else list(given or ())
    for name, _ in headers:
        if name not in _answered:
            if name[: len(_OURS)].lower() == _OURS:
                headers = [line for line in headers if line[0][: len(_OURS)].lower() != _OURS]
                break
            if len(_answered) < _MAX_USUAL and len(name) <= _MAX_NAMES:
                _answered.add(name)
    return message if headers is given else {**message, "headers": headers}


class _Getter(Getter[Inbound]):
    def get(self, carrier: Inbound, key: str) -> list[str] | None:
        name = key.lower().encode("latin-1", "replace")
        if name == _BAGGAGE:
            # The propagator looks at the first value only.
            joined = carrier.joined(_BAGGAGE)
            line = None if joined is None else readable(joined)
            return None if line is None else [line]
        if name.startswith(_OURS):
            return None
        return [value.decode("latin-1") for value in carrier.lines(name)] or None

    def keys(self, carrier: Inbound) -> list[str]:
        return [name.decode("latin-1") for name in carrier.names()]


_GETTER: Final = _Getter()


def extract(inbound: Inbound) -> Context:
    """What the global propagator makes of it, from an empty Context. Never raises."""
    known, first = w3c.known(), inbound.first
    if known.is_w3c and _BAGGAGE not in first and _TRACESTATE not in first:
        parent = first.get(TRACEPARENT)
        context = Context() if parent is None else w3c.parse(parent)
        if context is not None:
            return context
    elif known.fields is not None and known.fields.isdisjoint(first):
        return Context()
    return w3c.extract(inbound, _GETTER)


def remote(inbound: Inbound) -> Context:
    """:func:`extract` for a request of which nothing is recorded."""
    parent = inbound.first.get(TRACEPARENT)
    if parent is not None and w3c.known().is_w3c and inbound.first.keys().isdisjoint(_MORE):
        return Context({SPAN_KEY: w3c.Remote(parent)})
    return extract(inbound)
