"""Where the demo reads exported spans back: the embedded receiver, or Jaeger's query API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final, Protocol

import httpx

from otelctx.errors import ConfigError
from otelctx.testing.receiver import OtlpReceiver
from otelctx.testing.spans import SeenEvent, SeenSpan

__all__ = ["Embedded", "Jaeger", "Source", "from_jaeger", "wait"]

_POLL: Final = 0.1  # seconds


class Source(Protocol):
    """Gives the spans of a trace that have arrived so far."""

    async def spans(self, trace_id: str) -> list[SeenSpan]: ...

    async def close(self) -> None: ...


async def wait(
    source: Source, trace_id: str, complete: Callable[[list[SeenSpan]], bool], within: float
) -> list[SeenSpan]:
    """The spans of ``trace_id`` once ``complete`` says so, or whatever there is after ``within`` seconds."""
    deadline = monotonic() + within
    while True:
        spans = await source.spans(trace_id)
        if complete(spans) or monotonic() > deadline:
            return spans
        await asyncio.sleep(_POLL)


class Embedded:
    """The receiver in this process."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    async def spans(self, trace_id: str) -> list[SeenSpan]:
        return self._receiver.spans(trace_id)

    async def close(self) -> None:
        """The receiver is closed by whoever opened it."""


class Jaeger:
    """Jaeger's query service at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(base_url=self.url, timeout=10)

    async def ready(self) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` if nothing answers there."""
        try:
            (await self._client.get("/api/services")).raise_for_status()
        except httpx.HTTPError as error:
            raise ConfigError(f"Jaeger does not answer at {self.url}: {error}") from None

    async def spans(self, trace_id: str) -> list[SeenSpan]:
        answer = await self._client.get(f"/api/traces/{trace_id}")
        if answer.status_code == 404:
            return []
        return from_jaeger(answer.raise_for_status().json()["data"])

    async def close(self) -> None:
        await self._client.aclose()

    def link(self, trace_id: str) -> str:
        """The page of a trace."""
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
