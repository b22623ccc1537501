"""Tiny models and tokenizers with random weights, made once per test run; nothing is downloaded."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.processors import TemplateProcessing
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
def one_thread(torch_on_one_thread: None) -> None:
    """For all of them."""


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


# Real families: the template as its makers document it, and a small tokenizer of the same make as theirs.

TEXT = "hello there, tell me all that the sea and the hill sell: an ant, a shell, tea and ten hats. the end is near"
# How the makers of these families cut text into words, before bytes are merged.
WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def byte_level(
    special: Sequence[str], *, plain: Sequence[str] = (), nfc: bool = False, words: bool = True
) -> Tokenizer:
    """Byte-level BPE: the ``special`` tokens first, then bytes and some merges, then ``plain`` added tokens."""
    merges = [("t", "h"), ("Ġ", "th"), ("Ġth", "e"), ("l", "l"), ("h", "e"), ("he", "ll"), ("Ċ", "Ċ"), ("Ġ", "Ġ")]
    vocabulary = {c: n for n, c in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Tokenizer(BPE(vocabulary, merges))
    if nfc:
        backend.normalizer = normalizers.NFC()
    cut = Steps([Split(Regex(WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.pre_tokenizer = cut if words else ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return backend


def sentence_piece(special: Sequence[str], make: str) -> Tokenizer:
    """BPE over characters with ``▁`` for a space and bytes for what it lacks. ``make``: ``gemma`` puts nothing before
    a text, ``legacy`` a space before each piece of text between special tokens, ``first`` one before the whole."""
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("l", "l"), ("h", "e"), ("he", "ll"), ("▁", "▁"), ("▁", "a")]
    characters = sorted(set(TEXT.replace(" ", "▁")) | set("▁[]/INST\nxyz"))
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if make == "gemma":
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = Split(" ", "merged_with_previous")
    elif make == "legacy":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.pre_tokenizer = Metaspace("▁", prepend_scheme="first", split=False)
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


@dataclass(frozen=True)
class Family:
    """``concatenative``: whether its template is; ``system``: whether it takes a system message, and ``alternates``:
    whether questions and answers must."""

    concatenative: bool
    backend: Callable[[], Tokenizer]
    bos: str | None
    eos: str
    special: tuple[str, ...]
    system: bool = True
    alternates: bool = False


_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_GEMMA = ("<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_MISTRAL = ("<unk>", "<s>", "</s>")
_INST = (*_MISTRAL, "[INST]", "[/INST]")
_TEKKEN = (*_INST, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
FAMILIES = {
    "llama-3": Family(True, lambda: byte_level(_LLAMA), _LLAMA[0], _LLAMA[3], _LLAMA),
    "llama-3.1": Family(True, lambda: byte_level(_LLAMA), _LLAMA[0], _LLAMA[3], _LLAMA),
    "llama-3.2": Family(True, lambda: byte_level(_LLAMA), _LLAMA[0], _LLAMA[3], _LLAMA),
    "qwen2.5": Family(True, lambda: byte_level(_QWEN, nfc=True), None, _QWEN[2], _QWEN),
    # Thoughts are taken out of all answers but the last.
    "qwen3": Family(False, lambda: byte_level(_QWEN, plain=("<think>", "</think>"), nfc=True), None, _QWEN[2], _QWEN),
    # Questions and answers must alternate, which can only be seen in the whole; 3 writes the system message into the
    # first question.
    "gemma-2": Family(
        False, lambda: sentence_piece(_GEMMA, "gemma"), _GEMMA[1], _GEMMA[2], _GEMMA, system=False, alternates=True
    ),
    "gemma-3": Family(False, lambda: sentence_piece(_GEMMA, "gemma"), _GEMMA[1], _GEMMA[2], _GEMMA, alternates=True),
    # The system message is written into the first question, or into the last; in v0.1 what is around a question is
    # plain text, so that it can grow together with it.
    "mistral-v0.1": Family(
        False, lambda: sentence_piece(_MISTRAL, "legacy"), _MISTRAL[1], _MISTRAL[2], _MISTRAL, alternates=True
    ),
    "mistral-v0.3": Family(False, lambda: sentence_piece(_INST, "first"), _INST[1], _INST[2], _INST, alternates=True),
    "mistral-v7": Family(True, lambda: byte_level(_TEKKEN), _TEKKEN[1], _TEKKEN[2], _TEKKEN),
    "smollm2": Family(True, lambda: byte_level(_QWEN, words=False), _QWEN[1], _QWEN[2], _QWEN),
}


@cache
def family_tokenizer(name: str) -> Any:
    family = FAMILIES[name]
    backend = family.backend()
    # As the families' own tokenizers do, which is why nobody must ask for it again after a template.
    if family.bos is not None and name != "smollm2":
        bos = family.special.index(family.bos)
        backend.post_processor = TemplateProcessing(f"{family.bos} $A", special_tokens=[(family.bos, bos)])
    template = Path(__file__).parent / "templates" / f"{name}.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=family.bos,
        eos_token=family.eos,
        additional_special_tokens=[t for t in family.special if t not in (family.bos, family.eos)],
        chat_template=template.read_text(),
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def families() -> dict[str, Family]:
    """Real model families by name."""
    return FAMILIES


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Any]:
    """``(family) → tokenizer`` with that family's template and special tokens."""
    return family_tokenizer
