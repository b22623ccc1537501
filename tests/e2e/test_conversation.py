"""A conversation through three real processes, the real collector and the real Jaeger, read back by Jaeger's API."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import otelctx
from otelctx import semconv
from otelctx.delta.codec import decode_ack, from_header, split_mac
from otelctx.delta.messages import Ack
from otelctx.demo.stage import MODEL, Stage, environment, staged
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing.backends import Collector, Jaeger

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(1200)]

LONG = "The fjord was deep and the mountain was high, and the boat went on. " * 17  # about 290 tokens
SERVER = "POST /v1/chat/completions"
CHAT = f"chat {MODEL}"
RESET = struct.pack("ii", 1, 0)
SPENT = otelctx.UpKey("usage.tokens.output", int, rule="sum")


@dataclass
class Step:
    trace_id: str
    status: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    spent: int = 0
    acks: list[Ack] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)

    def span(self, name: str, service: str) -> dict[str, Any]:
        (found,) = [s for s in self.spans if s["operationName"] == name and s["service"] == service]
        return found


class Caller:
    def __init__(self, stage: Stage, env: dict[str, str], endpoint: str) -> None:
        self.stage = stage
        self.provider = TracerProvider(resource=Resource({"service.name": "client"}), shutdown_on_exit=False)
        self.provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=True), schedule_delay_millis=200)
        )
        self.tracer = self.provider.get_tracer("test")
        self.client = otelctx.instrument(
            httpx.AsyncClient(base_url=f"{stage.outer.url}/v1/", timeout=300),
            node=Node(Settings(keys=env["OTELCTX_KEYS"])),
            tracer_provider=self.provider,
        )

    async def step(self, send: Callable[[Step, dict[str, Any]], Any], text: str, **options: Any) -> Step:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **options}
        with self.tracer.start_as_current_span("step") as span:
            step = Step(f"{span.get_span_context().trace_id:032x}")
            before = SPENT.get() or 0
            await send(step, body)
            step.spent = (SPENT.get() or 0) - before
        for exchange in self.stage.outer.of(step.trace_id):
            if exchange.ack is not None:
                step.acks.append(decode_ack(split_mac(from_header(exchange.ack))[0]))
        return step

    async def post(self, step: Step, body: dict[str, Any]) -> None:
        answer = await self.client.post("chat/completions", json=body)
        step.status, step.body = answer.status_code, answer.json()

    async def vanish(self, step: Step, body: dict[str, Any]) -> None:
        """Read two pieces of a stream, then reset the connection, as a killed process does."""
        async with self.client.stream("POST", "chat/completions", json=body | {"stream": True}) as answer:
            step.status, pieces = answer.status_code, 0
            async for line in answer.aiter_lines():
                pieces += '"content":"' in line
                if pieces > 2:
                    break
            sock: socket.socket = answer.extensions["network_stream"].get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


async def play(collector: Collector) -> dict[str, Step]:
    env = environment({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}, inherit=False)
    async with staged(env, lambda line: None) as stage:
        caller = Caller(stage, env, collector.endpoint)
        with otelctx.session("e2e-conversation"):
            steps = {
                "plain": await caller.step(caller.post, "Hello!", max_completion_tokens=8),
                "long": await caller.step(caller.post, LONG, max_completion_tokens=8),
                "truncated": await caller.step(caller.post, LONG, max_completion_tokens=8),
                "too long": await caller.step(caller.post, LONG * 3, max_completion_tokens=8),
                "gone": await caller.step(caller.vanish, "Tell me a story.", max_completion_tokens=150),
                "after": await caller.step(caller.post, "Goodbye.", max_completion_tokens=8),
            }
        await caller.client.aclose()
        caller.provider.shutdown()
    return steps


@pytest.fixture(scope="module")
def steps(collector: Collector, jaeger: Jaeger) -> Iterator[dict[str, Step]]:
    played = asyncio.run(play(collector))
    for step in played.values():
        step.spans = jaeger.wait_for(step.trace_id, complete)
    return played


def complete(spans: list[dict[str, Any]]) -> bool:
    """What ends last in each of the three processes is there; each exports by itself, in its own time."""
    last = {("client", "step"), ("frontend", SERVER), ("worker", SERVER), ("worker", CHAT)}
    return last <= {(s["service"], s["operationName"]) for s in spans}


def parents(step: Step) -> dict[str, str]:
    """``service: name`` of each span → of its parent."""
    names = {s["spanID"]: f"{s['service']}: {s['operationName']}" for s in step.spans}
    return {
        names[s["spanID"]]: names[next(r["spanID"] for r in s["references"])] for s in step.spans if s["references"]
    }


def events(span: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = [{f["key"]: f["value"] for f in log["fields"]} for log in span["logs"] or ()]
    assert len({e["event"] for e in found}) == len(found)  # each kind once
    return {e.pop("event"): e for e in found}


def test_one_trace_goes_from_the_client_to_the_decode_step_and_nothing_is_there_twice(steps: dict[str, Step]) -> None:
    step = steps["plain"]
    assert step.status == 200
    assert parents(step) == {
        "client: POST": "client: step",
        f"frontend: {SERVER}": "client: POST",
        "frontend: POST": f"frontend: {SERVER}",
        f"worker: {SERVER}": "frontend: POST",
        f"worker: {CHAT}": f"worker: {SERVER}",
        "worker: queue": f"worker: {CHAT}",
        "worker: prefill": f"worker: {CHAT}",
        "worker: decode": f"worker: {CHAT}",
    }
    assert len(step.spans) == 9
    kinds = {f"{s['service']}: {s['operationName']}": s["attributes"].get("span.kind", "internal") for s in step.spans}
    assert kinds["client: POST"] == kinds["frontend: POST"] == "client"
    assert kinds[f"frontend: {SERVER}"] == kinds[f"worker: {SERVER}"] == "server"
    assert kinds[f"worker: {CHAT}"] == "internal"


def test_each_service_knows_the_session_and_the_route(steps: dict[str, Step]) -> None:
    for step in steps.values():
        for service in ("frontend", "worker"):
            attributes = step.span(SERVER, service)["attributes"]
            assert attributes["session.id"] == "e2e-conversation"
            assert attributes[semconv.HTTP_ROUTE] == "/v1/chat/completions"
            assert attributes[semconv.CONTEXT_SOURCE] == "frame"


def test_usage_comes_back_in_the_bytes_of_the_frontends_ack(steps: dict[str, Step]) -> None:
    """What the worker counted stands in the ack that the frontend sent, and nowhere had the client to ask for it."""
    for name in ("plain", "long", "truncated"):
        step = steps[name]
        (ack,) = step.acks
        ups = {up.name: up.value for up in ack.ups}
        usage = step.body["usage"]
        assert ups[semconv.USAGE_OUTPUT_TOKENS] == usage["completion_tokens"] == step.spent
        assert ups[semconv.USAGE_INPUT_TOKENS] == usage["prompt_tokens"]
        assert ack.window is not None
        assert (ack.window.used, ack.window.limit) == (step.body["otelctx"]["window"]["used"], 512)
        chat = step.span(CHAT, "worker")["attributes"]
        assert chat[semconv.GEN_AI_OUTPUT_TOKENS] == usage["completion_tokens"]
        assert chat[semconv.GEN_AI_INPUT_TOKENS] == usage["prompt_tokens"]


def test_a_truncation_is_on_the_chat_span_and_once_on_the_workers_server_span(steps: dict[str, Step]) -> None:
    step = steps["truncated"]
    assert step.status == 200
    chat = step.span(CHAT, "worker")
    seen = events(chat)
    truncation = seen[semconv.EVENT_TRUNCATION]
    dropped = step.body["otelctx"]["dropped"]
    assert dropped > 0
    assert truncation[semconv.TOKENS_BEFORE] - truncation[semconv.TOKENS_AFTER] == dropped
    assert truncation[semconv.TOKENS_AFTER] == step.body["usage"]["prompt_tokens"]
    assert truncation[semconv.TOKENS_LIMIT] == 512
    assert truncation[semconv.ACTION] == "turns"
    assert {semconv.EVENT_OVERFLOW, semconv.EVENT_EVICTION} <= set(seen)
    assert events(step.span(SERVER, "worker"))[semconv.EVENT_TRUNCATION] == truncation
    for span in (chat, step.span("prefill", "worker")):
        assert span["attributes"][semconv.TRUNCATED] is True
    assert chat["attributes"][semconv.GEN_AI_COMPACTED] is True
    assert not step.span(SERVER, "frontend")["logs"]


def test_a_prompt_that_is_too_long_is_refused_with_numbers_before_the_model_is_touched(steps: dict[str, Step]) -> None:
    step = steps["too long"]
    assert step.status == 400
    error = step.body["error"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert error["max_context"] == 512
    chat = step.span(CHAT, "worker")
    assert chat["attributes"][semconv.OUTCOME] == "rejected"
    assert chat["attributes"][semconv.OVERFLOW] is True
    assert semconv.EVENT_OVERFLOW in events(chat)
    assert not any(s["operationName"] in ("prefill", "decode") for s in step.spans)
    assert step.span(SERVER, "worker")["attributes"].get("otel.status_code") != "ERROR"


def test_a_client_killed_in_mid_stream_cancels_its_turn_in_the_worker(steps: dict[str, Step]) -> None:
    step = steps["gone"]
    chat = step.span(CHAT, "worker")["attributes"]
    assert chat[semconv.OUTCOME] == "cancelled"
    assert chat[semconv.GEN_AI_OUTPUT_TOKENS] < 150
    for service in ("frontend", "worker"):
        assert step.span(SERVER, service)["attributes"][semconv.DISCONNECTED] is True
    before, after = steps["truncated"].body["otelctx"]["window"], steps["after"].body["otelctx"]["window"]
    assert after["version"] == before["version"] + 1  # the vanished turn left no version behind


def test_every_turn_ends_in_exactly_one_outcome(steps: dict[str, Step]) -> None:
    outcomes = {name: step.span(CHAT, "worker")["attributes"][semconv.OUTCOME] for name, step in steps.items()}
    assert outcomes["too long"] == "rejected"
    assert outcomes["gone"] == "cancelled"
    assert {outcomes[n] for n in ("plain", "long", "truncated", "after")} <= {"completed", "length"}


def test_nothing_of_what_was_said_is_in_the_telemetry(steps: dict[str, Step]) -> None:
    """Prompt content only where it is asked for."""
    for step in steps.values():
        text = json.dumps(step.spans)
        assert "fjord" not in text
        assert "Goodbye" not in text
