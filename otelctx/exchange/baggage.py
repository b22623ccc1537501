"""The ``baggage`` header as a propagator shall see it, and as it goes out: other people's members as they came, and
ours where they may go.

OpenTelemetry's propagator for Python codes values as a form does: it reads ``+`` as a blank and writes a blank as
``+``, which another language takes for a plus sign. W3C's rule is percent-encoding alone, so it is translated both ways
here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from otelctx.context.keys import KeyRegistry
from otelctx.delta.baggage import is_foreign
from otelctx.delta.limits import MAX_BAGGAGE_BYTES, MAX_BAGGAGE_MEMBERS

__all__ = ["baggage_line", "readable"]

_MAX_READABLE: Final = 180  # members, and characters of one, over which the propagator complains
_MAX_MEMBER: Final = 4096
_KEY: Final = r"[!#-'*+\-.0-9A-Z^-z|~]+"
_VALUE: Final = r"[!#-+\--:<-\[\]-~]*"
_MEMBER: Final = re.compile(rf"{_KEY}={_VALUE}(?:;{_KEY}(?:={_VALUE})?)*")


def readable(line: str) -> str | None:
    """``line`` for OpenTelemetry's propagator: the members that it reads, coded so that it reads what they mean.

    Of any other member it would write all the text to the log, once for each that a stranger cares to send, and blanks
    between members cost it the square of their number. ``None`` if nothing is left, or over 8192 bytes.
    """
    if len(line) > MAX_BAGGAGE_BYTES:
        return None
    members: list[str] = []
    for member in line.split(","):
        parts = [part.strip(" \t") for part in re.split("([=;])", member)]
        text = "".join(parts)
        if len(text) <= _MAX_MEMBER and _MEMBER.fullmatch(text):
            members.append(text.replace("+", "%2B"))
            if len(members) == _MAX_READABLE:
                break
    joined = ",".join(members)
    return joined if joined and len(joined) <= MAX_BAGGAGE_BYTES else None


def baggage_line(
    injected: str | None, present: Sequence[str], ours: Mapping[str, str], registry: KeyRegistry
) -> str | None:
    """Join what the propagator ``injected``, what the application has ``present`` on the request, and ``ours``.

    A member of ours that is there already goes: it came from an inbound request, and where it may not go, or the frame
    says it, it would be a leak or a contradiction. Ours are left out, never the application's, over 8192 bytes or 64
    members. ``None``: no header.
    """
    if not present and not ours and injected is None:
        return None
    known = dict(_foreign((injected.replace("+", "%20"),) if injected else (), registry))
    texts: list[str] = []
    for name, text in _foreign(present, registry):
        if name not in known:
            texts.append(text)
        elif _value(text) == _value(known[name]):
            known[name] = text  # unchanged, but for properties that the propagator has made part of the value
    texts += known.values()
    room = MAX_BAGGAGE_BYTES - sum(len(text) + 1 for text in texts)
    for name, value in ours.items():
        room -= len(name) + len(value) + 2
        if room < 0 or len(texts) >= MAX_BAGGAGE_MEMBERS:
            break
        texts.append(f"{name}={value}")
    return ",".join(texts) or None


def _value(text: str) -> str:
    return unquote(text.partition("=")[2].strip())


def _foreign(lines: Sequence[str], registry: KeyRegistry) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for member in ",".join(lines).split(","):
        text = member.strip()
        name = text.partition("=")[0].strip()
        if text and is_foreign(name, registry):
            found.append((name, text))
    return found
