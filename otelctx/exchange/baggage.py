"""The one ``baggage`` header of an outgoing request: other people's members to the byte, and ours where they may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otelctx.context.keys import KeyRegistry
from otelctx.delta.limits import MAX_BAGGAGE_BYTES, MAX_BAGGAGE_MEMBERS
from otelctx.semconv import INCOMPLETE

__all__ = ["baggage_line"]


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
    members = _foreign((injected,) if injected else (), registry)
    names = {name for name, _ in members}
    members = [m for m in _foreign(present, registry) if m[0] not in names] + members
    texts = [text for _, text in members]
    room = MAX_BAGGAGE_BYTES - sum(len(text) + 1 for text in texts)
    for name, value in ours.items():
        room -= len(name) + len(value) + 2
        if room < 0 or len(texts) >= MAX_BAGGAGE_MEMBERS:
            break
        texts.append(f"{name}={value}")
    return ",".join(texts) or None


def _foreign(lines: Sequence[str], registry: KeyRegistry) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for member in ",".join(lines).split(","):
        text = member.strip()
        name = text.partition("=")[0].strip()
        if not text or name == INCOMPLETE:
            continue
        spec = registry.get(name)
        if spec is None or spec.visibility != "public":
            found.append((name, text))
    return found
