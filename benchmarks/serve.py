"""``serve``: the whole server under load, SmolLM2-135M in float32 on the CPU, over HTTP.

Eight clients at a time hold conversations of three turns, each turn a streamed chat completion that sends the whole
history, as OpenAI's clients do; greedy. Both servers get the same conversations, one after the other, with the other
one stopped by a signal meanwhile; each has had a round to warm up.

``throughput``  tokens per second of all answers together, through those of ``transformers serve`` with continuous
                batching: the peer that serves the same weights with the same library. Tokens are those of the answers'
                text, encoded anew, on both sides.
``ttft``        99th percentile of the time from a request to the first piece of its answer, through the peer's.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import httpx

from benchmarks._model import smollm2, some_words, stack
from benchmarks._servers import Otelctx, Server, TransformersServe
from benchmarks.harness import MissingPeer, Report, at_least, at_most, percentile, say

__all__ = ["run"]

TARGETS: Final = {"throughput": at_least(1), "ttft": at_most(1)}
ROWS: Final = 8
WINDOW: Final = 2048
_PATIENCE: Final = 300.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class _Size:
    """``clients`` conversations at once, of ``turns`` messages of ``message`` tokens, answered by ``answer`` tokens."""

    clients: int
    turns: int
    message: int
    answer: int
    rounds: int


FULL: Final = _Size(clients=8, turns=3, message=96, answer=40, rounds=3)
QUICK: Final = _Size(clients=2, turns=1, message=8, answer=4, rounds=1)


@dataclass(slots=True)
class _Found:
    """``first``: seconds to each answer's first piece; ``seconds`` of the whole; ``tokens`` of all answers."""

    first: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0


def run(quick: bool) -> Report:
    report = Report("serve", TARGETS)
    size = QUICK if quick else FULL
    with report.peer("smollm2"), ExitStack() as running:
        tokenizer = smollm2().tokenizer
        model = Path(tokenizer.name_or_path)
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        say("serve: starting the servers")
        servers: dict[str, Server] = {
            "ours": running.enter_context(Otelctx(folder, model, window=WINDOW, rows=ROWS)),
        }
        with report.peer("transformers"):
            servers["theirs"] = running.enter_context(TransformersServe(folder, model))
        report.options |= {name: server.options for name, server in servers.items()} | {"model": stack()}
        _measure(report, servers, tokenizer, size)
    return report


def _measure(report: Report, servers: dict[str, Server], tokenizer: Any, size: _Size) -> None:
    found = {name: _Found() for name in servers}
    rng = random.Random(1)
    for number in range(size.rounds + 1):
        scripts = [[some_words(tokenizer, size.message, rng) for _ in range(size.turns)] for _ in range(size.clients)]
        for name, server in servers.items():
            say(f"serve: round {number} of {size.rounds}, {name}")
            with server.alone(list(servers.values())):
                done = asyncio.run(_round(server, scripts, size.answer, tokenizer))
            if number:  # the first warms up
                found[name].first += done.first
                found[name].seconds += done.seconds
                found[name].tokens += done.tokens
    for name, what in found.items():
        report.figures[f"{name}_tokens_per_s"] = what.tokens / what.seconds
        report.figures[f"{name}_ttft_p99_ms"] = 1e3 * percentile(what.first, 99)
    if "theirs" in found:
        report.ratios["throughput"] = report.figures["ours_tokens_per_s"] / report.figures["theirs_tokens_per_s"]
        report.ratios["ttft"] = report.figures["ours_ttft_p99_ms"] / report.figures["theirs_ttft_p99_ms"]


async def _round(server: Server, scripts: Sequence[Sequence[str]], answer: int, tokenizer: Any) -> _Found:
    found = _Found()
    async with httpx.AsyncClient(base_url=server.url, timeout=_PATIENCE) as client:
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_conversation(client, server.model, s, answer, found)) for s in scripts]
        found.seconds = perf_counter() - began
    texts = [text for task in tasks for text in task.result()]
    found.tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return found


async def _conversation(
    client: httpx.AsyncClient, model: str, script: Sequence[str], answer: int, found: _Found
) -> list[str]:
    messages: list[dict[str, str]] = []
    answers: list[str] = []
    for text in script:
        messages.append({"role": "user", "content": text})
        body = {"model": model, "messages": messages, "max_tokens": answer, "temperature": 0, "stream": True}
        began = perf_counter()
        parts: list[str] = []
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise MissingPeer(f"{response.status_code}: {(await response.aread())[:500]!r}")
            async for piece in _pieces(response):
                if not parts:
                    found.first.append(perf_counter() - began)
                parts.append(piece)
        answers.append("".join(parts))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


async def _pieces(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        for choice in json.loads(data).get("choices", ()):
            if text := (choice.get("delta") or {}).get("content"):
                yield text
