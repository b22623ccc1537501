"""How a command fails: one line that says what to do, and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from otelctx.errors import ConfigError, OtelctxError

__all__ = ["failing"]


@contextmanager
def failing() -> Iterator[None]:
    """Errors that a user can do something about are one line, without a traceback."""
    try:
        yield
    except ConfigError as error:
        typer.secho(f"otelctx: {error.message}", fg="red", err=True)
        raise typer.Exit(1) from None
    except OtelctxError as error:
        typer.secho(f"otelctx: {type(error).__name__}: {error.message}", fg="red", err=True)
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        typer.secho(f"otelctx: {_missing(error)}", fg="red", err=True)
        raise typer.Exit(1) from None


def _missing(error: ModuleNotFoundError) -> str:
    from otelctx.cli.extras import EXTRA_OF

    name = (error.name or "").split(".")[0]
    extra = EXTRA_OF.get(name)
    if extra is None:
        raise error
    return f"{name} is not installed: pip install 'otelctx[{extra}]'"
