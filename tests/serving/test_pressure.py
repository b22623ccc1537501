"""Pressure as a client over HTTP sees it: a real server around a real engine, on a clock that the test turns."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import otelctx
from otelctx.delta.codec import decode_ack, from_header, split_mac
from otelctx.exchange.node import Node
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.settings import Settings

KEYS = Settings(keys=f"1@test:{base64.b64encode(bytes(range(32))).decode()}")
PRIORITY = otelctx.ContextKey("request.priority", int)
LONG = "word " * 40


class Worker:
    """A served engine whose steps take ``pace`` seconds of its own clock each."""

    def __init__(self, model: Path) -> None:
        self.now, self.pace, self.url = 1000.0, 0.0, ""
        loaded = load(str(model), cache_dir=model.parent, progress=lambda text, share: None)
        self.engine = TransformersEngine(
            loaded.model, loaded.tokenizer, window=256, rows=2, name="tiny", eos_ids=(), clock=lambda: self.now
        )
        real = self.engine._runner.step

        def step(work: Any) -> Any:
            self.now += self.pace
            return real(work)

        self.engine._runner.step = step  # type: ignore[method-assign]

    def body(self, text: str = "x", **options: Any) -> dict[str, Any]:
        return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **options}

    def post(self, text: str = "x", **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=self.body(text, **options), timeout=60)

    def climb(self, level: int) -> None:
        while self.engine._ladder.level < level:
            self.pace = 25.0
            for _ in range(20):
                assert self.post().status_code == 200
            self.pace = 0.0
            self.post()


@pytest.fixture
def worker(tiny_model: Path, served: Callable[..., Any]) -> Iterator[Worker]:
    made = Worker(tiny_model)
    with served(made.engine, node=Node(KEYS)) as made.url:
        yield made


def client(worker: Worker) -> httpx.Client:
    return otelctx.instrument(httpx.Client(base_url=worker.url, timeout=60), node=Node(KEYS))


def test_an_answer_says_the_level_and_what_was_taken_from_it(worker: Worker) -> None:
    calm = worker.post(max_tokens=40).json()
    assert (calm["otelctx"]["window"]["level"], calm["otelctx"]["degraded"]) == (0, None)
    worker.climb(1)
    body = worker.post(max_tokens=40).json()
    assert body["usage"]["completion_tokens"] == 32
    assert body["choices"][0]["finish_reason"] == "length"
    assert (body["otelctx"]["limit"], body["otelctx"]["degraded"]) == ("output", "max_tokens")
    assert body["otelctx"]["window"]["level"] == 1
    last = worker.post(max_tokens=40, stream=True).text.split("\n\n")[-3]
    assert '"level":1' in last
    assert '"degraded":"max_tokens"' in last


def test_the_level_comes_back_in_the_ack_to_the_callers_session(worker: Worker) -> None:
    with client(worker) as http, otelctx.session("chat-1") as session:
        for level in (0, 1):
            worker.climb(level)
            answer = http.post("/v1/chat/completions", json=worker.body())
            ack = decode_ack(split_mac(from_header(answer.headers["otelctx-ack"]))[0])
            assert ack.window is not None
            assert ack.window.level == level
            assert session.window is not None
            assert session.window.level == level


def test_at_level_2_a_long_request_for_json_is_refused_and_the_same_is_served_as_a_stream(worker: Worker) -> None:
    worker.climb(2)
    refused = worker.post(LONG)
    error = refused.json()["error"]
    assert refused.status_code == 422
    assert (error["code"], error["type"], error["param"]) == ("stream_required", "invalid_request_error", "stream")
    assert (error["max_prompt_tokens"], error["level"], error["signal"]) == (64, 2, "latency")
    assert '"stream": true' in error["message"]
    assert worker.post(LONG, stream=True).headers["content-type"].startswith("text/event-stream")
    short = worker.post()
    assert (short.status_code, short.headers["content-type"]) == (200, "application/json")
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="k", max_retries=0) as official:
        with pytest.raises(openai.UnprocessableEntityError) as seen:
            official.chat.completions.create(model="tiny", messages=[{"role": "user", "content": LONG}], max_tokens=1)
        assert seen.value.code == "stream_required"


def test_at_level_3_a_caller_of_low_priority_is_told_when_to_come_back(worker: Worker) -> None:
    worker.climb(3)
    with client(worker) as http:
        for priority, status in ((-1, 503), (0, 200), (1, 200)):
            with otelctx.session(f"priority {priority}"), PRIORITY.bound(priority):
                answer = http.post("/v1/chat/completions", json=worker.body())
            assert answer.status_code == status
            if status == 503:
                assert answer.headers["retry-after"] == "10"
                assert (answer.json()["error"]["code"], answer.json()["error"]["level"]) == ("overloaded", 3)
        with otelctx.session("exempt"), PRIORITY.bound(1):
            long = http.post("/v1/chat/completions", json=worker.body(LONG, max_tokens=35))
        assert (long.status_code, long.json()["usage"]["completion_tokens"]) == (200, 35)


def test_a_quiet_worker_serves_everybody_again(worker: Worker) -> None:
    worker.climb(3)
    levels = []
    for _ in range(4):
        worker.now += 10
        levels.append(worker.post().json()["otelctx"]["window"]["level"])
    assert levels[-1] == 0
    assert worker.post(LONG).status_code == 200
