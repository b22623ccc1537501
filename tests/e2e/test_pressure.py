"""A worker that can't keep its target, in a process of its own: what its clients see, and what stands in Jaeger."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import otelctx
from otelctx import semconv
from otelctx.demo.processes import Process, python
from otelctx.demo.stage import MODEL, environment
from otelctx.exchange.node import Node
from otelctx.settings import Settings
from otelctx.testing.backends import Collector, Jaeger

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(1200)]

READY = re.compile(r"ready: .* at http://([\d.]+):(\d+)/v1")
CHAT = f"chat {MODEL}"
PRIORITY = otelctx.ContextKey("request.priority", int)
LONG = "The fjord was deep and the mountain was high, and the boat went on. " * 8  # more than 64 tokens


@dataclass
class Caller:
    http: httpx.AsyncClient
    traces: dict[str, str] = field(default_factory=dict)
    answers: dict[str, httpx.Response] = field(default_factory=dict)

    async def post(self, name: str, text: str = "Hello", **options: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1} | options
        trace = secrets.token_hex(16)
        answer = await self.http.post(
            "chat/completions",
            json={key: value for key, value in body.items() if value is not None},
            headers={"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"},
        )
        self.traces[name], self.answers[name] = trace, answer
        return answer

    async def climb(self, level: int) -> None:
        """Ask until the answer says so: a period takes ten seconds, and twenty first tokens."""
        end = time.monotonic() + 120
        while (await self.post("climbing")).json()["otelctx"]["window"]["level"] < level:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def played(start_collector: Callable[..., Collector]) -> Caller:
    """Nothing but what there is a reason for is kept, and no first token comes within a millisecond."""
    collector = start_collector(sampling_percentage=0)
    env = environment({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}, inherit=False)

    async def play() -> Caller:
        serve = ("serve", MODEL, "--port", "0", "--window", "256", "--rows", "2", "--ttft-target", "0.001")
        worker = Process("the worker", python("-m", "otelctx.cli", *serve), env | {"OTEL_SERVICE_NAME": "pressed"})
        await worker.start(READY, lambda line: None, within=300)
        try:
            assert worker.address is not None
            host, port = worker.address
            client = httpx.AsyncClient(base_url=f"http://{host}:{port}/v1/", timeout=120)
            async with otelctx.instrument(client, node=Node(Settings(keys=env["OTELCTX_KEYS"]))) as http:
                caller = Caller(http)
                await caller.post("calm")
                await caller.climb(1)
                await caller.post("capped", "Tell me a story.", max_tokens=None)
                await caller.climb(2)
                await caller.post("long", LONG)
                await caller.climb(3)
                with otelctx.session("e2e-shed"), PRIORITY.bound(-1):
                    await caller.post("shed")
        finally:
            await worker.stop()
        return caller

    return asyncio.run(play())


def chat_of(spans: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [s for s in spans if s["operationName"] == CHAT]
    return found


@pytest.mark.parametrize(
    ("name", "status", "action", "level"),
    [("capped", 200, "max_tokens", 1), ("long", 422, "stream", 2), ("shed", 503, "shed", 3)],
)
def test_what_was_done_to_a_turn_is_an_event_in_jaeger(
    played: Caller, jaeger: Jaeger, name: str, status: int, action: str, level: int
) -> None:
    assert played.answers[name].status_code == status
    spans = jaeger.wait_for(
        played.traces[name], lambda spans: {CHAT, "POST /v1/chat/completions"} <= {s["operationName"] for s in spans}
    )
    chat = chat_of(spans)
    assert chat["attributes"][semconv.DEGRADED] is True
    assert chat["attributes"][semconv.PRESSURE_LEVEL] == level
    assert chat["attributes"][semconv.OUTCOME] == ("length" if status == 200 else "shed")
    (log,) = chat["logs"]
    event = {f["key"]: f["value"] for f in log["fields"]}
    assert event["event"] == semconv.EVENT_DEGRADATION
    assert event[semconv.ACTION] == action
    assert (event[semconv.REASON], event[semconv.PRESSURE_SIGNAL]) == ("turn", "latency")
    assert event[semconv.PRESSURE_LEVEL] == level
    assert event[semconv.PRESSURE_VALUE] >= 1


def test_the_answer_says_it_too(played: Caller) -> None:
    capped = played.answers["capped"].json()
    assert capped["usage"]["completion_tokens"] == 32
    assert (capped["otelctx"]["degraded"], capped["otelctx"]["window"]["level"]) == ("max_tokens", 1)
    assert played.answers["long"].json()["error"]["code"] == "stream_required"
    assert played.answers["shed"].headers["retry-after"] == "10"


def test_a_turn_to_which_nothing_was_done_is_not_kept_for_it(played: Caller, jaeger: Jaeger) -> None:
    """Under pressure the traces that are kept are those with something to say."""
    jaeger.wait_for(played.traces["shed"], lambda spans: any(s["operationName"] == CHAT for s in spans))
    for name in ("calm", "climbing"):
        assert jaeger.trace(played.traces[name]) == []
