"""The header value that answers a frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelctx.context.scope import UpValue
from otelctx.context.state import Entry, Window, entry
from otelctx.delta.codec import decode_ack, encode_ack
from otelctx.delta.limits import BASE_BYTES, MAX_ACK_CHARS
from otelctx.delta.messages import Ack, AckKind, Held
from otelctx.delta.receiver import Accepted, Refuse, Run
from otelctx.exchange.node import Node
from otelctx.exchange.pending import Batch
from otelctx.semconv import SESSION_TURN

__all__ = ["nack", "write_ack"]

# Up entries of so many bytes certainly fit, beside the fixed fields, a window and a MAC.
_CERTAIN: Final = MAX_ACK_CHARS // 2 - 64


def write_ack(
    node: Node, accepted: Accepted, batch: Batch, window: Window | None, final: bool, now: float
) -> tuple[str, Mapping[str, UpValue]]:
    """The ACK that carries ``batch`` and ``window``, and the up values for which there was no room in it.

    ``now`` is Unix time.
    """
    entries = _ordered(batch.ups)
    ack = Ack(
        AckKind.ACK,
        accepted.state.root[:BASE_BYTES],
        held=_held(node, accepted),
        boot_id=node.boot_id,
        final=final,
        event=batch.event,
        ups=entries,
        window=window,
    )
    left: Mapping[str, UpValue] = {}
    if entries and sum(item.size for item in entries) > _CERTAIN:
        carried = len(decode_ack(encode_ack(ack, signed=accepted.signed)).ups)
        left = {item.name: batch.ups[item.name] for item in entries[carried:]}
    return node.answer(ack, accepted.signed, now), left


def _held(node: Node, accepted: Accepted) -> Held:
    """Where the state is kept as the ack goes out: a write may have been confirmed since the request came in."""
    tier = node.shared
    if tier is not None and accepted.held is not Held.NONE and tier.shared(accepted.domain, accepted.state.root):
        return Held.SHARED
    return accepted.held


def nack(node: Node, received: Refuse | Run, now: float) -> str:
    """The NACK for a frame that was read but not accepted. ``now`` is Unix time."""
    ack = Ack(AckKind.NACK, received.root[:BASE_BYTES], boot_id=node.boot_id, reason=received.reason, final=True)
    return node.answer(ack, received.signed, now)


def _ordered(ups: Mapping[str, UpValue]) -> tuple[Entry, ...]:
    """The most important first, since those at the end go when there is no room: turn, sums, then by name."""
    if not ups:
        return ()
    names = sorted(ups, key=lambda name: (name != SESSION_TURN, ups[name].rule != "sum", name))
    return tuple([entry(name, ups[name].value) for name in names])
