"""The edge: a reverse proxy in front of workers, where W3C context from outside becomes frames inside."""

from otelctx.gateway.application import Gateway, app

__all__ = ["Gateway", "app"]
