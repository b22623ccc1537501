"""The attention function behind a step: one ragged forward over rows of unequal length.

Registered through transformers' ``AttentionInterface`` under :data:`NAME`. A forward is ``[1, T]``: the tokens of all
rows one after another. Each row's stretch is a :class:`Seg`; a :class:`Step` says where its keys and values go and
builds the masks. No transformers ``Cache`` takes part.

One row at a time is best on CPUs: views without a copy, exact lengths. On devices where launching a kernel costs more
than what it computes, all rows that decode are served at once, each with all columns up to the longest (*static* rows);
the shapes are then the same from step to step. What lies right of a row's length is masked, and must be finite.

transformers makes no mask for an attention function that it has no mask function for, so everything that a mask would
say is derived here from the segments; a model that needs more than causality and a sliding window is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface

__all__ = ["NAME", "NotSupported", "Seg", "Step", "attention"]

# Contains none of "sdpa", "flash" or "flex_attention": transformers reads meaning into those.
NAME: Final = "otelctx_rows"

# Arguments by which a model asks for arithmetic that this function does not do.
_UNSUPPORTED: Final = ("softcap", "s_aux", "position_bias")


@dataclass(frozen=True, slots=True)
class Seg:
    """One row's stretch of a step: tokens ``q0 : q0 + q`` of the forward fill the row's columns ``kv - q : kv``."""

    row: int
    q0: int
    q: int
    kv: int


# Columns that static rows have in common are a multiple of it, so that shapes change seldom.
_STEP: Final = 128


@dataclass(frozen=True, slots=True)
class _Decoding:
    """Rows that feed one token each: ``tokens`` and ``rows``, int64 ``[n]``, are their places in the forward and among
    the rows; ``mask``, bool ``[rows, 1, 1, columns]``, says what each may see."""

    tokens: Tensor
    rows: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """One forward over several rows. ``keys`` and ``values``: ``[layers, rows, kv_heads, columns, head_dim]``.

    ``rows`` and ``columns``: int64 ``[T]``, where each token's key and value are written. ``static``: decoding rows are
    served at once. Masks live as long as the step, because every layer of it needs the same few and the next step needs
    others.
    """

    keys: Tensor
    values: Tensor
    segs: Sequence[Seg]
    rows: Tensor
    columns: Tensor
    static: bool = False
    masks: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)
    decoding: dict[int | None, _Decoding] = field(default_factory=dict)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Put ``key`` and ``value``, ``[1, kv_heads, T, head_dim]``, into their rows' columns."""
        self.keys[layer][self.rows, :, self.columns] = key[0].transpose(0, 1)
        self.values[layer][self.rows, :, self.columns] = value[0].transpose(0, 1)

    def band(self, q: int, kv: int, window: int, device: torch.device) -> Tensor:
        """Bool ``[q, kv]``: the last query sees all ``kv`` keys, each earlier one a key less; ``window`` at most."""
        mask = self.masks.get((q, kv, window))
        if mask is None:
            mask = torch.ones(q, kv, dtype=torch.bool, device=device).tril_(kv - q)
            if window < kv:
                mask.triu_(kv - q - window + 1)
            self.masks[q, kv, window] = mask
        return mask

    def together(self, window: int | None) -> _Decoding | None:
        """The rows to serve at once, if there are several; ``window`` as :func:`attention` has it."""
        alone = [seg for seg in self.segs if seg.q == 1]
        if not self.static or len(alone) < 2:
            return None
        found = self.decoding.get(window)
        if found is None:
            found = self.decoding[window] = self._decoding(alone, window)
        return found

    def _decoding(self, segs: Sequence[Seg], window: int | None) -> _Decoding:
        device = self.keys.device
        longest = max(seg.kv for seg in segs)
        columns = torch.arange(min(self.keys.shape[3], -(-longest // _STEP) * _STEP), device=device)
        # Rows outside the step see one column: a softmax over none is NaN.
        ends = [1] * self.keys.shape[1]
        for seg in segs:
            ends[seg.row] = seg.kv
        end = torch.tensor(ends, device=device)[:, None]
        mask = columns < end
        if window is not None:
            mask &= columns >= end - window
        rows = torch.tensor([seg.row for seg in segs], device=device)
        return _Decoding(torch.tensor([seg.q0 for seg in segs], device=device), rows, mask[:, None, None])


def _attend_together(step: Step, found: _Decoding, layer: int, query: Tensor, scale: float | None) -> Tensor:
    """Attention of all decoding rows: ``[n, heads, head_dim]``."""
    rows, columns = found.mask.shape[0], found.mask.shape[-1]
    asked = query.new_zeros(rows, query.shape[1], 1, query.shape[3])
    asked[found.rows, :, 0] = query[0, :, found.tokens].transpose(0, 1)
    key, value = (kv[layer][:, :, :columns] for kv in (step.keys, step.values))
    got = F.scaled_dot_product_attention(asked, key, value, attn_mask=found.mask, scale=scale, enable_gqa=True)
    return got[found.rows, :, 0]


def _attend(step: Step, seg: Seg, layer: int, query: Tensor, scale: float | None, window: int | None) -> Tensor:
    """Attention of one segment. ``query``: ``[1, heads, q, head_dim]``; so is the result."""
    # The oldest column that the segment's first query may see.
    lo = 0 if window is None else max(0, seg.kv - seg.q - window + 1)
    length = seg.kv - lo
    key = step.keys[layer][seg.row : seg.row + 1, :, lo : seg.kv]
    value = step.values[layer][seg.row : seg.row + 1, :, lo : seg.kv]
    narrow = window is not None and window < length
    causal = seg.q == seg.kv and not narrow
    mask = None
    if seg.q > 1 and not causal:
        mask = step.band(seg.q, length, window if window is not None else length, query.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and seg.q > 1, scale=scale, enable_gqa=True
    )


class NotSupported(ValueError):
    """The model asks its attention for something that rows can't give."""


def _refuse(mask: Tensor | None, batch: int, extra: dict[str, Any]) -> None:
    asked = [name for name in _UNSUPPORTED if extra.get(name) is not None]
    if asked:
        raise NotSupported(f"its attention needs {' and '.join(asked)}")
    if mask is not None or batch != 1 or extra.get("is_causal") is False:
        raise NotSupported("its attention is not plainly causal over one ragged sequence")


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    row_kv: Step | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer. ``query``: ``[1, heads, T, head_dim]``; the result ``[1, T, heads, …]``.

    Raises:
        NotSupported: the model asks for soft capping, sinks, a position bias, a mask or a batch.
    """
    if row_kv is None:
        raise RuntimeError(f"attention {NAME!r} got no rows: either the model keeps them back or this is not a step")
    _refuse(attention_mask, query.shape[0], extra)
    layer = int(module.layer_idx)
    row_kv.write(layer, key, value)
    if len(row_kv.segs) == 1:
        return _attend(row_kv, row_kv.segs[0], layer, query, scaling, sliding_window).transpose(1, 2), None
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    together = row_kv.together(sliding_window)
    if together is not None:
        out[0, together.tokens] = _attend_together(row_kv, together, layer, query, scaling)
    for seg in row_kv.segs:
        if together is not None and seg.q == 1:
            continue
        part = slice(seg.q0, seg.q0 + seg.q)
        out[:, part] = _attend(row_kv, seg, layer, query[:, :, part], scaling, sliding_window).transpose(1, 2)
    return out, None


AttentionInterface.register(NAME, attention)
