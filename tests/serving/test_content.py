"""Nothing of a prompt is in any telemetry: spans, their events and statuses, metrics, log records, the feed of events.

Whoever serves a model sees what people tell it; whoever runs the collector is somebody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelctx.errors import Overloaded, TokenLimitExceeded
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.telemetry.feed import FEED
from otelctx.testing import Captured, capture
from otelctx.testing.fake_engine import FakeEngine

MARK = "xyzzy-plugh"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def spoken(text: Any, **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **more}


# What a client may send, well-formed and not, with the words in every place that holds words of people.
REQUESTS: dict[str, tuple[str, Any]] = {
    "message": (CHAT, spoken(MARK)),
    "stream": (CHAT, spoken(MARK, stream=True)),
    "system": (CHAT, {"model": "fake", "messages": [{"role": "system", "content": MARK}]}),
    "parts": (CHAT, spoken([{"type": "text", "text": MARK}])),
    "name": (CHAT, {"model": "fake", "messages": [{"role": "user", "content": "x", "name": MARK}]}),
    "too long": (CHAT, spoken(f"{MARK} " * 200)),
    "stop": (CHAT, spoken("x", stop=[MARK])),
    "surrogate": (CHAT, rb'{"model":"fake","messages":[{"role":"user","content":"xyzzy-plugh \ud800"}]}'),
    "not JSON": (CHAT, f'{{"messages": "{MARK}'.encode()),
    "content of a wrong type": (CHAT, spoken({"text": MARK})),
    "part of a wrong type": (CHAT, spoken([{"type": "image_url", "image_url": {"url": MARK}}])),
    "unknown role": (CHAT, {"model": "fake", "messages": [{"role": MARK, "content": "x"}]}),
    "unknown field": (CHAT, spoken("x", **{MARK: 1})),
    "unsupported field": (CHAT, spoken("x", tools=[{"type": "function", "function": {"name": MARK}}])),
    "session and words": (CHAT, spoken(MARK, otelctx={"session": "s", "mode": "append"})),
    "prompt": (TEXT, {"model": "fake", "prompt": MARK}),
    "prompts": (TEXT, {"model": "fake", "prompt": [MARK, MARK]}),
}


def everything(seen: Captured, logged: str) -> str:
    metrics = [seen.metrics(key.metric) for key, _ in seen._changed()]
    return "\n".join(map(repr, (seen.spans, seen.logs, metrics, FEED.recent(), logged)))


@pytest.fixture(params=["answers", "is overloaded", "refuses", "breaks", "breaks off"])
def engine(request: pytest.FixtureRequest) -> FakeEngine:
    return {
        "answers": lambda: FakeEngine(reply=(MARK, MARK)),
        "is overloaded": lambda: FakeEngine(refuse=Overloaded("busy")),
        "refuses": lambda: FakeEngine(refuse=TokenLimitExceeded("too long", n_prompt_tokens=9, max_context=4)),
        "breaks": lambda: FakeEngine(refuse=RuntimeError("broken")),
        "breaks off": lambda: FakeEngine(fail=RuntimeError("broken"), fail_after=1),
    }[request.param]()


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_word_of_a_request_or_an_answer_is_in_any_telemetry(
    otelctx_capture: Captured, direct: Any, engine: FakeEngine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "otelctx")
    path, body = REQUESTS[name]
    given = {"content": body} if isinstance(body, bytes) else {"json": body}
    async with direct(engine) as client:
        answer = await client.post(path, **given)
    assert [s.name for s in otelctx_capture.spans] == [f"POST {path}"], answer.status_code
    assert MARK not in everything(otelctx_capture, caplog.text)


@pytest.fixture(scope="module")
def loaded(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(str(tiny_model), cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", REQUESTS)
async def test_nor_with_a_model_in_the_process(
    otelctx_capture: Captured, direct: Any, loaded: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "otelctx")
    path, body = REQUESTS[name]
    given = {"content": body} if isinstance(body, bytes) else {"json": body | {"max_tokens": 2}}
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=256, rows=2, name="fake", eos_ids=())
    async with direct(engine) as client:
        await client.post(path, **given)
    assert f"POST {path}" in [s.name for s in otelctx_capture.spans]
    assert MARK not in everything(otelctx_capture, caplog.text)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(MARK),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just(MARK), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "stop", "user", "otelctx", "metadata", MARK]), JSON))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_body_is(runner: Any, direct: Any, body: dict[str, Any]) -> None:
    async def ask() -> Captured:
        with capture() as seen:
            async with direct(FakeEngine()) as client:
                await client.post(CHAT, json={"model": "fake"} | body)
        return seen

    seen = runner.run(ask())
    assert [s.name for s in seen.spans] == [f"POST {CHAT}"]
    assert MARK not in everything(seen, "")
