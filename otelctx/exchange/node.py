"""This process as a party to exchanges: its keys and policies, the bases it holds, and the links it has.

Everything that is not configuration may be lost at any moment, at the price of one FULL frame. So a forked child starts
with none of it: a boot id of its own, since it holds its own bases, and no lock that another thread held at the fork.
"""

from __future__ import annotations

import logging
import os
import secrets
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Final

from otelctx.context.current import REGISTRY
from otelctx.context.keys import KeyRegistry
from otelctx.context.state import State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, encode_ack, encode_frame, from_header, split_mac, to_header
from otelctx.delta.limits import MAX_ACK_CHARS, Limits
from otelctx.delta.messages import Ack, Frame, FrameKind
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Receiver, Refuse, Run, Verify
from otelctx.errors import ProtocolError
from otelctx.exchange.known import HOUR, SHORT, Client, Era, Known, keep
from otelctx.exchange.links import Links
from otelctx.exchange.pending import Pending
from otelctx.exchange.rotation import KeyFile
from otelctx.exchange.shared import SharedTier
from otelctx.policy.egress import Egress
from otelctx.policy.trust import ACK, FRAME, ClientTrust, Keyring
from otelctx.settings import Settings

__all__ = ["Client", "Node", "Received", "default_node", "set_default_node"]

_log = logging.getLogger(__name__)

_EVENTS: Final = 4096
# Characters of an address and of an X-Forwarded-For that are remembered: the sender chooses how many come, behind a
# server that believes such a header also those of the address.
_MAX_ADDRESS: Final = 256

Received = Accepted | Refuse | Run | Ignored


class Node:
    """Safe to use from any thread. ``settings`` are by default those of the environment; ``shared`` is where workers of
    one service find each other's bases. ``key_file`` is watched for new keys, if the settings name one.

    Raises :class:`~otelctx.errors.ConfigError` for settings that mean nothing.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        registry: KeyRegistry = REGISTRY,
        limits: Limits | None = None,
        shared: SharedTier | None = None,
    ) -> None:
        self.registry: Final = registry
        self.limits: Final = limits or Limits()
        self.settings = settings or Settings.load()
        self.shared: Final = shared
        self._forget()
        self.reload(self.settings)
        path = self.settings.keys_file
        self.key_file: Final = None if path is None else KeyFile(path, self._rotate)
        self._watch()
        _nodes.add(self)

    def _watch(self) -> None:
        if self.key_file is not None:
            self.key_file.start()

    def _forget(self) -> None:
        self._lock = Lock()
        self._boot_id = 0
        self._bases = BaseCache(self.limits)
        self._seen: OrderedDict[int, None] = OrderedDict()
        self.era = Era()
        self._receiver = Receiver(self._bases, on_unknown_base=self.settings.on_unknown_base)
        self.links = Links(self.limits, self.settings.baggage, w3c_only=self.settings.frames == "never")
        self.pending = Pending()
        if self.shared is not None:
            self.shared.forget()

    def reload(self, settings: Settings) -> None:
        """Take new settings without losing bases and links. Raises :class:`~otelctx.errors.ConfigError`."""
        keyring = Keyring.parse(settings.keys)
        trust = ClientTrust(settings.trusted_clients, settings.trusted_proxies)
        egress = Egress(settings.egress_allow)
        with self._lock:
            self.settings, self.keyring, self.trust, self.egress = settings, keyring, trust, egress
            self._receiver = Receiver(self._bases, on_unknown_base=settings.on_unknown_base)
            self.era = Era()  # after the above: see there

    def _rotate(self, keys: str) -> None:
        """Take the keys of the key file."""
        if keys == self.settings.keys:
            return
        self.reload(replace(self.settings, keys=keys))
        ids = self.keyring.ids
        _log.info("keys in use: %s; %d signs", ", ".join(map(str, ids)), ids[0])

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
        key, era = (peer, forwarded), self.era
        found = era.clients.get(key)
        if found is None:
            trust = self.trust
            address = trust.resolve(peer, () if forwarded is None else (forwarded,))
            found = (address, trust.trusted(address) and not trust.claimed(peer, forwarded))
            if len(peer or "") <= _MAX_ADDRESS and len(forwarded or "") <= _MAX_ADDRESS:
                keep(era.clients, key, found)
        return found

    def receive(
        self, lines: Sequence[bytes | str], client: Client, now: float, *, may_wait: bool = False
    ) -> Received | NeedBase:
        """What the ``otelctx`` header ``lines`` come to. ``now`` is Unix time.

        ``NeedBase`` only if the caller ``may_wait`` and there is a shared tier to ask: :meth:`resume` goes on.
        """
        address, trusted = client
        era = self.era
        with self._lock:
            receiver = self._receiver
            read = receiver.read(lines, trusted=trusted, verify=self._verify(now))
            if isinstance(read, Ignored):
                return read
            outcome = receiver.accept(read, client=address or "")
            if isinstance(outcome, Accepted):
                if outcome.signed and outcome.kind is FrameKind.REF:
                    self._learn(era, lines[0], outcome, now)
            elif isinstance(outcome, NeedBase) and not (may_wait and self.shared is not None):
                return receiver.give_up(outcome)
            return outcome

    def _learn(self, era: Era, line: bytes | str, accepted: Accepted, now: float) -> None:
        """The same line comes again with each request of an unchanged session."""
        base = self._bases.base(accepted.domain, accepted.state.root)
        if base is not None and len(line) <= SHORT:
            era.learn(line, Known(accepted, base, now), self.limits.base_bytes // 4)

    def known(self, line: bytes | str, now: float) -> Known | None:
        """What is known of this line, if it would be accepted now, whoever sends it. ``now`` is Unix time."""
        known = self.era.known.get(line)
        if known is None or known.fresh(now):
            return known
        if not known.holds(now):
            return None
        with self._lock:
            if not known.base.kept:
                return None
            self._bases.use(known.base)
        known.touch(now)
        return known

    def resume(self, need: NeedBase, base: State | None, client: str | None) -> Received:
        """Go on with what the shared tier has, or ``None``. ``client`` is the address behind the connection."""
        with self._lock:
            return self._receiver.resume(need, base, client=client or "")

    def _verify(self, now: float) -> Verify:
        keyring = self.keyring
        return lambda body, mac: keyring.verify(FRAME, body, mac, now)

    def answer(self, ack: Ack, signed: bool, now: float) -> str:
        """The header value of ``ack``, signed if the frame was. ``now`` is Unix time."""
        if ack.ups or ack.window is not None or ack.moved:
            return self._answer(ack, signed, now)
        key = (ack.kind, ack.root, ack.held, ack.reason, ack.final, signed, int(now) // HOUR)
        wires = self.era.wires
        return wires.get(key) or keep(wires, key, self._answer(ack, signed, now))

    def _answer(self, ack: Ack, signed: bool, now: float) -> str:
        body = encode_ack(ack, signed=signed)
        return to_header(body + self.keyring.sign(ACK, body, now) if signed else body)

    # outbound

    def wire(self, frame: Frame, now: float) -> str:
        """The header value of ``frame``, signed if there are keys. ``now`` is Unix time.

        The same frame is the same bytes for an hour, so it is made once.
        """
        key = (frame.kind, frame.root, frame.base, frame.table, int(now) // HOUR)
        wires = self.era.wires
        found = wires.get(key)
        if found is None:
            body = encode_frame(frame)
            found = to_header(body + self.keyring.sign(FRAME, body, now))
            if len(found) <= SHORT:
                keep(wires, key, found)
        return found

    def read_ack(self, lines: Sequence[bytes | str], now: float) -> Ack | None:
        """The ack in the ``otelctx-ack`` header ``lines``, if it is one, and proven if there are keys.

        ``now`` is Unix time.
        """
        if len(lines) != 1 or len(lines[0]) > MAX_ACK_CHARS:
            return None
        key = (lines[0], int(now) // HOUR)
        acks = self.era.acks
        ack = acks.get(key)
        if ack is None:
            ack = self._proven(lines[0], now)
            if ack is not None and not ack.ups and ack.window is None:
                keep(acks, key, ack)
        return ack

    def _proven(self, line: bytes | str, now: float) -> Ack | None:
        keyring = self.keyring
        try:
            body, mac = split_mac(from_header(line))
            if (mac is not None) is not bool(keyring):
                return None
            if mac is not None and keyring.verify(ACK, body, mac, now) is None:
                return None
            return decode_ack(body)
        except ProtocolError:
            return None

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
        node._watch()  # the thread was the parent's


os.register_at_fork(after_in_child=_after_fork)
