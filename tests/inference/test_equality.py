"""Rows give what the model's own forward gives, whatever was done to them before.

Float32, teacher-forced: every compared line of logits is within 1e-3 of the reference, and its best token is the
reference's unless the reference's own two best are closer than that. References are the model's greedy texts, which
hold at least 20 distinct tokens, so that a constant answer can't pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from otelctx.inference.kvrows import Work
from otelctx.inference.runner import Runner

TOLERANCE = 1e-3
LENGTHS = (90, 61, 47)


class Reference:
    """Greedy texts of a model, and the logits of its own forward for any token sequence."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        self.model = model
        self.texts = [self._greedy(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]

    @torch.inference_mode()
    def _greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        new = length - len(prompt)
        text = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new, max_new_tokens=new
        )
        return list(map(int, text[0]))

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        return self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


class Driver:
    """Feeds a runner and compares each result with the reference for what the row then holds."""

    def __init__(self, runner: Runner, reference: Reference) -> None:
        self.runner = runner
        self.reference = reference
        self.held: list[list[int]] = [[] for _ in range(runner.rows)]
        self.compared = 0

    def feed(self, *work: tuple[int, Sequence[int]]) -> None:
        result = self.runner.step(work)
        assert result.bad_rows == ()
        for (row, ids), line in zip(work, result.logits, strict=True):
            self.held[row] += ids
            self._compare(self.reference.logits(self.held[row])[-1], line)
        assert self.runner.kv.lengths == [len(ids) for ids in self.held]

    def _compare(self, expected: Tensor, line: Tensor) -> None:
        self.compared += 1
        assert float((expected - line).abs().max()) <= TOLERANCE
        if int(expected.argmax()) != int(line.argmax()):
            first, second = expected.topk(2).values
            assert float(first - second) < TOLERANCE

    def crop(self, row: int, length: int) -> None:
        self.runner.kv.crop(row, length)
        del self.held[row][length:]

    def copy(self, src: int, dst: int, length: int) -> None:
        self.runner.kv.copy(src, dst, length)
        self.held[dst] = self.held[src][:length]

    def zero(self, row: int) -> None:
        self.runner.kv.zero(row)
        self.held[row] = []


@pytest.fixture(params=[False, True], ids=["ragged", "static"])
def driver(tiny: Any, twin: Callable[[Any], Any], request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Three rows of a tiny model; its twin, with the same weights, is the reference. Decoding rows are served one by
    one as on CPUs, and at once as on other devices."""
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, tiny.config.vocab_size, (5,), generator=generator).tolist() for _ in LENGTHS]
    runner = Runner(twin(tiny), rows=3, window=128, static=request.param)
    yield Driver(runner, Reference(tiny, prompts, LENGTHS))
    runner.close()


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """``ids`` cut into ``sizes``, over and over until they are used up."""
    found, start = [], 0
    while start < len(ids):
        size = sizes[len(found) % len(sizes)]
        found.append(ids[start : start + size])
        start += size
    return found


def interleave(driver: Driver) -> None:
    """All three texts in chunks of different sizes, in the same steps, until each is used up."""
    queues = [
        chunks(text, sizes)
        for text, sizes in zip(driver.reference.texts, ((17, 1, 1, 30), (1,), (4, 1, 1, 9, 1)), strict=True)
    ]
    for step in range(max(map(len, queues))):
        driver.feed(*((row, queue[step]) for row, queue in enumerate(queues) if step < len(queue)))


def test_references_are_not_constant(driver: Driver) -> None:
    """A model that answers the same token always would agree with a broken row."""
    for text in driver.reference.texts:
        assert len(set(text)) >= 20


def test_interleaved_rows_in_chunks(driver: Driver) -> None:
    """Decoding and prefilling rows of different lengths share each step."""
    interleave(driver)
    assert driver.compared > 80


def test_after_reuse(driver: Driver) -> None:
    """A row that starts from another's columns continues with other tokens."""
    first, second, _ = driver.reference.texts
    driver.feed((0, first[:40]), (2, second[:50]))
    driver.copy(0, 2, 25)
    driver.feed((0, first[40:41]), (2, second[:13]))
    driver.feed((0, first[41:60]), (2, second[13:14]))
    driver.feed((2, second[14:40]))


def test_after_truncation(driver: Driver) -> None:
    """The oldest exchanges are dropped: what is kept is fed again behind the pinned head."""
    first, second, _ = driver.reference.texts
    driver.feed((0, first[:70]), (1, second[:30]))
    driver.zero(0)
    driver.feed((0, [*first[:6], *first[44:70]]), (1, second[30:31]))
    for token in first[70:78]:
        driver.feed((0, [token]))


def test_after_cancel(driver: Driver) -> None:
    """A cancelled turn leaves no trace in the row's next one."""
    first, second, third = driver.reference.texts
    driver.feed((0, first[:20]), (1, second[:9]))
    driver.feed((0, third[:25]), (1, second[9:10]))
    for token in third[25:30]:
        driver.feed((0, [token]))
    driver.crop(0, 20)
    driver.feed((0, first[20:21]), (1, second[10:24]))
    driver.feed((0, first[21:60]))


@contextmanager
def failing(layer: torch.nn.Module) -> Iterator[None]:
    """``layer`` raises as CPUs do when memory runs out."""

    def fail(*_: object) -> None:
        raise RuntimeError("not enough memory")

    handle = layer.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def test_a_failed_step_is_run_again_as_it_is(driver: Driver) -> None:
    """A forward that dies half way leaves the rows as they were, so that the same work gives the same logits."""
    first, second, _ = driver.reference.texts
    driver.feed((0, first[:20]), (1, second[:9]))
    work: Work = [(0, first[20:33]), (1, second[9:10])]
    with pytest.raises(RuntimeError, match="not enough memory"), failing(driver.runner.model.model.layers[-1]):
        driver.runner.step(work)
    assert driver.runner.kv.lengths == [20, 9, 0]
    driver.feed(*work)


QUESTIONS = (
    "Write a story about a lighthouse keeper and a storm.",
    "List ten fruits with their colours.",
    "Explain how bread is baked.",
)


@pytest.mark.model
def test_real_weights(smollm2: Any, twin: Callable[[Any], Any]) -> None:
    """The same on SmolLM2-135M: chunked and interleaved, then reused, cancelled and truncated rows."""
    prompts = [
        smollm2.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    reference = Reference(smollm2.model, prompts, LENGTHS)
    for text in reference.texts:
        assert len(set(text)) >= 20
    driver = Driver(Runner(twin(smollm2.model), rows=3, window=256), reference)
    first, second, third = reference.texts
    driver.feed((0, first[:40]), (1, second[:1]), (2, third[:30]))
    for at in range(8):
        driver.feed((0, first[40 + at : 41 + at]), (1, second[1 + 4 * at : 5 + 4 * at]))
    driver.copy(0, 2, 25)
    driver.feed((2, third[:20]), (0, first[48:49]))
    driver.crop(0, 30)
    driver.feed((0, second[:17]), (2, third[20:21]))
    driver.zero(1)
    driver.feed((1, [*second[:6], *second[20:50]]), (0, second[17:18]))
    driver.feed((1, second[50:51]))
