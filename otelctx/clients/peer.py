"""Whom a request has really gone to: the other end of its connection, be it the host of the URL or a proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Peer", "peer_of"]

Peer = tuple[str, int]  # address and port


def peer_of(ask: Callable[[], Any]) -> Peer | None:
    """What ``ask`` says, a socket's ``getpeername``, if it is an address with a port.

    ``None`` for a Unix socket, a mock, and a connection that is gone by now: to ask is no reason to fail.
    """
    try:
        found = ask()
    except Exception:
        return None
    if isinstance(found, tuple) and len(found) >= 2 and isinstance(found[0], str) and isinstance(found[1], int):
        return found[0], found[1]
    return None
