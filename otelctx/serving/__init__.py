"""An OpenAI-compatible HTTP application in front of an engine."""

from otelctx.serving.application import app

__all__ = ["app"]
