"""A tiny random model with SmolLM2's tokenizer, in the form that ``otelctx serve`` takes.

A real model gives some ten turns a second on two cores; this one is fast enough for the rest of the process to be what
is tested, and its logits are spread, so that greedy texts visit many tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from otelctx.inference.loader import load
from otelctx.settings import Settings

__all__ = ["write"]

_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.4,
    "tie_word_embeddings": True,
}


def write(folder: Path) -> Path:
    """Write it to ``folder``. Raises :class:`~otelctx.errors.ConfigError` if SmolLM2's package is missing."""
    tokenizer = load("smollm2", cache_dir=Settings.load().cache_dir).tokenizer
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(vocab_size=len(tokenizer), **_SIZES, **ids), dtype=torch.float32
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
