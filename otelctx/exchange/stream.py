"""``StreamLink``: context for applications that own an envelope on an ordered channel: a websocket, a pipe, one
partition of a queue with one reader.

Both ends put the bytes of :meth:`StreamLink.encode` into each message's envelope and hand them to ``decode`` on the
other side. On a channel that keeps its order no acks are needed: what has been sent has arrived, or the frames that
build on it say so, since each names its base and its root. A base that is missing costs the receiver the context of
those messages, never a wrong one: they are marked incomplete. On a duplex channel the receiver then asks for a FULL
frame; on a one-way channel each session has one at least every 64 of its messages.

What the handling of a message records for its sender, up values and the session's window, goes back in an ack of its
own, if there is something to tell: into the scope that the message was sent from.

    link = StreamLink(node, trusted=accepted)            # one for each connection, at each end

    # sending: one after the other, in the order of their frames; what could not be sent is not built upon
    await link.asend(lambda context: socket.send(envelope(context, body)))

    # receiving
    received = link.decode(message.context)
    if received.reply is not None:                       # a message without a body, to the other end
        await socket.send(envelope(received.reply, None))
    if not received.control:
        with received.entered():                         # ContextKey.get(), and calls made from here, see the sender's
            await handle(message.body)                   # UpKey.record()
        told = link.answer(received)
        if told is not None:                             # as a reply
            await socket.send(envelope(told, None))

Trace context is not in it: put ``traceparent`` beside it, where each message shall have its own span. A queue whose
messages may be read by anyone is no such channel: there only frames that stand alone are of use, which the propagator
writes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import time
from typing import Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otelctx.context.current import attach, current_binding, detach
from otelctx.context.scope import Scope
from otelctx.context.state import State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, encode_ack, encode_frame, from_header, split_mac, to_header
from otelctx.delta.held import HeldBases
from otelctx.delta.limits import BASE_BYTES, MAX_FRAME_BYTES, Limits
from otelctx.delta.messages import Ack, AckKind, Frame, FrameKind, Held, NackReason, delta, full, ref, size
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Receiver, Run
from otelctx.errors import ConfigError, ContextLimitExceeded, ProtocolError
from otelctx.exchange.node import Node, default_node
from otelctx.exchange.server import ServerExchange
from otelctx.exchange.uptake import Askers
from otelctx.policy.egress import view
from otelctx.policy.trust import ACK, FRAME
from otelctx.semconv import EVENT_CONTEXT_PROCEEDED, EVENT_CONTEXT_REJECTED, REASON, TABLE_REVISION
from otelctx.telemetry import events
from otelctx.telemetry.http import count_frame
from otelctx.telemetry.instruments import instruments

__all__ = ["Received", "StreamLink"]

T = TypeVar("T")

_FULL_EVERY: Final = 64
_ASK_EVERY: Final = 64  # unreadable messages, until a FULL is asked for again
_SESSIONS: Final = 512  # whose messages are counted on a one-way channel
_CONTROL: Final = b"\0"  # no protobuf message begins with it
# The receiver keeps whole states and the sender their leaves, a sixteenth of that at the least: so what the sender
# builds on is still there, as long as both use what they have in the same order.
_LIMITS: Final = Limits(base_bytes=2**20, held_bytes=2**16, base_ttl=float("inf"))
_KINDS: Final = {kind: kind.name.lower() for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Received:
    """What one message has brought.

    - ``scope``: the sender's context; ``scope.source`` and ``scope.incomplete`` say how much of it
    - ``control``: this is no message of the application, but one end of the link speaking to the other
    - ``reply``: bytes to be sent back in an envelope without a body
    - ``reason``: why there is no context although some was sent, a short word
    """

    scope: Scope
    control: bool = False
    reply: bytes | None = None
    reason: str | None = None
    _exchange: ServerExchange | None = field(default=None, repr=False, compare=False)

    @contextmanager
    def entered(self, context: Context | None = None) -> Iterator[Scope]:
        """Handle the message in here: its scope is the current one, in ``context``, by default the current one."""
        tokens = attach(otel_context.get_current() if context is None else context, self.scope)
        try:
            yield self.scope
        finally:
            detach(tokens)
            if self._exchange is None:
                self.scope.end()
            else:  # what no ack has carried by now waits for the session's next one
                self._exchange.close()


class StreamLink:
    """One end of one connection. Safe to use from any thread; each direction has states of its own.

    - ``duplex``: the other end can send as well, and hands on what :attr:`Received.reply` asks for
    - ``trusted``: unsigned frames are believed, because this connection's handshake carried a frame that was accepted
      (its ``ServerExchange.outcome``), or the application has proven by other means who is there. Whatever bears a
      MAC needs a valid one
    - ``signed``: sign what is sent, by default if the node has keys; 19 bytes a message
    - ``host`` and ``port`` of the other end are what the egress policy is asked about; without a ``host``, to make the
      link is to allow it

    Raises :class:`~otelctx.errors.ConfigError` if it shall sign and has no key.

    Memory is bounded: about 1 MiB for what the other end has sent; for what it has been sent 64 KiB, and on a one-way
    channel up to 512 session ids.
    """

    def __init__(
        self,
        node: Node | None = None,
        *,
        duplex: bool = True,
        trusted: bool = False,
        signed: bool | None = None,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self._node = node or default_node()
        self._duplex = duplex
        self._trusted = trusted
        self._signed = bool(self._node.keyring) if signed is None else signed
        if self._signed and not self._node.keyring:
            raise ConfigError("a signed link needs a key: set OTELCTX_KEYS")
        self._allowed = host is None or self._node.egress.allows(host, port)
        self._lock = Lock()
        self._order = Lock()
        self._async_order = asyncio.Lock()
        self.reset()

    def reset(self) -> None:
        """Start anew, as a new connection does: both ends must."""
        with self._lock:
            self._bases = BaseCache(_LIMITS)
            self._receiver = Receiver(self._bases, on_unknown_base="proceed")
            self._unreadable = 0
            self._forget()
            self._askers = Askers()
            self._full_only = False
            self._table = TABLE_REVISION

    def _forget(self) -> None:
        """Build on nothing that has been sent so far."""
        self._held = HeldBases(_LIMITS)
        self._since_full: OrderedDict[str, int] = OrderedDict()

    # sending

    def send(self, callback: Callable[[bytes], T], context: Context | None = None) -> T:
        """Call ``callback`` with the bytes for one message, which it sends; one call at a time. Returns what it
        returns. If it raises, nothing later builds on that message. Use one of ``send`` and ``asend`` for a link."""
        with self._order:
            data = self.encode(context)
            try:
                return callback(data)
            except BaseException:
                self.unsent()
                raise

    async def asend(self, callback: Callable[[bytes], Awaitable[T]], context: Context | None = None) -> T:
        """As :meth:`send`, for a coroutine function. A cancellation counts as not sent."""
        async with self._async_order:
            data = self.encode(context)
            try:
                return await callback(data)
            except BaseException:
                self.unsent()
                raise

    def encode(self, context: Context | None = None) -> bytes:
        """The bytes for the next message: what is current in ``context``; empty if that is nothing, or may not go to
        this host. Never raises.

        For callers that see to the order themselves: messages must be sent in the order of their encoding, and
        :meth:`unsent` must be called for one that was not.
        """
        bound = current_binding(context)
        if not self._allowed or bound is None:
            return b""
        try:
            state = view(bound.snapshot(), self._node.registry)
        except ContextLimitExceeded:  # the overlays of this branch do not fit; part of a context is worse than none
            return b""
        if not state:
            return b""
        with self._lock:
            frame = self._frame(state)
            self._sent(state, frame)
            if self._duplex:
                self._askers.remember(state.root, bound.scope, session=state.session_id is not None)
        body = encode_frame(frame)
        data = body + self._node.keyring.sign(FRAME, body, time()) if self._signed else body
        count_frame(None, _KINDS[frame.kind], "sent", len(data))
        return data

    def unsent(self) -> None:
        """The message encoded last was not sent: the next one of each session stands alone."""
        with self._lock:
            self._forget()

    def _frame(self, state: State) -> Frame:
        session = state.session_id
        whole = full(state, self._table)
        if session is None or self._full_only:
            return whole
        if not self._duplex and self._since_full.get(session, _FULL_EVERY) >= _FULL_EVERY - 1:
            return whole
        base = self._held.best(state, shared_only=False, now=0.0)
        if base is None:
            return whole
        if base.root == state.root:
            return ref(state, self._table)
        change = delta(base, state, self._table)
        cost = size(change.put) + sum(2 + len(name) for name in change.delete) + 2 + BASE_BYTES
        return change if cost < size(whole.put) else whole

    def _sent(self, state: State, frame: Frame) -> None:
        session = state.session_id
        if session is None:
            return
        self._held.keep(state, Held.PROCESS, 0.0)
        if self._duplex:
            return
        self._since_full[session] = 0 if frame.kind is FrameKind.FULL else self._since_full[session] + 1
        self._since_full.move_to_end(session)
        if len(self._since_full) > _SESSIONS:
            self._since_full.popitem(last=False)  # its next message is FULL

    # receiving

    def decode(self, data: bytes | bytearray | memoryview | str) -> Received:
        """What a message's bytes come to. Never raises, whatever they are; text, which a websocket's peer may send
        instead, is none."""
        if isinstance(data, str):
            return self._ignored("malformed")
        if not data:
            return Received(Scope())
        if data[:1] == _CONTROL:
            self._control(bytes(data[1:]))
            return Received(Scope(), control=True)
        if len(data) > MAX_FRAME_BYTES:
            return self._ignored("oversized")
        now, keyring = time(), self._node.keyring
        reply = None
        with self._lock:
            read = self._receiver.read(
                [to_header(bytes(data))],
                trusted=self._trusted,
                verify=lambda body, mac: keyring.verify(FRAME, body, mac, now),
            )
            found = read if isinstance(read, Ignored) else self._receiver.accept(read, client="")
            if isinstance(found, NeedBase):
                found = self._receiver.give_up(found)
            if isinstance(found, Accepted):
                self._unreadable = 0
            elif isinstance(found, Run):
                reply = self._ask(found)
        if isinstance(found, Ignored):
            return self._ignored(found.reason)
        count_frame(None, _KINDS[found.kind], "received", len(data))
        if isinstance(found, Accepted):
            scope = Scope(found.state, source="frame")
            return Received(scope, _exchange=ServerExchange(self._node, found, scope, None, True, None))
        lost = found.kind is not FrameKind.FULL and found.reason is not NackReason.LIMIT
        reason = found.reason.name.lower()
        events.emit(EVENT_CONTEXT_PROCEEDED if lost else EVENT_CONTEXT_REJECTED, {REASON: reason})
        return Received(Scope(incomplete=True), reply=reply, reason=reason)

    def answer(self, received: Received, *, final: bool = True) -> bytes | None:
        """Bytes to be sent back in an envelope without a body: an ack with what the handling of ``received`` has
        recorded since the last one, and what has waited for one; ``None`` if that is nothing, or the channel one-way.

        ``final``: the handling is over. What is recorded later still, or does not fit, waits for the session's next
        ack, on whatever way. The other end joins it into the scope that the message was sent from; of several that have
        sent the same state over this link, that is the last.
        """
        exchange = received._exchange
        value = exchange.news(time(), final=final) if exchange is not None and self._duplex else None
        if value is None:
            return None
        data = from_header(value)
        count_frame(None, "ack", "sent", len(data))
        return _CONTROL + data

    def _ignored(self, reason: str) -> Received:
        events.emit(EVENT_CONTEXT_REJECTED, {REASON: reason})
        return Received(Scope(), reason=reason)

    def _ask(self, found: Run) -> bytes | None:
        """A NACK for the first message that can't be read. Those behind it were under way already."""
        if not self._duplex:
            return None
        self._unreadable += 1
        if self._unreadable % _ASK_EVERY != 1:
            return None
        node = self._node
        ack = Ack(AckKind.NACK, found.root[:BASE_BYTES], boot_id=node.boot_id, reason=found.reason, final=True)
        body = encode_ack(ack, signed=found.signed)
        count_frame(None, "nack", "sent", len(body))
        return _CONTROL + body + (node.keyring.sign(ACK, body, time()) if found.signed else b"")

    def _control(self, data: bytes) -> None:
        ack = self._proven(data)
        if ack is None:
            return
        if ack.kind is AckKind.ACK:
            in_time = self._askers.hear(self._node, ack)
            if in_time is not None:
                count_frame(None, "ack", "received", len(data))
            if in_time is False:
                instruments().late.add(1)
            return
        count_frame(None, "nack", "received", len(data))
        with self._lock:
            self._forget()
            if ack.reason is NackReason.TABLE:
                self._table = max(1, min(ack.table, TABLE_REVISION))
            elif ack.reason is not NackReason.UNKNOWN_BASE:
                self._full_only = True  # the other end computes another root, or has other limits

    def _proven(self, data: bytes) -> Ack | None:
        """Acks are signed where the frames were."""
        try:
            body, mac = split_mac(data[:MAX_FRAME_BYTES])
            proven = not self._signed if mac is None else self._node.keyring.verify(ACK, body, mac, time()) is not None
            return decode_ack(body) if proven else None
        except ProtocolError:
            return None
