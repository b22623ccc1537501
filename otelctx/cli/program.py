"""The commands and their options. What they do is imported when they are called: ``--help`` loads no model library."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from otelctx.cli.failing import failing
from otelctx.cli.leaving import LEAVING
from otelctx.cli.showing import AsJson, show

__all__ = ["main", "program"]

program = typer.Typer(
    name="otelctx",
    help="Trace and session context for LLM services, and every context-window event over OTLP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
program.add_typer(show, name="show")

Lines = Annotated[bool, typer.Option("--json", help="Say what it does as lines of JSON.")]


class WhenFull(StrEnum):
    """What happens when a session's window is full."""

    turns = "turns"
    slide = "slide"
    reject = "reject"


def main() -> None:
    """Entry point. Exits 0, 1 if the command failed, or 2 if it was called wrongly."""
    with LEAVING.at_the_end():
        program()


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
    ttft_target: Annotated[
        float,
        typer.Option(
            "--ttft-target",
            min=0.001,
            metavar="SECONDS",
            help="Target for the time to the first token. Beyond it answers are capped, then long requests must be "
            "streamed, then those of low priority are shed.",
        ),
    ] = 10.0,
    as_json: Lines = False,
) -> None:
    """Serve a model over OpenAI's API, traced, with token windows."""
    with failing():
        from otelctx.cli.options import Options
        from otelctx.cli.serve import run

        told = (name, service_name, threads, drain, ttft_target, as_json)
        run(Options(model, host, port, window, rows, when_full.value, *told))


@program.command()
def gateway(
    upstream: Annotated[list[str], typer.Option(help="URL of a worker; give it once for each.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    service_name: Annotated[str, typer.Option(help="service.name in telemetry.")] = "otelctx-gateway",
    load_bound: Annotated[
        float, typer.Option(min=1, help="Times the average load at which a session goes elsewhere; 'inf' for never.")
    ] = 1.25,
    connect_timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to reach a worker.")] = 5.0,
    read_timeout: Annotated[float, typer.Option(min=0.01, help="Seconds in which a worker says something.")] = 300.0,
    total_timeout: Annotated[float, typer.Option(min=0, help="Seconds for a whole request; 0 for no end.")] = 0.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that running requests get when stopped.")] = 30.0,
    health_path: Annotated[
        str, typer.Option(help="Path by which workers are checked; empty for no checks.")
    ] = "/readyz",
    health_interval: Annotated[float, typer.Option(min=0.1, help="Seconds between checks.")] = 5.0,
    max_body: Annotated[int, typer.Option(min=0, help="Bytes of a request's body.")] = 64 * 2**20,
    as_json: Lines = False,
) -> None:
    """Be the edge in front of workers: strangers' W3C context outside, signed frames inside, sessions routed."""
    with failing():
        from otelctx.cli.gateway import Listen, options, run

        listen = Listen(host, port, service_name, drain, as_json)
        timeouts = (connect_timeout, read_timeout, total_timeout)
        run(upstream, listen, options(load_bound, timeouts, (health_path, health_interval), max_body))


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
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON; the story goes to stderr.")] = False,
    tamper: Annotated[
        str | None, typer.Option(help="Self-test: miscount this ('tokens' or 'bytes'), which must fail.", hidden=True)
    ] = None,
) -> None:
    """One traced conversation through three processes, told as it happens. Exits 1 if anything is not as it should."""
    with failing():
        from otelctx.demo.story import run

        raise typer.Exit(run(jaeger=jaeger, jaeger_url=jaeger_url, keep=keep, as_json=as_json, tamper=tamper))


@program.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this environment: versions, extras, keys, collector, model cache. Exits 1 if something is wrong."""
    with failing():
        from otelctx.cli.doctor import run

        raise typer.Exit(run(as_json=as_json))
