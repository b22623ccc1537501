"""Which models are served, and that a refusal says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from otelctx.errors import ConfigError
from otelctx.inference.gate import check, switched

FITTING = (
    "Arcee", "Cohere", "Cohere2", "Ernie4_5", "Exaone4", "GPT2", "GPTNeoX", "Gemma", "Gemma3Text", "Glm",
    "Glm4", "Granite", "Helium", "Llama", "Mistral", "Mixtral", "Olmo", "Olmo2", "Phi", "Phi3", "Qwen2",
    "Qwen3", "SeedOss", "SmolLM3", "Starcoder2",
)  # fmt: skip
OTHER_NAMES: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2},
    "Bloom": {"n_layer": 2, "n_head": 4},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "Falcon": {"num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
}
SLIDING = {"Cohere2", "Exaone4", "Gemma3Text", "Mistral"}


def config_of(name: str, small: dict[str, Any]) -> Any:
    cls = getattr(transformers, f"{name}Config")
    if name in OTHER_NAMES:
        return cls(vocab_size=97, hidden_size=32, **OTHER_NAMES[name])
    arguments = dict(small)
    if name == "GPTNeoX":
        del arguments["num_key_value_heads"]
    else:
        arguments["head_dim"] = 8
    if name in SLIDING:
        arguments["sliding_window"] = 16
    return cls(**arguments)


@pytest.mark.parametrize("name", FITTING)
def test_these_families_pass(name: str, small: dict[str, Any], make_model: Callable[[Any], Any]) -> None:
    """And keep their own attention: the gate only tries."""
    model = make_model(config_of(name, small))
    before = model.config._attn_implementation
    check(model)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["Bloom", "Mpt", "Falcon", "StableLm"])
def test_models_outside_the_interface_are_refused(
    name: str, small: dict[str, Any], make_model: Callable[[Any], Any]
) -> None:
    """Their attention adds a bias of its own or never asks the interface."""
    with pytest.raises(ConfigError, match=f"refused: {name}.*AttentionInterface"):
        check(make_model(config_of(name, small)))


@pytest.mark.parametrize(
    ("name", "extra", "why"),
    [
        ("Gemma2", {}, "softcap"),
        ("Llama4Text", {}, "chunked_attention"),
        ("GptOss", {"sliding_window": 16}, "s_aux"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_models_that_need_more_are_refused(
    name: str, extra: dict[str, Any], why: str, small: dict[str, Any], make_model: Callable[[Any], Any]
) -> None:
    """Soft capping, chunked layers, sinks, frequencies that depend on the length."""
    config = getattr(transformers, f"{name}Config")(**{**small, "head_dim": 8, **extra})
    with pytest.raises(ConfigError, match=f"refused: .*{why}"):
        check(make_model(config))


def test_a_wrong_answer_is_refused(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """The probe itself: a model that looks right and computes attention in another way than it tells the interface."""
    model = make_model(llama.config)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(_rescale, with_kwargs=True)
    with pytest.raises(ConfigError, match=r"refused: .*differ from its own forward by"):
        check(model)


def _rescale(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Sharpens attention only where rows are handed on, as an unnoticed difference between two code paths would."""
    module.scaling = 0.5 if kwargs.get("row_kv") is not None else module.head_dim**-0.5


def test_not_a_number_is_refused(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """Comparisons with NaN are false, so the check must not be written the other way round."""
    model = make_model(llama.config)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ConfigError, match="refused"):
        check(model)


def test_narrower_types_pass_within_their_rounding(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """bfloat16 rounds at 2⁻⁸, so no absolute bound would hold."""
    check(make_model(llama.config).to(torch.bfloat16))


def test_the_switch_is_undone_by_an_error(llama: Any) -> None:
    """Whatever happens inside, the model is the user's again afterwards."""
    before = llama.config._attn_implementation
    with pytest.raises(KeyError), switched(llama):
        raise KeyError
    assert llama.config._attn_implementation == before
