"""Keys and values of several sequences, each in a row of its own, and the step that feeds them.

A row is a run of columns, one per token, filled from the left: ``lengths[row]`` of them are valid. A step feeds any
number of rows at once, one token to a decoding row and a chunk to a prefilling one, in a single ragged forward without
padding. Nothing right of a row's length is ever read, so to shorten a row is to lower its length, and a step that
failed half way is simply run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otelctx.inference.attention import Seg, Step

__all__ = ["RowKV", "StepResult", "Work"]

Work: TypeAlias = Sequence[tuple[int, Sequence[int] | npt.NDArray[np.int32]]]
"""``(row, token ids)`` pairs; a row appears at most once in a step. Ids may be an integer array too."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gives.

    ``logits``: float32 ``[len(work), vocab]`` for the token after each work item's last, in the order of the work.
    ``bad_rows``: rows whose logits were not finite. They are zeroed and empty now; their lines must not be sampled.
    """

    logits: Tensor
    bad_rows: tuple[int, ...]


class RowKV:
    """``rows`` rows of ``length`` columns for a model of this ``config``.

    ``dtype`` is the model's; memory is ``bytes``, which CPUs commit only as columns are first used. ``static``: see
    :mod:`otelctx.inference.attention`; by default on anything but a CPU. Not thread-safe: one thread owns it.
    """

    def __init__(
        self,
        config: Any,
        rows: int,
        length: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        static: bool | None = None,
    ) -> None:
        if rows < 1 or length < 1:
            raise ValueError(f"rows and length must be at least 1, not {rows} and {length}")
        text = config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        shape = (text.num_hidden_layers, rows, heads, length, width)
        self.rows = rows
        self.length = length
        self.vocab = int(text.vocab_size)
        self.lengths = [0] * rows
        self.bytes_per_token = 2 * text.num_hidden_layers * heads * width * dtype.itemsize
        self.bytes = self.bytes_per_token * rows * length
        self._static = torch.device(device).type != "cpu" if static is None else static
        # Static rows are read beyond their length, behind a mask that NaN would come through.
        make = torch.zeros if self._static else torch.empty
        self._keys = make(shape, dtype=dtype, device=device)
        self._values = make(shape, dtype=dtype, device=device)
        # Columns that were written since the row was last zeroed; a failed step may have gone past its length.
        self._written = [0] * rows

    @torch.inference_mode()
    def step(self, model: Any, work: Work) -> StepResult:
        """Feed ``work`` to ``model`` in one forward and return the next-token logits of each item.

        Lengths advance only when the logits are there. Whatever is raised, lengths are as before and the step can be
        run again as it is. A row with non-finite logits is zeroed, the others advance.

        Raises:
            ValueError: a row, an id, or the capacity is out of range; nothing was launched.
        """
        self._check(work)
        device = self._keys.device
        segs = self._segments(work)
        ids = torch.tensor([[int(token) for _, tokens in work for token in tokens]], device=device)
        rows = torch.tensor([seg.row for seg in segs for _ in range(seg.q)], device=device)
        positions = torch.tensor(
            [position for seg in segs for position in range(seg.kv - seg.q, seg.kv)], device=device
        )
        last = torch.tensor([seg.q0 + seg.q - 1 for seg in segs], device=device)
        for seg in segs:
            self._written[seg.row] = max(self._written[seg.row], seg.kv)
        output = model(
            input_ids=ids,
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=last,
            row_kv=Step(self._keys, self._values, segs, rows, positions, self._static),
        )
        return self._settle(segs, output.logits[0].float())

    def _check(self, work: Work) -> None:
        """Everything that a device would answer with an assertion, which on CUDA would poison the whole process."""
        if not work:
            raise ValueError("a step needs at least one row")
        seen = set()
        for row, ids in work:
            if not 0 <= row < self.rows or row in seen:
                raise ValueError(f"row {row} is out of range 0–{self.rows - 1} or appears twice")
            seen.add(row)
            if len(ids) == 0:
                raise ValueError(f"row {row}: no tokens to feed")
            if min(ids) < 0 or max(ids) >= self.vocab:
                raise ValueError(f"row {row}: a token id is out of range 0–{self.vocab - 1}")
            if self.lengths[row] + len(ids) > self.length:
                raise ValueError(f"row {row}: {self.lengths[row]} + {len(ids)} tokens exceed its {self.length} columns")

    def _segments(self, work: Work) -> list[Seg]:
        segs, start = [], 0
        for row, ids in work:
            segs.append(Seg(row, start, len(ids), self.lengths[row] + len(ids)))
            start += len(ids)
        return segs

    def _settle(self, segs: Sequence[Seg], logits: Tensor) -> StepResult:
        # A sum is finite only if every term is (or the logits are beyond 1e33, which is no better); one pass, no copy.
        finite = logits.sum(-1).isfinite().tolist()
        bad = []
        for seg, good in zip(segs, finite, strict=True):
            if good:
                self.lengths[seg.row] = seg.kv
            else:
                # A NaN among the keys would spread to every later token of the row, even from behind a mask.
                self.zero(seg.row)
                bad.append(seg.row)
        return StepResult(logits, tuple(bad))

    def crop(self, row: int, length: int) -> None:
        """Keep the first ``length`` columns of ``row``, exactly as they are."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"row {row} has {self.lengths[row]} columns, can't be cropped to {length}")
        self.lengths[row] = length

    @torch.inference_mode()
    def copy(self, src: int, dst: int, length: int) -> None:
        """Make the first ``length`` columns of ``src`` the whole content of ``dst``."""
        if src == dst or not 0 <= length <= self.lengths[src]:
            raise ValueError(f"can't copy {length} columns of row {src} ({self.lengths[src]} filled) to row {dst}")
        self._keys[:, dst, :, :length] = self._keys[:, src, :, :length]
        self._values[:, dst, :, :length] = self._values[:, src, :, :length]
        self._written[dst] = max(self._written[dst], length)
        self.lengths[dst] = length

    @torch.inference_mode()
    def zero(self, row: int) -> None:
        """Empty ``row`` and overwrite what it held."""
        self.lengths[row] = 0
        self._keys[:, row, :, : self._written[row]] = 0
        self._values[:, row, :, : self._written[row]] = 0
        self._written[row] = 0
