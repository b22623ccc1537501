"""A generation loop of one's own: the token limit before the model, one traced turn, its outcome counted once.

    python examples/own_loop.py [DIRECTORY OR smollm2] [TEXT]

The loop is the plainest there is: no batch, no cache of the session. What otelctx adds is around it: ``Guard``
refuses what does not fit before the model sees it, and ``observe()`` gives the span with its phases, the metrics, and
the events.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

import otelctx
from otelctx.errors import TokenLimitExceeded
from otelctx.inference import Guard, observe
from otelctx.inference.loader import load
from otelctx.settings import Settings

WINDOW = 256  # tokens
MAX_TOKENS = 24


@torch.inference_mode()
def generate(model: Any, ids: list[int], eos: tuple[int, ...]) -> Iterator[int]:
    """Greedy: feed, take the likeliest, feed that."""
    cache, feed = None, ids
    for _ in range(MAX_TOKENS):
        out = model(input_ids=torch.tensor([feed]), cache=cache, use_cache=True, logits_to_keep=1)
        cache, token = out.cache, int(out.logits[0, -1].argmax())
        if token in eos:
            return
        yield token
        feed = [token]


def answer(loaded: Any, guard: Guard, text: str) -> str:
    with observe(model=loaded.name) as turn:
        ids = guard.admit([{"role": "user", "content": text}], max_tokens=MAX_TOKENS)
        turn.prefill(len(ids))
        tokens: list[int] = []
        for token in generate(loaded.model, ids, loaded.eos_ids):
            turn.token()
            tokens.append(token)
        turn.finish("length" if len(tokens) == MAX_TOKENS else "stop")
    return str(loaded.tokenizer.decode(tokens, skip_special_tokens=True))


def main(model: str = "smollm2", text: str = "What is a context window?") -> None:
    telemetry = otelctx.configure("own-loop")
    loaded = load(model, cache_dir=Settings.load().cache_dir)
    guard = Guard(loaded.tokenizer, window=WINDOW)
    print(answer(loaded, guard, text))
    try:
        answer(loaded, guard, text * WINDOW)
    except TokenLimitExceeded as error:
        print(f"refused: {error.message}")
    telemetry.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
