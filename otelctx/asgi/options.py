"""What a ``ContextMiddleware`` was told, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.asgi.exclude import matcher
from otelctx.asgi.extras import Extras, extras
from otelctx.errors import ConfigError

__all__ = ["Options", "options"]

UntrustedTrace = Literal["continue", "link"]


@dataclass(frozen=True, slots=True)
class Options:
    """``untrusted_trace`` is ``None`` for what the settings say. ``outer``: the span that is joined is that of another
    instrumentation around us. ``extras`` is ``None`` where nothing more than usual is recorded.
    """

    excluded: Callable[[str], bool] | None
    join: bool
    outer: bool
    suppress: bool
    untrusted_trace: UntrustedTrace | None
    metrics: bool
    extras: Extras | None
    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None


def _one_of(name: str, value: object, words: tuple[object, ...]) -> None:
    if value not in words:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}")


def options(
    *,
    excluded: str | Iterable[str],
    server_span: str,
    native: str,
    untrusted_trace: UntrustedTrace | None,
    metrics: bool,
    capture_request_headers: str | Iterable[str],
    capture_response_headers: str | Iterable[str],
    body_sizes: bool,
    metric_hosts: str | Iterable[str],
    tracer_provider: TracerProvider | None,
    meter_provider: MeterProvider | None,
) -> Options:
    """Raises :class:`~otelctx.errors.ConfigError` for a word or pattern that means nothing."""
    _one_of("server_span", server_span, ("new", "join"))
    _one_of("native", native, ("suppress", "keep"))
    _one_of("untrusted_trace", untrusted_trace, (None, "continue", "link"))
    return Options(
        excluded=matcher(excluded),
        join=server_span == "join",
        outer=False,
        suppress=native == "suppress",
        untrusted_trace=untrusted_trace,
        metrics=metrics,
        extras=extras(
            capture_request_headers=capture_request_headers,
            capture_response_headers=capture_response_headers,
            body_sizes=body_sizes,
            metric_hosts=metric_hosts,
        ),
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
    )
