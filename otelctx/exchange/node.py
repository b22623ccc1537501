"""This process as a party to exchanges: its keys and policies, the bases it holds, and the links it has.

Everything that is not configuration may be lost at any moment, at the price of one FULL frame. So a forked child starts
with none of it: a boot id of its own, since it holds its own bases, and no lock that another thread held at the fork.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

from otelctx.context.current import REGISTRY
from otelctx.context.keys import KeyRegistry
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Frame
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Receiver, Refuse, Run
from otelctx.exchange.links import Links
from otelctx.exchange.pending import Pending
from otelctx.policy.egress import Egress
from otelctx.policy.trust import FRAME, ClientTrust, Keyring
from otelctx.settings import Settings

__all__ = ["Client", "Node", "default_node", "set_default_node"]

_EVENTS: Final = 4096
_WIRES: Final = 512
_CLIENTS: Final = 4096
_HOUR: Final = 3600

# The client's address, if it is known, and whether it is believed without a MAC.
Client = tuple[str | None, bool]


class Node:
    """Safe to use from any thread. ``settings`` are by default those of the environment.

    Raises :class:`~otelctx.errors.ConfigError` for settings that mean nothing.
    """

    def __init__(
        self, settings: Settings | None = None, *, registry: KeyRegistry = REGISTRY, limits: Limits | None = None
    ) -> None:
        self.registry: Final = registry
        self.limits: Final = limits or Limits()
        self.settings = settings or Settings.load()
        self._forget()
        self.reload(self.settings)
        _nodes.add(self)

    def _forget(self) -> None:
        self._lock = Lock()
        self._boot_id = 0
        self._bases = BaseCache(self.limits)
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._clients: dict[tuple[str | None, str | None], Client] = {}
        self._wires: dict[tuple[object, ...], str] = {}
        self._receiver = Receiver(self._bases, on_unknown_base=self.settings.on_unknown_base)
        self.links = Links(self.limits, self.settings.baggage)
        self.pending = Pending()

    def reload(self, settings: Settings) -> None:
        """Take new settings without losing bases and links. Raises :class:`~otelctx.errors.ConfigError`."""
        keyring = Keyring.parse(settings.keys)
        trust = ClientTrust(settings.trusted_clients, settings.trusted_proxies)
        egress = Egress(settings.egress_allow)
        with self._lock:
            self.settings, self.keyring, self.trust, self.egress = settings, keyring, trust, egress
            self._receiver = Receiver(self._bases, on_unknown_base=settings.on_unknown_base)
            self._clients.clear()
            self._wires.clear()

    @property
    def boot_id(self) -> int:
        """32 random bits, drawn when first asked for: a preforked worker has another one than its siblings."""
        if self._boot_id == 0:
            with self._lock:
                self._boot_id = self._boot_id or secrets.randbits(32) or 1
        return self._boot_id

    # inbound

    def client(self, peer: str | None, forwarded: str | None) -> Client:
        """Who stands behind ``peer``, the address of the connection, with its ``X-Forwarded-For``."""
        key = (peer, forwarded)
        found = self._clients.get(key)
        if found is None:
            address = self.trust.resolve(peer, () if forwarded is None else (forwarded,))
            if len(self._clients) >= _CLIENTS:
                self._clients.clear()
            found = self._clients[key] = (address, self.trust.trusted(address))
        return found

    def receive(self, lines: Sequence[bytes | str], client: Client, now: float) -> Accepted | Refuse | Run | Ignored:
        """What the ``otelctx`` header ``lines`` come to. ``now`` is Unix time."""
        address, trusted = client
        keyring = self.keyring

        def verify(body: bytes, mac: bytes) -> str | None:
            return keyring.verify(FRAME, body, mac, now)

        with self._lock:
            receiver = self._receiver
            outcome = receiver.open(lines, client=address or "", trusted=trusted, verify=verify)
            return receiver.give_up(outcome) if isinstance(outcome, NeedBase) else outcome

    # outbound

    def wire(self, frame: Frame, now: float) -> str:
        """The header value of ``frame``, signed if there are keys. ``now`` is Unix time.

        The same frame is the same bytes for an hour, so it is made once.
        """
        key = (frame.kind, frame.root, frame.base, frame.table, int(now) // _HOUR)
        found = self._wires.get(key)
        if found is None:
            body = encode_frame(frame)
            found = to_header(body + self.keyring.sign(FRAME, body, now))
            if len(self._wires) >= _WIRES:
                self._wires.clear()
            self._wires[key] = found
        return found

    def first_time(self, event: int) -> bool:
        """Whether the ack with this event id has not been counted before. It is, from now on."""
        with self._lock:
            if event in self._seen:
                self._seen.move_to_end(event)
                return False
            self._seen[event] = None
            if len(self._seen) > _EVENTS:
                self._seen.popitem(last=False)
            return True


_nodes: Final[weakref.WeakSet[Node]] = weakref.WeakSet()
_default: Node | None = None
_default_lock = Lock()


def default_node() -> Node:
    """The node of this process, made from the environment when first asked for.

    Raises :class:`~otelctx.errors.ConfigError` naming the variable that is wrong.
    """
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Node()
    return _default


def set_default_node(node: Node | None) -> None:
    """Use ``node`` as this process's own; ``None`` makes the next :func:`default_node` read the environment again."""
    global _default
    _default = node


def _after_fork() -> None:
    global _default_lock
    _default_lock = Lock()
    for node in list(_nodes):
        node._forget()


os.register_at_fork(after_in_child=_after_fork)
