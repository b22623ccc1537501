"""The command ``otelctx``."""

from otelctx.cli.program import main

__all__ = ["main"]
