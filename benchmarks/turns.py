"""``turns``: time to the first token of a new turn, on SmolLM2-135M in float32 on the CPU.

A turn is a user's message of about thirty tokens, greedy, in a session whose history has been read before. Ours is
measured from the call of ``engine.chat()`` to its first chunk, with admission, the engine's thread and detokenising.

``stateless``   at 4096 tokens of history, through ``generate()`` on the same weights, which is what a server without
                sessions does with such a turn: render, tokenise and read everything, then the first token. Fair because
                that is transformers' own fastest path for one prompt: sdpa, the whole prompt in one forward, logits of
                the last token only.
``flat``        at 7500 tokens of history through the same at 512.
``llamacpp``    at 4096 tokens, through llama.cpp with its prefix reused, each relative to its own cold prefill of the
                same ids. Fair although its weights have four bits: both quotients are of one program on one kind of
                weights, so what remains is how much of the history's cost each of them saves. Its tokenising isn't
                counted, and it reads as many tokens as ours, both times. The history's cost has an even share of
                attention and a new turn at its end two shares, so that two programs that are each as quick in a turn as
                in a prefill aren't at 1: the one with the quicker linear layers is above it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from benchmarks._llamacpp import LlamaCpp
from benchmarks._model import smollm2, some_words, stack, twin
from benchmarks.harness import Report, at_most, median_ratio, say
from otelctx.inference.engines.transformers import TransformersEngine
from otelctx.inference.loader import Loaded
from otelctx.inference.sampling import Params

__all__ = ["run"]

TARGETS: Final = {"stateless": at_most(0.05), "flat": at_most(3.5), "llamacpp": at_most(1)}
GREEDY: Final = Params(temperature=0.0)
# Two sessions at once, each on its own row, so that neither takes the other's.
ROWS: Final = 2


@dataclass(frozen=True, slots=True)
class _Size:
    short: int
    middle: int
    long: int
    window: int
    message: int
    rounds: int


FULL: Final = _Size(short=512, middle=4096, long=7500, window=8192, message=24, rounds=5)
QUICK: Final = _Size(short=32, middle=96, long=160, window=512, message=8, rounds=1)


def run(quick: bool) -> Report:
    report = Report("turns", TARGETS)
    with report.peer("smollm2"):
        loaded = smollm2()
        report.options["model"] = f"SmolLM2-135M-Instruct, {stack()}"
        asyncio.run(_run(report, loaded, QUICK if quick else FULL))
    return report


async def _run(report: Report, loaded: Loaded, size: _Size) -> None:
    plain = twin(loaded.model)  # before the engine takes the model's attention
    engine = TransformersEngine(
        loaded.model, loaded.tokenizer, window=size.window, rows=ROWS, eos_ids=loaded.eos_ids, name=loaded.name
    )
    report.options["otelctx"] = f"TransformersEngine, window {size.window}, {ROWS} rows, sessions"
    try:
        await _Turns(report, loaded, engine, plain, size).all()
    finally:
        await engine.close()


class _Turns:
    def __init__(self, report: Report, loaded: Loaded, engine: TransformersEngine, plain: Any, size: _Size) -> None:
        self._report, self._size = report, size
        self._tokenizer, self._engine, self._plain = loaded.tokenizer, engine, plain
        self._rng = random.Random(1)

    async def all(self) -> None:
        size, report = self._size, self._report
        say(f"turns: reading {size.middle} tokens")
        history = self._text(size.middle)
        # A short one first, on the other row, as the peers have it: what is allocated once is not what a turn costs.
        await self._turn("short", self._text(size.message))
        cold = await self._turn("long", history)
        say("turns: generate()")
        stateless = self._stateless(history)
        say("turns: llama.cpp")
        with ExitStack() as stack:
            peer = None
            with report.peer("llama.cpp"):
                peer = stack.enter_context(closing(LlamaCpp(size.window, torch.get_num_threads())))
            warm = await self._warm(peer, history, cold)
        report.figures |= {"cold_ms": 1e3 * cold, "warm_ms": 1e3 * warm, "stateless_ms": 1e3 * stateless}
        report.ratios["stateless"] = warm / stateless
        await self._flat()

    async def _warm(self, peer: LlamaCpp | None, history: str, cold: float) -> float:
        """Turns on the long history, with llama.cpp's in between; the median of ours."""
        size = self._size
        # As many tokens as ours has read: the history with the template around it, without the token of the answer.
        read = self._ids(history + self._text(size.middle))[: await self._used("long") - 1]
        their_cold = self._their_cold(peer, read) if peer is not None else 0.0
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for number in range(size.rounds + 1):
            before = await self._used("long")
            ours = await self._turn("long", self._text(size.message))
            # As many tokens for it as the message came to with the template around it.
            read = read + self._ids(self._text(await self._used("long") - before))
            theirs = _timed(partial(peer.first_token, read)) if peer is not None else 0.0
            if number:  # the first round warms up
                times["ours"].append(ours)
                times["theirs"].append(theirs)
        if peer is not None:
            self._report.options["llamacpp"] = peer.options
            self._report.ratios["llamacpp"] = median_ratio(times, "ours", "theirs") * their_cold / cold
            self._report.figures |= {
                "llamacpp_cold_ms": 1e3 * their_cold,
                "llamacpp_warm_ms": 1e3 * median(times["theirs"]),
            }
        return median(times["ours"])

    def _their_cold(self, peer: LlamaCpp, ids: list[int]) -> float:
        peer.first_token(ids[: self._size.message])
        peer.forget()
        return _timed(partial(peer.first_token, ids))

    async def _flat(self) -> None:
        size = self._size
        say(f"turns: reading up to {size.long} tokens")
        await self._turn("long", self._text(size.long - size.middle))
        await self._turn("short", self._text(size.short - size.message))
        times: dict[str, list[float]] = {"short": [], "long": []}
        for number in range(size.rounds + 1):
            for session, found in times.items():
                seconds = await self._turn(session, self._text(size.message))
                if number:  # the first round warms up
                    found.append(seconds)
        self._report.ratios["flat"] = median_ratio(times, "long", "short")
        for session, found in times.items():
            self._report.figures |= {
                f"flat_{session}_ms": 1e3 * median(found),
                f"flat_{session}_tokens": await self._used(session),
            }

    def _stateless(self, history: str) -> float:
        conversation = [
            {"role": "user", "content": history},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": self._text(self._size.message)},
        ]
        # A short one first: what is allocated once is not what a turn costs.
        _timed(partial(self._generate, conversation[-1:]))
        return _timed(partial(self._generate, conversation))

    def _generate(self, conversation: list[dict[str, str]]) -> None:
        inputs = self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self._plain.device)
        with torch.inference_mode():
            self._plain.generate(**inputs, max_new_tokens=1, do_sample=False)

    def _text(self, tokens: int) -> str:
        return some_words(self._tokenizer, tokens, self._rng)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    async def _used(self, session: str) -> int:
        state = await self._engine.session_state(session)
        return int(state["window"]["used"])

    async def _turn(self, session: str, text: str) -> float:
        """Seconds to the first chunk of the answer of one token to ``text``."""
        began = perf_counter()
        answer = self._engine.chat([{"role": "user", "content": text}], session=session, max_tokens=1, params=GREEDY)
        async with aclosing(answer) as chunks:
            await anext(chunks)
            seconds = perf_counter() - began
            async for _ in chunks:
                pass
        return seconds


def _timed(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began
