"""Whose request it is, which session it belongs to, and where it goes."""

from __future__ import annotations

import math
from collections.abc import Collection

from otelctx.asgi.middleware import exchange_of
from otelctx.asgi.owner import owner_of
from otelctx.asgi.types import Scope
from otelctx.context.current import SESSION, current_scope
from otelctx.errors import SessionNotFound
from otelctx.gateway.head import RequestHead
from otelctx.gateway.sessions import Sessions
from otelctx.gateway.upstreams import Upstream, Upstreams

__all__ = ["Route"]

# Their responses may be kept by a cache, which would hand one client's session to another.
_CACHEABLE = frozenset(("GET", "HEAD", "OPTIONS"))


class Route:
    """One request's way. ``minted`` is the session id that its response tells the client."""

    __slots__ = ("_key", "_mints", "_sessions", "_upstreams", "minted", "session")

    def __init__(self, scope: Scope, head: RequestHead, sessions: Sessions, upstreams: Upstreams) -> None:
        """Raises :class:`~otelctx.errors.SessionNotFound` for a session that is not the client's."""
        self._sessions = sessions
        self._upstreams = upstreams
        self._key = owner_of(scope)
        self.minted: str | None = None
        self.session = self._vouched(scope) or self._stated(head)
        self._mints = _mints(scope, head)

    @property
    def strict(self) -> bool:
        """Whether no other worker may serve the session as long as its own is there."""
        return self.session is not None and self.minted is None and math.isinf(self._upstreams.bound)

    def choose(self, tried: Collection[str]) -> Upstream:
        """The upstream for the next try. A request without a session gets a new one, if it is to have one.

        Raises :class:`NoUpstream`.
        """
        if self.session is not None:
            return self._upstreams.of_session(self.session, tried)
        upstream = self._upstreams.of_owner(self._key, tried)
        if self._mints:
            # One whose slot is that upstream's: its next request then goes where this one went.
            self.minted = self._sessions.mint(self._key, lambda s: self._upstreams.home(s) == upstream.name)
            self.session = self.minted
            scope = current_scope()
            if scope is not None:
                scope.set(SESSION.spec, self.minted)
        return upstream

    def _vouched(self, scope: Scope) -> str | None:
        """Of a client whose word on its context is taken."""
        exchange = exchange_of(scope)
        if exchange is None or not exchange.trusted:
            return None
        return exchange.scope.state.session_id

    def _stated(self, head: RequestHead) -> str | None:
        if head.session is None:
            return None
        if not self._sessions.owned(head.session, self._key):
            raise SessionNotFound("there is no such session")
        scope = current_scope()
        if scope is not None:
            scope.set(SESSION.spec, head.session)
        return head.session


def _mints(scope: Scope, head: RequestHead) -> bool:
    """Whether a request without a session gets one: not if its response may be cached, nor if the client is trusted
    to name its own.
    """
    exchange = exchange_of(scope)
    trusted = exchange is not None and exchange.trusted
    return not trusted and (scope["type"] == "websocket" or head.method not in _CACHEABLE)
