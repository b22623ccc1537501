"""Refusals by a proxy whose status does not say what they are."""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["too_large"]

# nginx and its descendants have a status of their own for headers that are too large, 494, and send 400 for it. The
# page with it is fixed but for the name of the server, which is a header of the response, too: so the length tells it
# from all other pages, and from those of an application behind the proxy, without reading it.
_PAGE: Final = (
    "<html>\r\n<head><title>400 Request Header Or Cookie Too Large</title></head>\r\n<body>\r\n"
    "<center><h1>400 Bad Request</h1></center>\r\n<center>Request Header Or Cookie Too Large</center>\r\n"
    "<hr><center></center>\r\n</body>\r\n</html>\r\n"
)
_SERVERS: Final = ("nginx", "openresty", "tengine")


class _Headers(Protocol):
    """Of a response, whatever the library: names in any case, one value."""

    def get(self, name: str, default: str, /) -> str: ...


def too_large(status: int, headers: _Headers) -> bool:
    """Whether a response refuses the request's headers for their size, before anybody has read them.

    True for 431 and 494, and for nginx's 400 of that meaning. What other proxies say by a plain 400 (Apache, HAProxy)
    can't be told from the application's own.
    """
    if status in (431, 494):
        return True
    if status != 400:
        return False
    server = headers.get("server", "")
    return (
        server.lower().startswith(_SERVERS)
        and headers.get("connection", "").lower() == "close"
        and headers.get("content-type", "").lower() == "text/html"
        and headers.get("content-length", "") == str(len(_PAGE) + len(server))
    )
