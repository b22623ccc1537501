"""FastAPI's own tracing, where the middleware can't be outside of it."""

from __future__ import annotations

from typing import Final

__all__ = ["silence"]

_MAX_DEPTH: Final = 32
_SIGNALS: Final = ("tracing", "metrics", "logs")


def silence(app: object) -> None:
    """Switch off what FastAPI >= 0.165 records by itself, if ``app`` is the inside of a FastAPI application.

    It does so in its ``__call__``, around all the middleware that was added to it, so the word that it leaves in a
    request's scope comes too late there. The stack is built before the first request, and the router at the end of it
    knows its application; the switches are those of ``FastAPI(telemetry=…)``. Where FastAPI is to set up exporters by
    itself (``auto_configure``), it does so for signals that are on; they stay on, and each request is excluded.
    """
    for _ in range(_MAX_DEPTH):
        if app is None:
            return
        config = getattr(getattr(app, "dependency_overrides_provider", None), "_telemetry", None)
        if isinstance(config, dict):
            if config.get("auto_configure"):
                config["exclude"] = _everything
            else:
                config.update(dict.fromkeys(_SIGNALS, False))
            return
        app = getattr(app, "app", None)


def _everything(scope: object) -> bool:
    return True
