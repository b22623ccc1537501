"""The attention function behind a step: one ragged forward over rows of unequal length.

Registered through transformers' ``AttentionInterface`` under :data:`NAME`. A forward is ``[1, T]``: the tokens of all
rows one after another. Each row's stretch is a :class:`Seg`; a :class:`Step` says where its keys and values go and
builds the masks. No transformers ``Cache`` takes part.

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


@dataclass(frozen=True, slots=True)
class Step:
    """One forward over several rows. ``keys`` and ``values``: ``[layers, rows, kv_heads, columns, head_dim]``.

    ``rows`` and ``columns``: int64 ``[T]``, where each token's key and value are written. Masks live as long as the
    step, because every layer of it needs the same few and the next step needs others.
    """

    keys: Tensor
    values: Tensor
    segs: Sequence[Seg]
    rows: Tensor
    columns: Tensor
    masks: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

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
    for seg in row_kv.segs:
        part = slice(seg.q0, seg.q0 + seg.q)
        out[:, part] = _attend(row_kv, seg, layer, query[:, :, part], scaling, sliding_window).transpose(1, 2)
    return out, None


AttentionInterface.register(NAME, attention)
