"""Tiny models and tokenizers with random weights, made once per test run; nothing is downloaded."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config

from otelctx.inference.loader import Loaded, load

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # Large enough for the logits to spread, so that greedy decoding visits many tokens.
    "initializer_range": 0.6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "qwen2": lambda: Qwen2Config(**SMALL),
    "mistral": lambda: MistralConfig(**SMALL, sliding_window=8),
}


def build(config: PreTrainedConfig) -> Any:
    """A float32 model of ``config`` with seeded random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        # A configuration of its own: the attention switch is kept in it.
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).eval()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and other tests need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_model() -> Callable[[PreTrainedConfig], Any]:
    return build


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    """Arguments of a tiny configuration."""
    return dict(SMALL)


@pytest.fixture(scope="session")
def llama() -> Any:
    return build(CONFIGS["llama"]())


@pytest.fixture(scope="session", params=sorted(CONFIGS))
def tiny(request: pytest.FixtureRequest) -> Any:
    """Each tiny family: full attention, with biases, with a sliding window shorter than the texts."""
    return build(CONFIGS[request.param]())


@pytest.fixture(scope="session")
def twin() -> Callable[[Any], Any]:
    """A second model with the same weights (shared, not copied) and an attention switch of its own."""

    def make(model: Any) -> Any:
        other = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=model.dtype).eval()
        other.load_state_dict(model.state_dict(), assign=True)
        other.tie_weights()
        return other

    return make


@pytest.fixture(scope="session")
def smollm2() -> Loaded:
    """The real model, from the cache that a user's own runs fill."""
    pytest.importorskip("gguf")
    cache = Path(os.environ.get("OTELCTX_CACHE_DIR", Path.home() / ".cache" / "otelctx"))
    return load("smollm2", cache_dir=cache)
