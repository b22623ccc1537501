"""``x-request-id`` on every response: what clients of OpenAI's API show as the request's id.

It is the id of the request's trace, so that who reports a problem reports its trace as well. One that comes in is not
taken over: anybody can choose it, and proxies rewrite it.
"""

from __future__ import annotations

import uuid
from typing import Final

from opentelemetry.trace import format_trace_id, get_current_span
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestId"]

_NAME: Final = b"x-request-id"


class RequestId:
    """ASGI middleware; inside of the one that makes the request's span."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        line = (_NAME, _request_id().encode("ascii"))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), line]}
            await send(message)

        await self.app(scope, receive, named)


def _request_id() -> str:
    """32 hexadecimal digits: the trace's id, or a new one where there is no trace."""
    span = get_current_span().get_span_context()
    return format_trace_id(span.trace_id) if span.is_valid else uuid.uuid4().hex
