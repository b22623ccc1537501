"""What a ``ContextMiddleware`` was told, checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from otelctx.asgi.exclude import matcher
from otelctx.errors import ConfigError

__all__ = ["Options", "options"]

UntrustedTrace = Literal["continue", "link"]


@dataclass(frozen=True, slots=True)
class Options:
    """``untrusted_trace`` is ``None`` for what the settings say."""

    excluded: Callable[[str], bool] | None
    join: bool
    suppress: bool
    untrusted_trace: UntrustedTrace | None
    metrics: bool
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
        suppress=native == "suppress",
        untrusted_trace=untrusted_trace,
        metrics=metrics,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
    )
