"""A model and its rows: what the engine's thread drives."""

from __future__ import annotations

from typing import Any

import torch

from otelctx.errors import ConfigError
from otelctx.inference.attention import NAME
from otelctx.inference.facts import check_window
from otelctx.inference.faults import kind_of
from otelctx.inference.gate import check, declared
from otelctx.inference.kvrows import RowKV, StepResult, Work
from otelctx.inference.packed import pack, unpack

__all__ = ["Runner"]


class Runner:
    """Serves ``model`` from ``rows`` rows of ``window`` tokens each.

    The model is put into evaluation mode, its attention function is switched and its linear layers are packed until
    :meth:`close`; until then its own forward and ``generate`` don't work, and it can't be copied or saved. ``static``:
    see :class:`RowKV`. After construction only one thread may use the runner.

    Raises:
        ConfigError: the window is longer than the model's positions, the load gate refused the model, or there is not
            enough memory for the rows.
    """

    def __init__(self, model: Any, *, rows: int, window: int, static: bool | None = None) -> None:
        check_window(model, window)
        model.eval()
        self.model = model
        self.rows = rows
        self.window = window
        self._packed = _checked(model)
        try:
            self.kv = RowKV(model.config, rows, window, dtype=model.dtype, device=model.device, static=static)
        except BaseException as error:
            self._unpack()
            if not isinstance(error, RuntimeError | MemoryError) or kind_of(error) != "memory":
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
        """Give the model its own attention and weights back. Idempotent."""
        self.model.set_attn_implementation(self._own)
        self._unpack()

    def _unpack(self) -> None:
        unpack(self._packed)
        self._packed = []


def _checked(model: Any) -> list[Any]:
    """The layers of ``model`` that are packed, once it has passed the load gate. Models may use a layer's weight past
    the layer: they fail the gate with packed ones, and are given another try without. One that another runner serves
    is not touched."""
    declared(model)
    packed = pack(model)
    try:
        check(model)
    except BaseException as error:
        unpack(packed)
        if not packed or not isinstance(error, ConfigError):
            raise
        check(model)
        return []
    return packed
