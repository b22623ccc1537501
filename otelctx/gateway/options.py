"""What a gateway was told."""

from __future__ import annotations

from dataclasses import dataclass, field

from otelctx.gateway.head import Limits

__all__ = ["Options", "Timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, ``None`` for no end: to connect; until the first byte of a response; between two pieces of a body,
    either way; for the whole of a request.
    """

    connect: float | None = 5.0
    first_byte: float | None = 300.0
    idle: float | None = 300.0
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """``load_bound`` as in :class:`~otelctx.gateway.upstreams.Upstreams`; ``health_path`` empty for no active checks,
    which come every ``health_interval`` seconds. ``max_message``: bytes of a websocket message.
    """

    load_bound: float = 1.25
    health_path: str = "/readyz"
    health_interval: float = 5.0
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    max_message: int = 16 * 2**20
