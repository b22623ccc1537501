"""Is telemetry arriving: the answer, by signal, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from otelctx.sdk.pipeline import Signal

__all__ = ["Check", "SignalCheck", "State"]

State = Literal["ok", "failed", "off"]


@dataclass(frozen=True, slots=True)
class SignalCheck:
    """One signal through one exporter. ``advice`` is what to do where it failed; ``dropped`` are items so far, by
    reason.
    """

    signal: Signal
    state: State
    detail: str
    exporter: str = ""
    endpoint: str = ""
    advice: str = ""
    last_error: str | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All but the signal and its state, for people."""
        where = " ".join(part for part in (self.exporter, self.endpoint) if part)
        parts = [f"{where}: {self.detail}" if where else self.detail]
        if self.advice:
            parts.append(self.advice)
        if self.dropped:
            counts = ", ".join(f"{count} ({reason})" for reason, count in sorted(self.dropped.items()))
            parts.append(f"dropped so far: {counts}")
        if self.last_error and self.last_error not in self.detail:
            parts.append(f"last error: {self.last_error}")
        return "; ".join(parts)

    def __str__(self) -> str:
        return f"{self.signal:<8}{self.state:<8}{self.text}"


@dataclass(frozen=True, slots=True)
class Check:
    """True if telemetry arrives; ``detail`` says in one sentence whether, ``str()`` all that is known by signal."""

    ok: bool
    detail: str
    signals: tuple[SignalCheck, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join([self.detail, *map(str, self.signals)])
