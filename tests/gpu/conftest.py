"""A CUDA device, or a loud skip; and small models on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "mistral": lambda: MistralConfig(**SMALL, sliding_window=64),
}


@pytest.fixture(scope="session", autouse=True)
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here; run `make gpu` where there is one")
    return torch.device("cuda")


@pytest.fixture(params=sorted(CONFIGS))
def make(request: pytest.FixtureRequest, cuda: torch.device) -> Callable[[torch.dtype], Any]:
    """A model with seeded random weights on the device, of the same values in each type."""
    torch.manual_seed(11)
    weights = AutoModelForCausalLM.from_config(CONFIGS[request.param](), dtype=torch.float32).state_dict()

    def build(dtype: torch.dtype) -> Any:
        model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[request.param]()), dtype=dtype)
        model.load_state_dict(weights)
        return model.to(cuda).eval()

    return build
