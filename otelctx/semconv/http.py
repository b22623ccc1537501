"""Attributes of HTTP, URL, network and RPC, after the conventions 1.44.0."""

from __future__ import annotations

from functools import partial
from typing import Final

from otelctx.semconv.model import Attribute

SESSION_ID_ATTRIBUTE: Final = "session.id"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_REQUEST_METHOD_ORIGINAL: Final = "http.request.method_original"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_ROUTE: Final = "http.route"
HTTP_RESEND_COUNT: Final = "http.request.resend_count"
HTTP_REQUEST_HEADER: Final = "http.request.header"
HTTP_RESPONSE_HEADER: Final = "http.response.header"
HTTP_REQUEST_BODY_SIZE: Final = "http.request.body.size"
HTTP_RESPONSE_BODY_SIZE: Final = "http.response.body.size"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS_CODE: Final = "rpc.response.status_code"
URL_SCHEME: Final = "url.scheme"
URL_PATH: Final = "url.path"
URL_QUERY: Final = "url.query"
URL_FULL: Final = "url.full"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_ADDRESS: Final = "client.address"
NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"
USER_AGENT: Final = "user_agent.original"

_http: Final = partial(Attribute, source="http", stability="stable")
_general: Final = partial(Attribute, source="general", stability="stable")
_METHODS: Final = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "QUERY",
    "_OTHER",
)

STANDARD_ATTRIBUTES: Final[dict[str, Attribute]] = {
    a.key: a
    for a in (
        _general(
            SESSION_ID_ATTRIBUTE,
            "string",
            "the conversation, as the context says",
            unbounded=True,
            stability="development",
        ),
        _general(ERROR_TYPE, "string", "why it failed: a status, an error's code, or an exception's class"),
        _general(EXCEPTION_TYPE, "string", "class of the exception, with its module"),
        _general(EXCEPTION_MESSAGE, "string", "its text, at most 1024 characters", unbounded=True),
        _general(EXCEPTION_STACKTRACE, "string", "the end of its traceback, at most 8192 characters", unbounded=True),
        _http(HTTP_REQUEST_METHOD, "string", "the method; any that is not of the standards is _OTHER", _METHODS),
        _http(HTTP_REQUEST_METHOD_ORIGINAL, "string", "the method as it was sent, if it is _OTHER", unbounded=True),
        _http(HTTP_RESPONSE_STATUS_CODE, "int", "the response's status"),
        _http(HTTP_ROUTE, "string", "the route's template with the application's root, never the path"),
        _http(HTTP_RESEND_COUNT, "int", "how often the request had been sent before, if it had"),
        _http(HTTP_REQUEST_HEADER, "string[]", "the header's values, in order", unbounded=True, template=True),
        _http(HTTP_RESPONSE_HEADER, "string[]", "the header's values, in order", unbounded=True, template=True),
        _http(HTTP_REQUEST_BODY_SIZE, "int", "bytes of the request's body as sent", stability="development"),
        _http(HTTP_RESPONSE_BODY_SIZE, "int", "bytes of the response's body as sent", stability="development"),
        Attribute(RPC_SYSTEM, "string", "the RPC system", ("grpc",), source="rpc"),
        Attribute(RPC_METHOD, "string", "service and method, as in pkg.Service/Method", source="rpc"),
        Attribute(RPC_STATUS_CODE, "string", "name of the call's status code", source="rpc"),
        _general(
            URL_SCHEME,
            "string",
            "scheme of the request's URL; any other is _OTHER",
            ("http", "https", "ws", "wss", "_OTHER"),
        ),
        _general(URL_PATH, "string", "path of the URL", unbounded=True),
        _general(URL_QUERY, "string", "query of the URL, without values of credentials", unbounded=True),
        _general(URL_FULL, "string", "the whole URL, without credentials", unbounded=True),
        _general(SERVER_ADDRESS, "string", "who was meant: a name or an address, without the port"),
        _general(SERVER_PORT, "int", "port of the server"),
        _general(CLIENT_ADDRESS, "string", "the client, behind trusted proxies", unbounded=True),
        _general(NETWORK_PEER_ADDRESS, "string", "the connection's other end", unbounded=True),
        _general(NETWORK_PEER_PORT, "int", "port of the connection's other end", unbounded=True),
        _general(NETWORK_PROTOCOL_VERSION, "string", "version of HTTP"),
        _general(USER_AGENT, "string", "User-Agent header", unbounded=True),
    )
}
