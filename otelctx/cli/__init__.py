"""The command ``otelctx``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point; see :func:`otelctx.cli.program.main`. Without the extra ``cli`` one line says so."""
    try:
        from otelctx.cli.program import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"otelctx: {error.name} is not installed: pip install 'otelctx[cli]'")
    run()
