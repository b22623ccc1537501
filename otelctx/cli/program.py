"""The commands and their options. What they do is imported when they are called: ``--help`` loads no model library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from otelctx.errors import ConfigError, OtelctxError

__all__ = ["main", "program"]

program = typer.Typer(
    name="otelctx",
    help="Trace and session context for LLM services, and every context-window event over OTLP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
show = typer.Typer(help="Show what is on the wire in readable form.", no_args_is_help=True)
program.add_typer(show, name="show")


class WhenFull(StrEnum):
    """What happens when a session's window is full."""

    turns = "turns"
    reject = "reject"


def main() -> None:
    """Entry point. Exits 0, 1 if the command failed, or 2 if it was called wrongly."""
    program()


@contextmanager
def _errors() -> Iterator[None]:
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


@program.command()
def serve(
    model: Annotated[str, typer.Argument(help="'smollm2', or a directory as save_pretrained writes it.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    window: Annotated[int, typer.Option(min=64, help="Context window in tokens.")] = 4096,
    rows: Annotated[int, typer.Option(min=1, max=1024, help="Turns computed at once.")] = 8,
    when_full: Annotated[WhenFull, typer.Option(help="When a session's window is full.")] = WhenFull.turns,
    name: Annotated[str | None, typer.Option(help="The model's name in the API; by default its own.")] = None,
    service_name: Annotated[str, typer.Option(help="service.name in telemetry.")] = "otelctx-worker",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the model; 0 leaves it to torch.")] = 0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that running answers get when stopped.")] = 10.0,
) -> None:
    """Serve a model over OpenAI's API, traced, with token windows."""
    with _errors():
        from otelctx.cli.options import Options
        from otelctx.cli.serve import run

        run(Options(model, host, port, window, rows, when_full.value, name, service_name, threads, drain))


@program.command()
def demo(
    jaeger: Annotated[
        bool, typer.Option("--jaeger", help="Through the real collector to the real Jaeger, started for this run.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --jaeger: leave Jaeger running until Ctrl-C, to click the links.")
    ] = False,
    jaeger_url: Annotated[
        str, typer.Option(help="Where OTEL_EXPORTER_OTLP_ENDPOINT, if it is set, ends up: read the traces back there.")
    ] = "http://localhost:16686",
    tamper: Annotated[
        str | None, typer.Option(help="Self-test: miscount this ('tokens' or 'bytes'), which must fail.", hidden=True)
    ] = None,
) -> None:
    """One traced conversation through three processes, told as it happens. Exits 1 if anything is not as it should."""
    with _errors():
        from otelctx.demo.story import run

        raise typer.Exit(run(jaeger=jaeger, jaeger_url=jaeger_url, keep=keep, tamper=tamper))


@show.command("header")
def show_header(
    value: Annotated[str, typer.Argument(help="Value of an otelctx or otelctx-ack header, or the whole line.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Decode the value of an otelctx or otelctx-ack header. Signatures are shown, not checked."""
    with _errors():
        from otelctx.cli.header import show as show_value

        show_value(value, as_json=as_json)


@program.command()
def doctor() -> None:
    """Check this environment: versions, extras, keys, collector, model cache. Exits 1 if something is wrong."""
    with _errors():
        from otelctx.cli.doctor import run

        raise typer.Exit(run())
