"""A model and its rows: what the engine's thread drives."""

from __future__ import annotations

from typing import Any

import torch

from otelctx.errors import ConfigError
from otelctx.inference.attention import NAME
from otelctx.inference.facts import check_window
from otelctx.inference.faults import kind_of
from otelctx.inference.gate import check
from otelctx.inference.kvrows import RowKV, StepResult, Work

__all__ = ["Runner"]


class Runner:
    """Serves ``model`` from ``rows`` rows of ``window`` tokens each.

    The model is put into evaluation mode and its attention function is switched until :meth:`close`; until then its
    own forward and ``generate`` don't work. ``static``: see :class:`RowKV`. After construction only one thread may use
    the runner.

    Raises:
        ConfigError: the window is longer than the model's positions, the load gate refused the model, or there is not
            enough memory for the rows.
    """

    def __init__(self, model: Any, *, rows: int, window: int, static: bool | None = None) -> None:
        check_window(model, window)
        model.eval()
        check(model)
        self.model = model
        self.rows = rows
        self.window = window
        try:
            self.kv = RowKV(model.config, rows, window, dtype=model.dtype, device=model.device, static=static)
        except (RuntimeError, MemoryError) as error:
            if kind_of(error) != "memory":
                raise
            raise ConfigError(
                f"there is no memory for {rows} rows of {window} tokens: choose fewer rows, or a smaller window"
            ) from None
        self.vocab = self.kv.vocab
        self._own = model.config._attn_implementation
        model.set_attn_implementation(NAME)

    def step(self, work: Work) -> StepResult:
        """One forward over ``work``; see :meth:`RowKV.step`."""
        return self.kv.step(self.model, work)

    def clear(self, row: int) -> None:
        """Empty ``row`` and overwrite what it held."""
        self.kv.zero(row)

    def free_unused(self) -> None:
        """Give memory that no tensor uses back to the device, after a step for which there was not enough."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Give the model its own attention back. Idempotent."""
        self.model.set_attn_implementation(self._own)
