"""A seed decides on an answer, whatever runs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from otelctx.inference.sampling import Params

Make = Callable[..., Any]
SAMPLED = Params(temperature=1.2, top_p=0.95, seed=99, presence_penalty=0.3)


async def test_the_same_seed_gives_the_same_text_in_any_company(make_engine: Make, ask: Make) -> None:
    """Alone, in a full batch of equal and of other parameters, and with its prompt in pieces."""
    alone = await ask(make_engine(rows=1), "tell me", params=SAMPLED, max_tokens=40)
    engine = make_engine(rows=6)
    others = [
        SAMPLED,
        Params(temperature=1.2, top_p=0.95, seed=1, presence_penalty=0.3),
        Params(temperature=0),
        Params(temperature=0.5, top_k=5, seed=99),
        Params(),
    ]
    beside = [asyncio.create_task(ask(engine, "be" * n, params=p, max_tokens=60)) for n, p in enumerate(others, 1)]
    answers = [await ask(engine, "tell me", params=SAMPLED, max_tokens=40) for _ in range(2)]
    await asyncio.gather(*beside)
    assert [answer.text for answer in answers] == [alone.text] * 2
    assert len(set(alone.text)) > 10


async def test_another_seed_gives_another_text(make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    texts = {(await ask(engine, "tell me", params=Params(seed=seed), max_tokens=30)).text for seed in range(5)}
    assert len(texts) == 5
