"""The load gate: which models rows can serve, found out by trying instead of by a list of names.

First what a model declares (attention through the interface, layer types, rotary scaling), then a probe: random tokens
in uneven chunks beside a second row must give the logits of the model's own forward. Several families accept the
attention function and come out wrong (ALiBi is dropped, chunked layers see too much); only the probe tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import get_layer_types_and_kwargs

from otelctx.errors import ConfigError
from otelctx.inference.attention import NAME
from otelctx.inference.kvrows import RowKV

__all__ = ["check", "switched"]

# Two rows, fed chunk by chunk at once, 48 and 15 tokens; one of the steps only decodes.
_CHUNKS: Final = ((1, 5), (7, 1), (16, 1), (1, 1), (2, 3), (21, 4))
_TOLERANCE: Final = 1e-3  # float32: absolute, and as a share of the largest logit where all are below 1
_COARSE: Final = 0.05  # narrower types: share of the largest logit, for their own rounding is beyond any fixed bound
_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
_ROPE_DEPENDS_ON_LENGTH: Final = frozenset({"dynamic", "longrope"})


def _free(model: Any) -> str | None:
    return "a runner that is not closed serves it" if model.config._attn_implementation == NAME else None


def _layer_types(model: Any) -> str | None:
    found, _ = get_layer_types_and_kwargs(_text(model))
    other = sorted(set(found) - _LAYER_TYPES)
    return f"it has layers of type {', '.join(other)}" if other else None


def _rope(model: Any) -> str | None:
    parameters = getattr(_text(model), "rope_parameters", None) or {}
    # Either one set of parameters or one per layer type.
    sets = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    found = {str(one.get("rope_type", "default")) for one in sets} & _ROPE_DEPENDS_ON_LENGTH
    return f"its rotary scaling ({', '.join(sorted(found))}) depends on the sequence's length" if found else None


def _interface(model: Any) -> str | None:
    if getattr(model, "_supports_attention_backend", False):
        return None
    return "its attention does not go through transformers' AttentionInterface"


def _decoder(model: Any) -> str | None:
    if model.config.is_encoder_decoder or not getattr(_text(model), "is_causal", True):
        return "it is not a causal decoder"
    return None


_DECLARED: Final[tuple[Callable[[Any], str | None], ...]] = (_decoder, _free, _interface, _layer_types, _rope)


def _text(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _refused(model: Any, why: str) -> ConfigError:
    return ConfigError(f"refused: {type(model).__name__} can't be served from KV rows, because {why}")


@contextmanager
def switched(model: Any) -> Iterator[None]:
    """``model`` with the attention of rows inside the block, and with its own again after it."""
    own = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


@torch.inference_mode()
def _own_logits(model: Any, rows: list[list[int]]) -> list[Tensor]:
    """Float32 ``[tokens, vocab]`` of each row by the model's own forward, its usual attention and no cache."""
    device = model.device
    return [model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0].float() for ids in rows]


def _row_logits(model: Any, rows: list[list[int]]) -> list[tuple[int, int, Tensor]]:
    """``(row, position, logits)`` at the end of each chunk, by ragged steps."""
    kv = RowKV(model.config, len(rows), max(map(len, rows)), dtype=model.dtype, device=model.device)
    found = []
    for sizes in _CHUNKS:
        work = [
            (row, ids[start : start + size])
            for row, (ids, start, size) in enumerate(zip(rows, kv.lengths, sizes, strict=True))
        ]
        result = kv.step(model, work)
        found += [(row, kv.lengths[row] - 1, line) for (row, _), line in zip(work, result.logits, strict=True)]
    return found


def _difference(model: Any) -> tuple[float, float]:
    """Largest |Δlogit| between rows and the model's own forward, and how much of it is allowed."""
    generator = torch.Generator().manual_seed(0)
    vocab = int(_text(model).vocab_size)
    rows = [torch.randint(vocab, (sum(sizes),), generator=generator).tolist() for sizes in zip(*_CHUNKS, strict=True)]
    own = _own_logits(model, rows)
    with switched(model):
        seen = _row_logits(model, rows)
    worst = max(float((line - own[row][position]).abs().max()) for row, position, line in seen)
    scale = max(float(line.abs().max()) for line in own)
    return worst, _TOLERANCE * min(1.0, scale) if model.dtype == torch.float32 else _COARSE * scale


def check(model: Any) -> None:
    """Raise unless ``model``, a transformers causal language model in evaluation mode, gives the same from rows.

    Raises:
        ConfigError: ``refused: …`` with the reason.
    """
    for declared in _DECLARED:
        why = declared(model)
        if why is not None:
            raise _refused(model, why)
    try:
        worst, allowed = _difference(model)
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        raise _refused(model, f"the probe failed: {error}") from error
    # Written so that NaN is refused too.
    if not worst < allowed:
        raise _refused(model, f"its logits differ from its own forward by {worst:.2g}, more than {allowed:.2g}")
