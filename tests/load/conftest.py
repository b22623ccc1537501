"""A tiny model with random weights, as the load's replay takes it; nothing is read from a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from otelctx.inference.loader import Loaded

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and other tests need the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_loaded(one_thread: None) -> Callable[[], Loaded]:
    """The same model each time; one belongs to an engine until that is closed."""

    def make() -> Loaded:
        alphabet = sorted(ByteLevel.alphabet())
        backend = Tokenizer(BPE({token: n for n, token in enumerate(["<|im_start|>", "<|im_end|>", *alphabet])}, []))
        backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
        backend.decoder = ByteLevelDecoder()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|im_end|>",
            additional_special_tokens=["<|im_start|>"],
            chat_template=TEMPLATE,
        )
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.6,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model = AutoModelForCausalLM.from_config(config).eval()
        return Loaded(model, tokenizer, "tiny", 512, (tokenizer.eos_token_id,))

    return make
