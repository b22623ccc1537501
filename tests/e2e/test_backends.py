"""SDK → collector → Jaeger, read back through Jaeger's APIs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Link, Span, SpanKind, Tracer

from otelctx import semconv
from otelctx.testing.backends import Collector, Jaeger
from otelctx.testing.receiver import OtlpReceiver

pytestmark = pytest.mark.e2e
COLLECTOR = Path(__file__).parents[2] / "collector"
Exporting = Callable[[str, str], Tracer]


def id_of(span: Span) -> str:
    return f"{span.get_span_context().trace_id:032x}"


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {a["key"]: a["value"] for a in attributes}


def test_a_trace_reaches_jaeger_whole(collector: Collector, jaeger: Jaeger, exporting: Exporting) -> None:
    """By the UI's API parents, kinds and events; by the OTLP one exact types, links, scope and nanoseconds."""
    tracer = exporting(collector.endpoint, "round-trip")
    with tracer.start_as_current_span("elsewhere") as other:
        pass
    link = Link(other.get_span_context())
    with tracer.start_as_current_span("parent", kind=SpanKind.SERVER, links=[link]) as parent:
        parent.set_attributes({semconv.OVERFLOW: True, semconv.WINDOW_USED: 384, "share": 0.5, "tags": ["a", "b"]})
        parent.add_event(
            semconv.EVENT_TRUNCATION,
            {semconv.TOKENS_BEFORE: 600, semconv.TOKENS_AFTER: 384},
            timestamp=1_800_000_000_123_456_789,
        )
        with tracer.start_as_current_span("child"):
            pass
    spans = {s["operationName"]: s for s in jaeger.wait_for(id_of(parent), lambda spans: len(spans) == 2)}
    assert spans["child"]["references"][0]["spanID"] == spans["parent"]["spanID"]
    assert spans["parent"]["service"] == "round-trip"
    assert spans["parent"]["attributes"]["span.kind"] == "server"
    (log,) = spans["parent"]["logs"]
    fields = {f["key"]: f["value"] for f in log["fields"]}
    assert (fields["event"], fields[semconv.TOKENS_BEFORE]) == (semconv.EVENT_TRUNCATION, 600)

    resources = jaeger.get(f"/api/v3/traces/{id_of(parent)}")["result"]["resourceSpans"]
    assert all(
        plain(r["resource"]["attributes"])["deployment.environment.name"]["stringValue"] == "dev" for r in resources
    )
    scopes = [scope for resource in resources for scope in resource["scopeSpans"]]
    assert all(scope["scope"] == {"name": "test", "version": "1.0"} for scope in scopes)
    exact = {s["name"]: s for scope in scopes for s in scope["spans"]}["parent"]
    attributes = plain(exact["attributes"])
    assert attributes[semconv.OVERFLOW] == {"boolValue": True}
    assert attributes[semconv.WINDOW_USED] == {"intValue": "384"}
    assert attributes["share"] == {"doubleValue": 0.5}
    assert attributes["tags"] == {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}
    assert exact["links"][0]["traceId"] == id_of(other)
    assert exact["events"][0]["timeUnixNano"] == "1800000000123456789"


def test_what_jaegers_search_finds(collector: Collector, jaeger: Jaeger, exporting: Exporting) -> None:
    """Attributes of spans and of events, typed values as strings; all of them on one span."""
    tracer = exporting(collector.endpoint, "searched")
    with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child") as child:
        root.set_attribute(semconv.OUTCOME, "length")
        child.set_attribute(semconv.OVERFLOW, True)
        child.add_event(semconv.EVENT_TRUNCATION, {semconv.TOKENS_BEFORE: 600})
    jaeger.wait_for(id_of(root), lambda spans: len(spans) == 2)
    found = [id_of(root)]
    assert jaeger.search("searched") == found
    assert jaeger.search("searched", {semconv.OVERFLOW: "true", semconv.TOKENS_BEFORE: "600"}) == found
    assert jaeger.search("searched", {semconv.OUTCOME: "length"}) == found
    assert jaeger.search("searched", {semconv.OUTCOME: "length", semconv.OVERFLOW: "true"}) == []
    assert jaeger.search("searched", {semconv.OVERFLOW: "false"}) == []


def test_secrets_are_masked_before_they_leave(collector: Collector, jaeger: Jaeger, exporting: Exporting) -> None:
    tracer = exporting(collector.endpoint, "secrets")
    with tracer.start_as_current_span("s") as span:
        span.set_attribute("note", "mail me at someone@example.org")
        span.set_attribute("http.request.header.authorization", "Bearer abc")
        span.set_attribute(semconv.GEN_AI_INPUT_TOKENS, 17)
        span.add_event("e", {"key": "sk-abcdefghijklmnopqrstuvwx", "text": "y" * 20_000})
    (seen,) = jaeger.wait_for(id_of(span), lambda spans: len(spans) == 1)
    text = json.dumps(seen)
    assert "example.org" not in text
    assert "Bearer" not in text
    assert "sk-abc" not in text
    assert "mail me at ****" in text
    assert seen["attributes"][semconv.GEN_AI_INPUT_TOKENS] == 17
    assert {f["key"]: len(str(f["value"])) for f in seen["logs"][0]["fields"]}["text"] == 8192


def test_a_span_that_is_too_big_is_cut(collector: Collector, jaeger: Jaeger, exporting: Exporting) -> None:
    """Without an event, too; and what sampling looks at stays."""
    tracer = exporting(collector.endpoint, "big")
    many = {f"a{n:03}": n for n in range(200)}
    with tracer.start_as_current_span("s", attributes={"a": "x" * 20_000, **many, semconv.OVERFLOW: True}) as span:
        pass
    jaeger.wait_for(id_of(span), lambda spans: len(spans) == 1)
    (resource,) = jaeger.get(f"/api/v3/traces/{id_of(span)}")["result"]["resourceSpans"]
    attributes = plain(resource["scopeSpans"][0]["spans"][0]["attributes"])
    assert len(attributes) == 128
    assert len(attributes["a"]["stringValue"]) == 8192
    assert attributes[semconv.OVERFLOW] == {"boolValue": True}


def test_an_unknown_trace_is_none_and_an_unknown_path_an_error(jaeger: Jaeger) -> None:
    assert jaeger.trace("0" * 31 + "1") == []
    with pytest.raises(RuntimeError, match="html"):
        jaeger.get("/api/nothing-here")


def test_jaegers_upload_takes_what_the_embedded_receiver_writes(
    jaeger: Jaeger, exporting: Exporting, tmp_path: Path
) -> None:
    with OtlpReceiver() as receiver:
        tracer = exporting(receiver.endpoint, "uploaded")
        with tracer.start_as_current_span("root", kind=SpanKind.SERVER) as root:
            root.add_event(semconv.EVENT_OVERFLOW, {semconv.TOKENS_LIMIT: 512})
            with tracer.start_as_current_span("child"):
                pass
        receiver.wait_for(lambda spans: len(spans) == 2)
        document = receiver.write_json(tmp_path / "traces.json").read_bytes()
    (trace,) = jaeger.query.transform(document)["data"]
    assert trace["traceID"] == id_of(root)
    spans = {s["operationName"]: s for s in trace["spans"]}
    assert spans["child"]["references"][0]["spanID"] == spans["root"]["spanID"]
    assert {"key": "span.kind", "type": "string", "value": "server"} in spans["root"]["tags"]
    fields = {f["key"]: f["value"] for f in spans["root"]["logs"][0]["fields"]}
    assert fields == {"event": semconv.EVENT_OVERFLOW, semconv.TOKENS_LIMIT: 512}


def test_what_waits_in_the_queue_outlives_the_collector(
    start_collector: Callable[..., Collector], jaeger: Jaeger, exporting: Exporting, tmp_path: Path, refused: str
) -> None:
    """Jaeger is away, the collector is stopped: the next one delivers."""
    first = start_collector(tmp_path, to=refused.removeprefix("http://"))
    with exporting(first.endpoint, "queued").start_as_current_span("waiting") as span:
        pass
    first.close()  # decides about the traces that wait, and puts them into the queue
    assert jaeger.trace(id_of(span)) == []
    start_collector(tmp_path)
    jaeger.wait_for(id_of(span), lambda spans: len(spans) == 1)


APP = """
import sys
import httpx, otelctx
from opentelemetry import trace
handle = otelctx.configure("survivor")
ids = []
async def app(scope, receive, send):
    ids.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})
async def requests(n):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(otelctx.wrap(app)), base_url="http://app") as client:
        return [(await client.get("/")).status_code for _ in range(n)]
import asyncio
print(asyncio.run(requests(1)), ids[0], flush=True)
sys.stdin.readline()
print(asyncio.run(requests(20)) == [200] * 20, flush=True)
"""


def test_a_service_does_not_notice_that_the_collector_goes(
    start_collector: Callable[..., Collector], jaeger: Jaeger
) -> None:
    """The same answers, one warning, and an end in bounded time."""
    collector = start_collector()
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", APP],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as service:
        try:
            assert service.stdout is not None
            status, trace_id = service.stdout.readline().rsplit(maxsplit=1)
            assert status == "[200]"
            jaeger.wait_for(trace_id, lambda spans: len(spans) == 1)
            collector.close()
            out, err = service.communicate("go on\n", timeout=300)
        finally:
            service.kill()
    assert (out, service.returncode) == ("True\n", 0), err
    assert "Traceback" not in err
    assert err.count("telemetry does not reach its collector") <= 1


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("otelctx-collector", ["otelctx-collector.yaml"]),
        ("otelctx-collector", ["otelctx-collector.yaml", "with-prometheus.yaml"]),
        ("jaeger", ["jaeger.yaml"]),
    ],
)
def test_the_built_binary_validates_every_shipped_configuration(
    backends: dict[str, Path], name: str, files: list[str], tmp_path: Path
) -> None:
    options = [option for file in files for option in ("--config", str(COLLECTOR / file))]
    command = [str(backends[name]), "validate", *options]
    done = subprocess.run(command, env={"OTELCTX_STATE_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr


def test_the_fixtures_redis_answers(redis_server: Any) -> None:
    assert redis_server.ask(b"ECHO hello") == b"$5\r\nhello\r\n"
