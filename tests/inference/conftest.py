"""Tiny models and tokenizers with random weights, made once per test run; nothing is downloaded."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

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


CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(template: str = CHATML) -> Any:
    """A byte-level tokenizer of 256 bytes, some merges and three special tokens (ids 0–2); ``<|im_end|>`` ends."""
    vocabulary = {
        c: n for n, c in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet())])
    }
    merges = []
    for left, right in [("h", "e"), ("l", "l"), ("Ġ", "t"), ("he", "ll"), ("Ċ", "Ċ"), ("s", "s"), ("a", "n")]:
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    backend = Tokenizer(BPE(vocabulary, merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """``(template) → tokenizer`` of 266 tokens."""
    return build_tokenizer


@pytest.fixture(scope="session")
def chatml() -> Any:
    return build_tokenizer()
