"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from otelctx.asgi.middleware import ContextMiddleware
from otelctx.asgi.types import Message, Receive, Scope, Send
from otelctx.clients.attempt import Party
from otelctx.errors import OtelctxError
from otelctx.exchange.node import Node, default_node
from otelctx.gateway import head, probe
from otelctx.gateway.failures import Draining, UpstreamFailure
from otelctx.gateway.options import Options
from otelctx.gateway.proxy import Proxy
from otelctx.gateway.sessions import Sessions
from otelctx.gateway.upstreams import Upstreams
from otelctx.gateway.websocket import WebSockets, deny
from otelctx.telemetry.instruments import observe_upstreams

__all__ = ["Gateway", "app"]

_log = logging.getLogger(__name__)

HEALTH: Final = ("/healthz", "/readyz")


def app(
    upstreams: Iterable[str], *, options: Options | None = None, node: Node | None = None, **middleware: Any
) -> Gateway:
    """A reverse proxy to ``upstreams``, URLs of ``otelctx serve`` or of anything else that speaks HTTP.

    ``middleware`` are options of :class:`~otelctx.asgi.middleware.ContextMiddleware`. Raises
    :class:`~otelctx.errors.ConfigError` for URLs or options that mean nothing.
    """
    return Gateway(upstreams, options or Options(), node or default_node(), **middleware)


class Gateway:
    """``upstreams`` may be replaced while it runs. :meth:`drain` makes it refuse new requests and say so."""

    def __init__(self, upstreams: Iterable[str], options: Options, node: Node, **middleware: Any) -> None:
        self.upstreams: Final = Upstreams(upstreams, bound=options.load_bound)
        self.options: Final = options
        self.node: Final = node
        self._draining = False
        self._active = 0
        # Tells this gateway from others in Via, and nothing else.
        self._pseudonym: Final = b"otelctx-" + secrets.token_hex(4).encode()
        party = Party(node, middleware.get("tracer_provider"), middleware.get("meter_provider"))
        self._sessions = Sessions(lambda: node.keyring)
        self._proxy = Proxy(self.upstreams, self._sessions, party, options, self._pseudonym)
        self._websockets = WebSockets(self.upstreams, self._sessions, party, options)
        excluded = middleware.pop("excluded", HEALTH)
        self._traced = ContextMiddleware(self._inner, node=node, excluded=excluded, **middleware)
        self._warn()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        with suppress(UpstreamFailure):
            # One that comes out here has cut a response. It has been recorded; a server that sees the application
            # leave in the middle of a response closes the connection.
            await self._traced(scope, receive, send)

    @property
    def active(self) -> int:
        """Requests and websockets that are open."""
        return self._active

    def drain(self) -> None:
        """From now on new requests get 503, and ``/readyz`` does."""
        self._draining = True

    def _warn(self) -> None:
        if not self._sessions.lasting:
            _log.warning("OTELCTX_KEYS is not set: session ids are good until this process ends, and for no other one")
        for upstream in self.upstreams:
            if not self.node.egress.allows(upstream.host, upstream.port):
                _log.warning("%s gets no context: it is not in OTELCTX_EGRESS_ALLOW", upstream.name)

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["path"] in HEALTH:
            await self._health(scope, send)
        else:
            await self._count(self._proxy, scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the server's connect
        accepted = False

        async def watched(message: Message) -> None:
            nonlocal accepted
            accepted = accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            await self._count(self._websockets, scope, receive, watched)
        except OtelctxError as error:
            if accepted:
                raise
            await deny(scope, send, error)

    async def _count(self, handler: Proxy | WebSockets, scope: Scope, receive: Receive, send: Send) -> None:
        if self._draining:
            raise Draining("this server is about to stop; another one takes the request", retry_after=1.0)
        peer = scope.get("client")
        proxy = self.node.trust.proxy(peer[0] if peer else None)
        request = head.read(scope, self.options.limits, proxy=proxy, pseudonym=self._pseudonym)
        self._active += 1
        try:
            await handler(scope, request, receive, send)
        finally:
            self._active -= 1

    async def _health(self, scope: Scope, send: Send) -> None:
        if scope["path"] == "/healthz":
            status, word = 200, "ok"
        elif self._draining:
            status, word = 503, "draining"
        else:
            status, word = (200, "ready") if self.upstreams.ready else (503, "no upstream")
        body = json.dumps({"status": word}).encode()
        lines = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        ends = observe_upstreams(self.upstreams.observed)
        checks = asyncio.create_task(probe.watch(self.upstreams, self.options))
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        finally:
            checks.cancel()
            ends()
            self.upstreams.close()
            with suppress(asyncio.CancelledError):
                await checks
        await send({"type": "lifespan.shutdown.complete"})
