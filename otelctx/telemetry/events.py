"""The one function through which every event goes: span event, counter and the attribute that tail sampling looks at.

An event is put on the span it belongs to and copied once to the SERVER span of this process, so that it is found from
either end. ``mode`` chooses span events, log records or both; span events are on their way to deprecation.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import Any, Final, Literal

from opentelemetry import _logs, trace
from opentelemetry import context as otel_context
from opentelemetry._logs import SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

import otelctx.semconv as semconv
from otelctx.semconv import EVENT_FLAGS, METRICS
from otelctx.telemetry.feed import FEED, Item
from otelctx.telemetry.instruments import NAME, SCHEMA_URL, instruments

__all__ = ["Mode", "emit", "enter_server_span", "record", "server_span", "set_mode", "set_server_span"]

Mode = Literal["span", "log", "both"]
SERVER_SPAN: Final = otel_context.create_key("otelctx-server-span")
# The API keeps the key of the current span to itself, but not the Context that it makes.
SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))

_mode: Mode = "span"


def set_mode(mode: Mode) -> None:
    """How events are emitted from now on, in the whole process. Raises ``ValueError`` for another word."""
    global _mode
    if mode not in ("span", "log", "both"):
        raise ValueError(f"events must be 'span', 'log' or 'both', not {mode!r}")
    _mode = mode


def set_server_span(context: Context, span: Span) -> Context:
    """``context`` with ``span`` as the SERVER span of this process, to which events are copied."""
    return otel_context.set_value(SERVER_SPAN, span, context)


def enter_server_span(context: Context, span: Span) -> Context:
    """``context`` with ``span`` as the current one and as the SERVER span, in one copy: once a request."""
    return Context({**context, SPAN_KEY: span, SERVER_SPAN: span})


def server_span(context: Context | None = None) -> Span | None:
    """The SERVER span of this process in ``context``, by default in the current one."""
    found = otel_context.get_value(SERVER_SPAN, context)
    return found if isinstance(found, Span) else None


def emit(
    name: str,
    attributes: Mapping[str, AttributeValue] | None = None,
    *,
    span: Span | None = None,
    context: Context | None = None,
) -> None:
    """Emit event ``name`` (one of ``semconv.EVENTS``) on ``span``, by default the current span of ``context``.

    Its counter gets one, with those of ``attributes`` that the counter may carry. Raises ``KeyError`` for another name.
    """
    values = dict(attributes) if attributes else {}
    target = span if span is not None else trace.get_current_span(context)
    server = server_span(context)
    counter = semconv.EVENTS[name].counter
    kept = {key: values[key] for key in METRICS[counter].attributes if key in values}
    instruments().event_counter(name).add(1, kept, context)
    flag = EVENT_FLAGS.get(name)
    ids = target.get_span_context()
    for seen in (target,) if server is None or server.get_span_context() == ids else (target, server):
        if seen.is_recording():
            if _mode != "log":
                seen.add_event(name, values)
            if flag is not None:
                seen.set_attribute(flag, True)
    if _mode != "span":
        record(name, values, trace.set_span_in_context(target, context))
    hexed = (trace.format_trace_id(ids.trace_id), trace.format_span_id(ids.span_id)) if ids.is_valid else ("", "")
    FEED.add(Item(time_ns(), name, values, *hexed))


def record(name: str, attributes: Mapping[str, Any], context: Context) -> None:
    """Event ``name`` as a log record, with the ids of the span in ``context``. It has no counter and is in no feed."""
    _logs.get_logger(NAME, schema_url=SCHEMA_URL).emit(
        timestamp=time_ns(),
        context=context,
        severity_number=SeverityNumber.INFO,
        attributes=attributes,
        event_name=name,
    )
