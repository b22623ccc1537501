"""Versions over a real connection: a labelled one is restored, and the conversation goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import load
from otelctx.testing.captured import Captured

MODEL = "tiny"


def test_a_conversation_goes_on_from_a_labelled_version_as_if_nothing_had_come_after(
    served: Any, tiny_model: Path, otelctx_capture: Captured
) -> None:
    loaded = load(tiny_model, cache_dir=tiny_model)
    engine = TransformersEngine(loaded.model, loaded.tokenizer, window=256, rows=2, name=MODEL, eos_ids=())
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:

        def say(session: str, text: str, system: str | None = None) -> Any:
            messages: Any = [{"role": "system", "content": system}] if system else []
            return client.chat.completions.create(
                model=MODEL,
                messages=[*messages, {"role": "user", "content": text}],
                temperature=0,
                max_completion_tokens=12,
                extra_body={"otelctx": {"session": session, "mode": "append"}},
            )

        def call(method: str, path: str, body: Any = None) -> Any:
            return getattr(client, method)(f"/sessions/{path}", cast_to=object, **({"body": body} if body else {}))

        for session in ("a/b", "fresh"):
            say(session, "hello", "Be brief.")
        label = call("put", "a/b/labels/prompt%20v3.1.0", {"version": 1})
        assert label["version"] == 1
        for text in ("and then?", "what else?"):
            say("a/b", text)
        back = call("post", "a/b/rollback", {"label": "prompt v3.1.0"})
        assert (back["restored"], back["version"], back["turns"]) == (1, 4, 1)
        after, reference = say("a/b", "one more"), say("fresh", "one more")
        assert after.choices[0].message.content == reference.choices[0].message.content
        assert after.usage.prompt_tokens == reference.usage.prompt_tokens
        assert after.otelctx["window"]["used"] == reference.otelctx["window"]["used"]
        assert after.otelctx["window"]["version"] == 5
        versions: Any = client.get("/sessions/a/b/versions", cast_to=object)
        assert [v["version"] for v in versions["data"]] == [5, 4, 3, 2, 1]
        listed: Any = client.get("/sessions?limit=1", cast_to=object)
        assert ([s["id"] for s in listed["data"]], listed["has_more"]) == (["fresh"], True)
    (span,) = [s for s in otelctx_capture.spans if s.name == "POST /v1/sessions/{session}/rollback"]
    assert span.attributes["otelctx.window.restored"] == 1
    assert span.attributes["otelctx.window.version"] == 4
    assert span.attributes["session.id"] == "a/b"
