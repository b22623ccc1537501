"""One websocket through the gateway: two connections, each with its own handshake, pings and close.

A message that is being sent holds up the reading of the next one, on either side.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from otelctx.asgi.types import Headers, Receive, Scope, Send
from otelctx.clients.attempt import Attempt, Head, Party, start
from otelctx.errors import OtelctxError
from otelctx.gateway.failures import BadResponse, ConnectFailed, ConnectTimeout, UpstreamFailure
from otelctx.gateway.head import SESSION, RequestHead, below, response_headers
from otelctx.gateway.health import Signal
from otelctx.gateway.options import Options
from otelctx.gateway.outbound import target_of
from otelctx.gateway.routing import Route
from otelctx.gateway.sessions import Sessions
from otelctx.gateway.upstreams import Upstream, Upstreams
from otelctx.semconv import ACK_HEADER

__all__ = ["WebSockets", "deny"]

_EXTENSION: Final = "websocket.http.response"
_POLICY: Final = 1008
_RESERVED: Final = {1005: 1000, 1006: 1014, 1015: 1014}  # never sent: no code, a lost connection, failed TLS
# Of the handshake with the upstream, which is another one than that with the client.
_OWN: Final = (b"sec-websocket-accept", b"sec-websocket-protocol", b"sec-websocket-extensions", b"content-length")


class _Connect(connect):
    """websockets' own, which would follow a redirect to anywhere and take the headers along."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSockets:
    """Handles websockets whose head has been read."""

    def __init__(self, upstreams: Upstreams, sessions: Sessions, party: Party, options: Options) -> None:
        self._upstreams = upstreams
        self._sessions = sessions
        self._party = party
        self._options = options

    async def __call__(self, scope: Scope, head: RequestHead, receive: Receive, send: Send) -> None:
        """Raises what is to be answered instead of accepting."""
        route = Route(scope, head, self._sessions, self._upstreams)
        tried: list[str] = []
        while True:
            upstream = route.choose(tried)
            tried.append(upstream.name)
            upstream.active += 1
            try:
                await self._through(scope, head, upstream, route, len(tried) - 1, receive, send)
                return
            except ConnectFailed as failure:
                upstream.see(Signal.GONE, failure.reason)
                if not self._upstreams.others(tried):
                    raise
            finally:
                upstream.active -= 1

    async def _through(
        self,
        scope: Scope,
        head: RequestHead,
        upstream: Upstream,
        route: Route,
        number: int,
        receive: Receive,
        send: Send,
    ) -> None:
        attempt = start(self._party, target_of(upstream, head, None, number, upgrade=True))
        try:
            connection = await self._connect(scope, head, upstream, attempt)
        except InvalidStatus as refusal:
            attempt.end()
            response = refusal.response
            headers = response_headers(_lines(response.headers), response.status_code)
            headers = [line for line in headers if line[0] not in _OWN]
            await _refuse(scope, send, response.status_code, headers, bytes(response.body or b""))
            return
        except BaseException as error:
            attempt.failed(error)
            raise
        attempt.end()
        upstream.see(Signal.OK)
        try:
            headers = response_headers(_lines(connection.response.headers if connection.response else ()), 101)
            headers = [line for line in headers if line[0] not in (*_OWN, SESSION)]
            if route.minted is not None:
                headers.append((SESSION, route.minted.encode()))
            await send({"type": "websocket.accept", "subprotocol": connection.subprotocol, "headers": headers})
            await _pump(connection, receive, send)
        finally:
            # Only when it is not closed already, as by a cancellation: then nobody waits for a farewell.
            connection.transport.abort()

    async def _connect(self, scope: Scope, head: RequestHead, upstream: Upstream, attempt: Attempt) -> ClientConnection:
        scheme = "wss" if upstream.tls else "ws"
        target = below(upstream.prefix, head.target).decode("ascii")
        lines = attempt.headers(head.lines)
        try:
            connection = await _Connect(
                f"{scheme}://{upstream.authority}{target}",
                ssl=upstream.tls,
                subprotocols=scope.get("subprotocols") or None,
                additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines],
                user_agent_header=None,
                compression=None,
                proxy=None,
                open_timeout=self._options.timeouts.connect,
                max_size=self._options.max_message,
                close_timeout=2.0,
            )
        except InvalidStatus as refusal:
            self._answered(attempt, refusal.response.status_code, refusal.response.headers)
            raise
        except TimeoutError:
            raise ConnectTimeout("the upstream could not be reached in time") from None
        except OSError as error:
            raise ConnectFailed(f"the upstream can't be reached: {error.strerror or type(error).__name__}") from error
        except InvalidHandshake as error:
            raise BadResponse(f"the upstream's handshake is wrong: {error}") from None
        self._answered(attempt, 101, connection.response.headers if connection.response else None)
        return connection

    @staticmethod
    def _answered(attempt: Attempt, status: int, headers: Any) -> None:
        acks = headers.get_all(ACK_HEADER) if headers is not None else []
        attempt.answered(Head(status, "1.1", acks, too_large=False))  # a handshake is never repeated


async def deny(scope: Scope, send: Send, error: OtelctxError) -> None:
    """Answer a handshake with ``error``."""
    lines = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in error.headers()]
    body = json.dumps(error.body()).encode()
    await _refuse(scope, send, error.status or 500, [(b"content-type", b"application/json"), *lines], body)


async def _refuse(scope: Scope, send: Send, status: int, headers: Headers, body: bytes) -> None:
    if _EXTENSION not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _POLICY})
        return
    lines = [line for line in headers if line[0] != b"content-length"]
    lines.append((b"content-length", str(len(body)).encode()))
    await send({"type": "websocket.http.response.start", "status": status, "headers": lines})
    await send({"type": "websocket.http.response.body", "body": body})


def _lines(headers: Any) -> Headers:
    items = headers.raw_items() if headers else ()
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in items]


async def _pump(connection: ClientConnection, receive: Receive, send: Send) -> None:
    """Both directions, until one of them ends."""
    up = asyncio.create_task(_up(connection, receive))
    down = asyncio.create_task(_down(connection, send))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        gone = up.done()  # then what becomes of the other direction is of no interest
    finally:
        up.cancel()
        down.cancel()
        _, ended = await asyncio.gather(up, down, return_exceptions=True)
    if not gone and isinstance(ended, Exception) and not isinstance(ended, OSError):
        raise ended


async def _up(connection: ClientConnection, receive: Receive) -> None:
    """From the client, whose close is passed on, to the upstream."""
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        try:
            await connection.send(text if text is not None else message["bytes"])
        except ConnectionClosed:
            await asyncio.get_running_loop().create_future()  # _down knows why, and says it
    code: int = message.get("code", 1005)
    if code == 1006:
        connection.transport.abort()
    else:
        await connection.close(_RESERVED.get(code, code), message.get("reason") or "")


async def _down(connection: ClientConnection, send: Send) -> None:
    """From the upstream, whose close is passed on, to the client."""
    try:
        while True:
            message = await connection.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed:
        pass
    code = connection.close_code or 1006
    await send({"type": "websocket.close", "code": _RESERVED.get(code, code), "reason": connection.close_reason or ""})
    if code == 1006:
        raise UpstreamFailure("the upstream's websocket was lost")
