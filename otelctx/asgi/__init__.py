"""The ASGI shell: one SERVER span, metrics and context for any ASGI application, without importing a framework."""

from __future__ import annotations

from otelctx.asgi.route import set_route

__all__ = ["set_route"]
