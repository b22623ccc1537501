"""requests, which is not imported here: a session brings its library along.

The session becomes one of a class that adds three methods to its own, so adapters that are mounted later are seen too,
and those that are mounted stay what they are. A copy or a pickle of a session is a plain one again.

Requests that the adapter itself repeats (``HTTPAdapter(max_retries=…)``) are one attempt for us, with the number of
repetitions on its span. All carry the same bytes, so under an adapter that may repeat a frame is always a whole one.
"""

from __future__ import annotations

import sys
import weakref
from functools import lru_cache, partial
from types import new_class
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.clients.abandoned import Released
from otelctx.clients.attempt import Attempt, Head, Others, Party, quiet, start, suppressed
from otelctx.clients.handshake import run, within
from otelctx.clients.headers import Headers
from otelctx.clients.peer import peer_of
from otelctx.clients.refusals import too_large
from otelctx.clients.target import Target
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node, default_node
from otelctx.semconv import ACK_HEADER

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests import Session as _Session
else:
    _Session = object

__all__ = ["instrument"]

T = TypeVar("T")

_OTHERS: Final[Others] = ("opentelemetry.instrumentation.requests", "opentelemetry.instrumentation.urllib3")
_PARTY: Final = "_otelctx_party"
# Of a prepared request: how often it has been sent. One that follows a redirect goes on counting.
_SENT: Final = "_otelctx_sent"
_VERSIONS: Final = {10: "1.0", 11: "1.1", 20: "2"}


def instrument(
    session: T,
    *,
    node: Node | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> T:
    """Trace what a ``requests.Session`` sends through any of its adapters, and let it carry context.

    Returns the same object; a second time changes nothing. Raises :class:`~otelctx.errors.ConfigError` for anything
    else, and for settings in the environment that mean nothing.
    """
    kind: Any = type(session)
    if not any(c.__name__ == "Session" and c.__module__.partition(".")[0] == "requests" for c in kind.__mro__):
        raise ConfigError(f"not a session of requests: {kind.__module__}.{kind.__qualname__}")
    if node is None:
        default_node()  # an environment that is wrong is reported here, and not by the first request
    if not issubclass(kind, Instrumented):
        vars(session)[_PARTY] = Party(node, tracer_provider, meter_provider)
        session.__class__ = _instrumented(kind)
    return session


@lru_cache(maxsize=32)
def _instrumented(kind: Any) -> Any:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return new_class(kind.__name__, (Instrumented, kind), exec_body=lambda body: body.update(names))


@lru_cache(maxsize=1)
def _adapter(base: Any) -> Any:
    return new_class("Adapter", (Adapter, base), exec_body=lambda body: body.update(__module__=__name__))


class Instrumented(_Session):
    """What is added to the class of a session."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Not that of the session's own class, which may want arguments or keep a register: it is no new kind."""

    def get_adapter(self, url: str) -> Any:
        inner = super().get_adapter(url)
        cls = _adapter(sys.modules["requests.adapters"].BaseAdapter)
        return cls(inner, vars(self)[_PARTY], 0)

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        """Another instrumentation that is loaded sits around this whole method; ours is that of each attempt."""
        send = partial(super().send, request, **kwargs)
        return send() if suppressed() else within(quiet(_OTHERS, otel_context.get_current()), send)

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        """The one method that is given both a redirected request and what it is redirected by."""
        vars(prepared_request)[_SENT] = vars(response.request).get(_SENT, 0)
        super().rebuild_auth(prepared_request, response)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As its own class does it: ours can't be found by name, and a party stays in its process."""
        ours, _, plain = type(self).__mro__[:3]
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *state = reduced
        if make.__name__ == "__newobj__":
            make = object.__new__  # pickle holds the other one to the class that this object is of
        return make, tuple(plain if argument is ours else argument for argument in arguments), *state


class Adapter:
    """An adapter for one request, and for what is sent through its response. In all else the adapter inside."""

    def __init__(self, inner: Any, party: Party, sent: int) -> None:
        vars(self).update(_inner=inner, _party=party, _sent=sent)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        if suppressed() or not str(request.url).lower().startswith("http"):
            return self._inner.send(request, *args, **kwargs)
        sent = vars(request).get(_SENT, self._sent)
        vars(request)[_SENT] = sent + 1

        def send(attempt: Attempt) -> Any:
            return self._inner.send(_copy(request, attempt), *args, **kwargs)

        attempt = start(self._party, _target(request, sent, _may_repeat(self._inner)), _OTHERS)
        response, attempt = run(attempt, _OTHERS, send=send, head=_head, drop=lambda response: response.close())
        vars(request)[_SENT] = attempt.sent
        response.request = request
        # Authentication that takes two requests sends the second one through this.
        response.connection = type(self)(self._inner, self._party, attempt.sent)
        _watch(response.raw, attempt)
        return response

    def close(self) -> None:
        self._inner.close()


def _may_repeat(adapter: Any) -> bool:
    """Whether urllib3 may send a request of this adapter more than once, as far as its setting tells."""
    retries = getattr(adapter, "max_retries", 0)
    return getattr(retries, "total", retries) not in (0, False)


def _target(request: PreparedRequest, sent: int, full: bool) -> Target:
    url = urlsplit(str(request.url))
    return Target.of(
        method=str(request.method),
        scheme=url.scheme,
        host=url.hostname or "",
        port=url.port,
        raw_path=request.path_url.encode(),
        userinfo=bool(url.username or url.password),
        body=_body(request.body),
        headers=_present(request, "replace"),
        sent=sent,
        full=full,
    )


def _body(body: Any) -> int | None:
    if isinstance(body, str):
        return len(body) if body.isascii() else len(body.encode(errors="replace"))
    return len(body) if isinstance(body, bytes) else 0 if body is None else None


def _present(request: PreparedRequest, errors: str = "strict") -> Headers:
    """The headers as http.client writes them. Raises its UnicodeEncodeError for what it can't write."""
    return [
        (name.encode("latin-1", errors), value if isinstance(value, bytes) else value.encode("latin-1", errors))
        for name, value in request.headers.items()
    ]


def _copy(request: PreparedRequest, attempt: Attempt) -> PreparedRequest:
    """The same request with other headers. The session's own is what a redirect to another origin is made from."""
    before = request.headers
    headers = type(before)()
    for raw_name, raw in attempt.headers(_present(request)):
        name, value = raw_name.decode("latin-1"), raw.decode("latin-1")
        old: Any = before.get(name)
        headers[name] = (
            old if isinstance(old, bytes) and old == raw else value
        )  # one that was given as bytes stays that
    copied: PreparedRequest = object.__new__(type(request))
    vars(copied).update(vars(request))
    copied.headers = headers
    return copied


def _head(response: Any) -> Head:
    raw = response.raw
    several = getattr(getattr(raw, "headers", None), "getlist", None)
    one = response.headers.get(ACK_HEADER)
    acks = several(ACK_HEADER) if several is not None else [] if one is None else [one]
    status = response.status_code or 0
    version = _VERSIONS.get(getattr(raw, "version", None) or 0)
    connection = getattr(raw, "connection", None)  # none if the whole response is here
    peer = None if connection is None else peer_of(lambda: connection.sock.getpeername())
    return Head(status, version, acks, too_large(status, response.headers), peer)


def _watch(raw: Any, attempt: Attempt) -> None:
    history = getattr(getattr(raw, "retries", None), "history", ())
    if history:
        attempt.resent(len(history))
    if getattr(raw, "connection", None) is None:
        attempt.end()  # it came as a whole, as from a cache or a mock
    else:
        raw.release_conn = _Release(attempt, raw)


class _Release(Released):
    """Stands in for the method of urllib3's response that is called at the end of the body, or by ``close``."""

    def __init__(self, attempt: Attempt, raw: Any) -> None:
        super().__init__(attempt)
        self._raw = weakref.ref(raw)

    def __call__(self) -> None:
        raw = self._raw()
        try:
            if raw is not None:
                type(raw).release_conn(raw)
        finally:
            error = self.raised()
            # What the application raises in its ``with`` is none of ours.
            theirs = type(error).__module__.partition(".")[0] != "urllib3"
            self._attempt.end(None if theirs and isinstance(error, Exception) else error)
