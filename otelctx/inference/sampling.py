"""From logits to token ids: OpenAI's parameters, rows of equal parameters together, one random generator per request.

A request's draws depend on its own logits and its own generator only, so neither its neighbours in the batch nor
another request's ``seed`` can change them. Temperature and top-k are transformers' own; top-p gives the same set, but
looks at the likeliest tokens first instead of sorting the whole vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

from otelctx.inference.params import Params

__all__ = ["Params", "RowState", "Sampler"]

# Where a nucleus is looked for first, and by how much the search widens. Eight lines of 49152 logits: the 256 largest
# take 0.7 ms, the 2048 largest 2 ms, all of them in order 15 ms.
_WIDTH: Final = 256
_WIDER: Final = 8
_SEED_MASK: Final = 2**64 - 1


class RowState:
    """What one request carries from token to token: its generator and how often it has produced each id."""

    __slots__ = ("_number", "counts", "generator", "params")

    def __init__(self, params: Params) -> None:
        self.params = params
        self.counts: Counter[int] = Counter()
        self.generator = torch.Generator()
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed & _SEED_MASK)
        self._number: Tensor | None = None

    def number(self) -> Tensor:
        """What decides on the next token: float64 ``[1]`` in 0–1, the same until it is :meth:`chosen`."""
        if self._number is None:
            self._number = torch.rand(1, dtype=torch.float64, generator=self.generator)
        return self._number

    def chosen(self, token: int) -> None:
        """``token`` is the next."""
        self._number = None
        if self.params.penalised:
            self.counts[token] += 1


class _Filter(NamedTuple):
    """The parameters that rows of one group share; all zero for greedy rows."""

    temperature: float
    top_p: float
    top_k: int


_GREEDY: Final = _Filter(0.0, 0.0, 0)


class Sampler:
    """Draws the next token of each row. Stateless; what a request carries is in its :class:`RowState`."""

    @torch.inference_mode()
    def sample(self, logits: Tensor, rows: Sequence[RowState]) -> list[int]:
        """One id for each line of ``logits``, float32 ``[len(rows), vocab]`` and finite.

        Whatever is raised, the rows are as before and can be sampled again."""
        if logits.shape[0] != len(rows):
            raise ValueError(f"{logits.shape[0]} lines of logits for {len(rows)} rows")
        scores = _penalise(logits, rows)
        groups: dict[_Filter, list[int]] = {}
        for line, row in enumerate(rows):
            groups.setdefault(_filter(row.params), []).append(line)
        ids = [0] * len(rows)
        for key, lines in groups.items():
            part = scores if len(lines) == len(rows) else scores[lines]
            drawn = part.argmax(-1) if key is _GREEDY else _draw(part, key, [rows[line] for line in lines])
            for line, token in zip(lines, drawn.tolist(), strict=True):
                ids[line] = token
        for row, token in zip(rows, ids, strict=True):
            row.chosen(token)
        return ids


def _filter(params: Params) -> _Filter:
    return _GREEDY if params.greedy else _Filter(params.temperature, params.top_p, params.top_k)


def _penalise(logits: Tensor, rows: Sequence[RowState]) -> Tensor:
    """OpenAI's definition: ``logit − count · frequency − (count > 0) · presence``."""
    lines = [line for line, row in enumerate(rows) if row.params.penalised and row.counts]
    if not lines:
        return logits
    scores = logits.clone()
    for line in lines:
        row = rows[line]
        ids = torch.tensor(list(row.counts), device=logits.device)
        counts = torch.tensor(list(row.counts.values()), device=logits.device, dtype=logits.dtype)
        scores[line, ids] -= counts * row.params.frequency_penalty + row.params.presence_penalty
    return scores


def _draw(scores: Tensor, key: _Filter, rows: Sequence[RowState]) -> Tensor:
    """One id per line, by the inverse of its cumulative distribution at its row's own number."""
    none = torch.empty(0, dtype=torch.long)  # transformers' filters take the ids so far and don't look at them
    if key.temperature != 1:
        scores = TemperatureLogitsWarper(float(key.temperature))(none, scores)
    if key.top_k:
        scores = TopKLogitsWarper(key.top_k)(none, scores)
    if key.top_p < 1:
        scores = _nucleus(scores, key.top_p)
    cumulative = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    at = torch.cat([row.number() for row in rows])
    # Strictly below the total, so that the search ends on a token with a probability.
    target = torch.minimum(at[:, None].to(total.device) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """``scores`` with everything outside the smallest set of mass ``top_p`` at −∞; the likeliest token always stays.

    The same set as ``TopPLogitsWarper``'s, except that tokens as likely as the set's last one stay too.
    """
    total = scores.logsumexp(-1, keepdim=True)
    least = torch.empty_like(total)
    lines = torch.arange(len(scores), device=scores.device)
    width = _WIDTH
    while len(lines):
        best = scores[lines].topk(min(width, scores.shape[-1])).values
        mass = (best - total[lines]).exp()
        before = mass.cumsum(-1) - mass
        kept = (before < top_p).sum(-1, keepdim=True).clamp_(min=1)
        least[lines] = best.gather(-1, kept - 1)
        if width >= scores.shape[-1]:
            break
        lines = lines[mass.sum(-1) < top_p]
        width *= _WIDER
    return scores.masked_fill(scores < least, float("-inf"))
