"""What acks bring back, and the scopes that it belongs to."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final
from weakref import ref

from otelctx.context.scope import Scope, UpValue
from otelctx.delta.limits import BASE_BYTES
from otelctx.delta.messages import Ack
from otelctx.exchange.node import Node

__all__ = ["Askers", "take_over"]

_REMEMBERED: Final = 1024


def take_over(node: Node, scope: Scope, ack: Ack, *, session: bool) -> bool:
    """Join into ``scope`` what ``ack`` carries; ``session``: the frame was of one, so that a window can be its own.

    Returns ``False`` if something came too late for that, and is lost.
    """
    if scope.ended:
        return not (ack.ups or ack.window)
    if ack.window is not None and session:
        scope.report(ack.window)
    ups = _believed(node, ack)
    return not ups or scope.merge_ups(ups)


def _believed(node: Node, ack: Ack) -> dict[str, UpValue]:
    """Of the up values those that are declared here as such. Nothing of an ack that has been counted before."""
    if not ack.ups or (ack.event and not node.first_time(ack.event)):
        return {}
    ups: dict[str, UpValue] = {}
    for item in ack.ups:
        spec = node.registry.get(item.name)
        if spec is None or spec.rule is None or spec.kind is not item.kind:
            continue
        if spec.rule != "sum" or ack.event:  # a sum without an event id could be counted twice
            ups[item.name] = UpValue(spec.rule, item.value)
    return ups


class Askers:
    """The scopes that frames were sent from, by the part of the frames' roots that acks echo: of those with the same
    root the last, and at most 1024. None is kept alive by this. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._scopes: OrderedDict[bytes, tuple[ref[Scope], bool]] = OrderedDict()

    def remember(self, root: bytes, scope: Scope, *, session: bool) -> None:
        """A frame with ``root`` goes out from ``scope``; ``session``: it is of one."""
        key = root[:BASE_BYTES]
        with self._lock:
            self._scopes[key] = (ref(scope), session)
            self._scopes.move_to_end(key)
            if len(self._scopes) > _REMEMBERED:
                self._scopes.popitem(last=False)

    def hear(self, node: Node, ack: Ack) -> bool | None:
        """Hand on what ``ack`` carries: whether it came in time; ``None`` if it answers nothing that was sent."""
        with self._lock:
            found = self._scopes.get(ack.root)
        if found is None:
            return None
        asker, session = found
        scope = asker()
        return False if scope is None else take_over(node, scope, ack, session=session)
