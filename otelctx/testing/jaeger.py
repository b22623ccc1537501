"""Traces out of Jaeger's query service, as plain values."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import Any, Final

from otelctx.errors import ConfigError
from otelctx.testing.spans import SeenEvent, SeenSpan

__all__ = ["JaegerQuery", "fetch", "from_jaeger"]

# A proxy of the environment has no business with the loopback.
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, body: bytes | None = None) -> tuple[int, str, bytes]:
    """Status, content type and body of a GET, or of a POST of JSON if there is a ``body``; status 0 if nothing
    answers."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"} if body is not None else {})
    try:
        with _direct.open(request, timeout=10) as answer:
            return answer.status, answer.headers.get("content-type", ""), answer.read()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.headers.get("content-type", ""), exc.read()
    except (OSError, ValueError, OverflowError, HTTPException):  # the rest: no HTTP there, or no such port
        return 0, "", b""


class JaegerQuery:
    """The HTTP API of the Jaeger at ``url``, as its own UI uses it. Blocks while it asks."""

    def __init__(self, url: str) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` for what is no http or https URL."""
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:
            parts = urllib.parse.urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no URL of a Jaeger: write one like http://localhost:16686")
        self.url = url.rstrip("/")

    def ready(self) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` if no Jaeger answers there."""
        status, kind, _ = fetch(f"{self.url}/api/services")
        if status == 0:
            raise ConfigError(f"Jaeger does not answer at {self.url}")
        if status != 200 or "html" in kind:
            raise ConfigError(f"what answers at {self.url} is no Jaeger: HTTP {status} {kind}")

    def get(self, path: str, **query: str) -> Any:
        """JSON of an API path, or ``None`` for 404. Raises ``RuntimeError`` for what is no JSON: an unknown
        path is answered with 200 and the UI's page."""
        return _json(path, *fetch(f"{self.url}{path}?{urllib.parse.urlencode(query)}"))

    def transform(self, document: bytes) -> Any:
        """What the UI's upload makes of an OTLP/JSON document: traces in the shape of :meth:`get`'s ``/api/traces``.

        Raises ``RuntimeError`` with Jaeger's answer if it refuses it.
        """
        return _json("/api/transform", *fetch(f"{self.url}/api/transform", document))

    def spans(self, trace_id: str) -> list[SeenSpan]:
        """Spans of a trace that have arrived; empty if there is no such trace."""
        found = self.get(f"/api/traces/{trace_id}")
        return from_jaeger(found["data"]) if found else []

    def link(self, trace_id: str) -> str:
        """The page of a trace in the UI."""
        return f"{self.url}/trace/{trace_id}"


def from_jaeger(traces: Iterable[dict[str, Any]]) -> list[SeenSpan]:
    """Spans in the JSON of Jaeger's ``/api/traces``, whose times are microseconds."""
    found: list[SeenSpan] = []
    for trace in traces:
        services = {key: process["serviceName"] for key, process in trace["processes"].items()}
        for span in trace["spans"]:
            tags = {tag["key"]: tag["value"] for tag in span["tags"]}
            found.append(
                SeenSpan(
                    trace_id=span["traceID"],
                    span_id=span["spanID"],
                    parent_id=next((r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"), ""),
                    service=services[span["processID"]],
                    name=span["operationName"],
                    kind=str(tags.pop("span.kind", "internal")).upper(),
                    start=span["startTime"] * 1000,
                    end=(span["startTime"] + span["duration"]) * 1000,
                    status=str(tags.get("otel.status_code", "UNSET")),
                    attributes=tags,
                    events=tuple(_event(log) for log in span.get("logs") or ()),
                )
            )
    return found


def _event(log: dict[str, Any]) -> SeenEvent:
    fields = {item["key"]: item["value"] for item in log["fields"]}
    return SeenEvent(str(fields.pop("event", "")), log["timestamp"] * 1000, fields)


def _json(path: str, status: int, kind: str, body: bytes) -> Any:
    if status == 404:
        return None
    # What is JSON comes as application/json from one API and as text/plain from the other.
    if status != 200 or "html" in kind:
        raise RuntimeError(f"{path} answered {status} {kind}: {body[:200]!r}")
    return json.loads(body)
