"""What an answer is called in telemetry is what its client has as its id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otelctx.inference.turn import TurnRequest
from otelctx.testing.fake_engine import FakeEngine

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "chatcmpl-")
TEXT = ("/v1/completions", {"prompt": ["one", "two"]}, "cmpl-")


class Asked(FakeEngine):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[TurnRequest] = []

    async def admit(self, request: TurnRequest) -> Any:
        self.turns.append(request)
        return await super().admit(request)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "prefix"), [CHAT, TEXT], ids=["chat", "text"])
async def test_each_turn_of_an_answer_has_its_id(
    direct: Any, path: str, body: dict[str, Any], prefix: str, stream: bool
) -> None:
    engine = Asked()
    async with direct(engine) as client:
        answer = await client.post(path, json={"model": "fake", "stream": stream, **body})
    text = answer.text.split("\n\n")[0].removeprefix("data: ") if stream else answer.text
    shown = json.loads(text)["id"]
    assert shown.startswith(prefix)
    assert {turn.response_id for turn in engine.turns} == {shown}
