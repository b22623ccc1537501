"""What the frames that went by said: an observer that follows a hop's states by their roots."""

from __future__ import annotations

from dataclasses import dataclass

from otelctx.context.state import State
from otelctx.delta import codec
from otelctx.delta.messages import Ack, Frame, FrameKind

__all__ = ["Follower", "Seen", "read_ack"]


@dataclass(frozen=True, slots=True)
class Seen:
    """``kind`` as telemetry spells it; ``state`` is ``None`` if the observer missed its base."""

    kind: str
    state: State | None
    signed: bool


class Follower:
    """Knows of one hop what its receiver knows, from nothing but the header values in their order."""

    def __init__(self) -> None:
        self._states: dict[bytes, State] = {}

    def follow(self, value: str) -> Seen:
        """Raises :class:`~otelctx.errors.ProtocolError` if ``value`` is no frame."""
        body, mac = codec.split_mac(codec.from_header(value))
        frame = codec.decode_frame(body)
        state = self._state(frame)
        if state is not None and state.root == frame.root:
            self._states[state.root] = state
        else:
            state = None
        return Seen(frame.kind.name.lower(), state, mac is not None)

    def _state(self, frame: Frame) -> State | None:
        if frame.kind is FrameKind.FULL:
            return State({e.name: e for e in frame.put})
        if frame.kind is FrameKind.REF:
            return self._states.get(frame.root)
        base = next((s for root, s in self._states.items() if root.startswith(frame.base)), None)
        return None if base is None else base.apply(frame.put, frame.delete)


def read_ack(value: str) -> Ack:
    """The ack in a header value. Raises :class:`~otelctx.errors.ProtocolError` if there is none."""
    return codec.decode_ack(codec.split_mac(codec.from_header(value))[0])
