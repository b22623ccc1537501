"""The real model through the engine: a conversation that outgrows its window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import Loaded
from otelctx.inference.sampling import Params

SCENE = (
    " The harbour was quiet, the boats lay side by side along the old stone wall, and the gulls had gone to sleep on "
    "the roofs of the fish market; only the lighthouse turned its beam over the water, again and again, as it had done "
    "every night for more than a hundred years, while the keeper read his newspaper and drank his tea."
)
QUESTIONS = (
    "Hello! My name is Ada. Who are you?",
    "Who reads the newspaper?" + SCENE,
    "What is the capital of France?" + SCENE,
    "Where do the gulls sleep?" + SCENE,
    "Write a line about rain." + SCENE,
    "Thank you. Say goodbye." + SCENE,
)


@pytest.mark.model
async def test_a_conversation_beyond_its_window(
    smollm2: Loaded, twin: Callable[[Any], Any], judge_of: Callable[[Any], Any], window_of: Callable[..., list[int]]
) -> None:
    """Six turns in 512 tokens, and a second session beside them: each token is the model's own for its window."""
    judge = judge_of(twin(smollm2.model))
    engine = TransformersEngine(
        twin(smollm2.model), smollm2.tokenizer, window=512, rows=2, name=smollm2.name, eos_ids=smollm2.eos_ids
    )
    head = smollm2.tokenizer.encode(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n",
        add_special_tokens=False,
    )

    async def converse(session: str, questions: Sequence[str]) -> list[int]:
        dropped = []
        for question in questions:
            async for chunk in engine.chat(
                [{"role": "user", "content": question}],
                session=session,
                max_tokens=24,
                params=Params(temperature=0),
            ):
                result = chunk.result
            ids = window_of(engine, session)
            assert ids[: len(head)] == head
            assert result.window.used == len(ids) <= 512
            # The token that ended the answer is counted, and is not in the window.
            answer = result.usage.completion_tokens - (result.finish_reason == "stop")
            judge.check(ids, answer)
            dropped.append(result.usage.dropped_tokens)
        return dropped

    try:
        first, second = await asyncio.gather(converse("a", QUESTIONS), converse("b", QUESTIONS[:2]))
        assert sum(first) > 0
        assert first[:2] == second == [0, 0]
        assert len(judge.tokens) >= 20
        stats = engine.stats()
        assert (stats.rows_busy, stats.leases, stats.sessions) == (0, 0, 2)
    finally:
        await engine.close()
