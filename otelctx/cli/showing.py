"""``otelctx show …``: what is on the wire, in a trace, in a session's window."""

from __future__ import annotations

from typing import Annotated

import typer

from otelctx.cli.failing import failing

__all__ = ["show"]

show = typer.Typer(help="Show a header, a trace or a session's window in readable form.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@show.command()
def header(
    value: Annotated[str, typer.Argument(help="Value of an otelctx or otelctx-ack header, or the whole line.")],
    as_json: AsJson = False,
) -> None:
    """Decode the value of an otelctx or otelctx-ack header. Signatures are shown, not checked."""
    with failing():
        from otelctx.cli.header import show as show_value

        show_value(value, as_json=as_json)


@show.command()
def trace(
    trace: Annotated[str, typer.Argument(help="A trace id, a traceparent, or the address of a trace in Jaeger.")],
    jaeger_url: Annotated[
        str | None,
        typer.Option(help="Where Jaeger's UI is.", show_default="that of the address, or else http://localhost:16686"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a trace out of Jaeger: services, tokens, and every overflow, truncation, eviction and degradation."""
    with failing():
        from otelctx.cli.trace import show as show_trace

        show_trace(trace, jaeger_url, as_json=as_json)


@show.command()
def window(
    session: Annotated[str, typer.Argument(help="A session's id.")],
    url: Annotated[str, typer.Option(help="Where the worker is.")] = "http://127.0.0.1:8000",
    as_json: AsJson = False,
) -> None:
    """Show the token window of a session to its owner: set OTELCTX_API_KEY to the key that it was made with."""
    with failing():
        from otelctx.cli.window import show as show_window

        show_window(session, url, as_json=as_json)
