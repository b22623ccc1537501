"""One HTTP request through the gateway: to an upstream and, piece by piece, back."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import Final

from opentelemetry import trace

from otelctx import semconv
from otelctx.asgi.types import Headers, Receive, Scope, Send
from otelctx.clients.attempt import Party
from otelctx.context.current import USAGE_INPUT, USAGE_OUTPUT, current_scope
from otelctx.gateway.failures import BadResponse, ClientGone, UpstreamFailure, UpstreamTimeout
from otelctx.gateway.head import SESSION, RequestHead, response_headers
from otelctx.gateway.inbound import Inbound
from otelctx.gateway.options import Options
from otelctx.gateway.outbound import Outbound
from otelctx.gateway.parser import Head
from otelctx.gateway.retry import IDEMPOTENT, UNAVAILABLE, RetryBudget, may_retry
from otelctx.gateway.routing import Route
from otelctx.gateway.sessions import Sessions
from otelctx.gateway.upstreams import Upstreams
from otelctx.telemetry.instruments import instruments

__all__ = ["Proxy"]

_log = logging.getLogger(__name__)

_EVENTS: Final = b"text/event-stream"
_LAST_WORD: Final = 5.0  # seconds for the event that says why a stream ends


class Proxy:
    """Handles requests whose head has been read. Raises what is to be answered before the response has begun, and what
    has cut it after that.
    """

    def __init__(self, upstreams: Upstreams, sessions: Sessions, party: Party, options: Options, pseudonym: bytes):
        self._upstreams = upstreams
        self._sessions = sessions
        self._party = party
        self._options = options
        self._via = b"1.1 " + pseudonym
        self._budget = RetryBudget()

    async def __call__(self, scope: Scope, head: RequestHead, receive: Receive, send: Send) -> None:
        route = Route(scope, head, self._sessions, self._upstreams)
        # Before a byte of the body is read: a client that waits for 100 Continue need not send it then.
        self._upstreams.require()
        timeouts = self._options.timeouts
        inbound = Inbound(head, receive, self._options.limits, timeouts.idle)
        self._budget.request()
        try:
            async with asyncio.timeout(timeouts.total) as limit:
                await inbound.read()
                outbound, answer = await self._answer(head, inbound, route)
                await self._relay(outbound, answer, route, send, limit)
        except TimeoutError:
            raise _too_long() from None
        except ClientGone:
            return
        finally:
            await inbound.close()

    async def _answer(self, head: RequestHead, inbound: Inbound, route: Route) -> tuple[Outbound, Head]:
        """The response of the first upstream that gives one."""
        idempotent = head.method in IDEMPOTENT or any(name == b"idempotency-key" for name, _ in head.lines)
        tried: list[str] = []
        sent = 0
        while True:
            upstream = route.choose(tried)
            tried.append(upstream.name)
            outbound = Outbound(self._party, upstream, head, inbound, self._options.timeouts, sent)
            try:
                answer = await outbound.open(repeatable=inbound.replayable and idempotent)
            except UpstreamFailure as failure:
                outbound.fail(failure)
                if not self._again(failure, failure.reason, tried, inbound.replayable, idempotent):
                    raise
            except BaseException as error:
                outbound.fail(error)
                raise
            else:
                replayable = inbound.replayable and not route.strict
                if answer.status != UNAVAILABLE or not self._again(
                    UNAVAILABLE, "unavailable", tried, replayable, idempotent
                ):
                    return outbound, answer
                try:
                    await outbound.discard()
                except BaseException as error:
                    outbound.fail(error)
                    if not isinstance(error, UpstreamFailure):
                        raise
            sent = outbound.sent

    def _again(
        self, failure: UpstreamFailure | int, reason: str, tried: list[str], replayable: bool, idempotent: bool
    ) -> bool:
        """Whether there is to be another try; it is counted then."""
        if not may_retry(failure, replayable=replayable, idempotent=idempotent):
            return False
        if not self._upstreams.others(tried) or not self._budget.take():
            return False
        instruments(self._party.meter_provider).gateway_retries.add(1, {semconv.REASON: reason})
        return True

    async def _relay(self, outbound: Outbound, answer: Head, route: Route, send: Send, limit: asyncio.Timeout) -> None:
        """Hand the response on as it comes. When it breaks off, or takes longer than ``limit``, so does what the client
        gets: never a clean end."""
        started = False
        try:
            if not 200 <= answer.status <= 599:
                raise BadResponse(f"the upstream has answered with status {answer.status}")
            headers = response_headers(answer.headers, answer.status)
            stream = any(n == b"content-type" and v.lower().startswith(_EVENTS) for n, v in headers)
            plain = not any(n in (b"content-encoding", b"content-length") for n, _ in headers)
            _tell(stream)
            started = True
            await send({"type": "http.response.start", "status": answer.status, "headers": self._head(headers, route)})
            while data := await outbound.chunk():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except BaseException as error:
            outbound.fail(error)
            cause = _too_long() if limit.expired() else error
            if started and stream and plain and isinstance(cause, UpstreamFailure):
                await _last_word(send, cause)
            raise
        outbound.done()  # before the last byte goes out, with which the SERVER span ends
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self, headers: Headers, route: Route) -> Headers:
        lines = [line for line in headers if line[0] != SESSION]
        lines.append((b"via", self._via))
        if route.minted is not None:
            lines.append((SESSION, route.minted.encode()))
        return lines


def _too_long() -> UpstreamTimeout:
    return UpstreamTimeout("the request took longer than a request may take")


async def _last_word(send: Send, error: UpstreamFailure) -> None:
    """An event for whoever reads a stream to its end. What was begun before is ended first. A client that does not read
    goes without it."""
    event = b"\n\ndata: " + json.dumps(error.body()).encode() + b"\n\n"
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORD):
            await send({"type": "http.response.body", "body": event, "more_body": True})


def _tell(stream: bool) -> None:
    """Put what came back from the worker on the SERVER span. What a stream's head brings of usage is the turn's before
    it.
    """
    scope, span = current_scope(), trace.get_current_span()
    if scope is None or not span.is_recording():
        return
    window = scope.window
    if window is not None:
        span.set_attributes(
            {
                semconv.WINDOW_USED: window.used,
                semconv.WINDOW_LIMIT: window.limit,
                semconv.WINDOW_EVICTED: window.evicted,
                semconv.WINDOW_VERSION: window.version,
            }
        )
    if stream:
        return
    for key, attribute in ((USAGE_INPUT, semconv.USAGE_INPUT), (USAGE_OUTPUT, semconv.USAGE_OUTPUT)):
        value = scope.up(key.spec.name)
        if value is not None:
            span.set_attribute(attribute, int(value))
