"""The facts about transformers that rows stand on. When one of these fails, ``otelctx.inference.attention`` is wrong.

They are not promises of transformers' documentation, which is why its minor version is pinned.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    BloomConfig,
    GgufConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    modeling_gguf_pytorch_utils,
)
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from otelctx.inference.attention import NAME

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=6),
}
IDS = [5, 9, 11, 5, 9]
POSITIONS = [0, 1, 2, 0, 1]  # two rows side by side, the second with the first's tokens


class Recorder:
    """An attention function that notes how it is called and answers with the values."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        module, query, key, value, mask = args
        self.calls.append({"module": module, "query": query, "key": key, "value": value, "mask": mask, **kwargs})
        groups = query.shape[1] // value.shape[1]
        return value.repeat_interleave(groups, dim=1).transpose(1, 2), None


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    function = Recorder()
    AttentionInterface.register("recorder", function)
    yield function
    AttentionInterface._global_mapping.pop("recorder")


@pytest.fixture(params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest, recorder: Recorder) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = deepcopy(CONFIGS[request.param])  # what a model is told, it writes down there
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.set_attn_implementation("recorder")
    return model


@torch.inference_mode()
def forward(model: Any, ids: Sequence[int] = IDS, **extra: Any) -> Any:
    return model(input_ids=torch.tensor([ids]), position_ids=torch.tensor([POSITIONS]), use_cache=False, **extra)


def test_a_registered_function_is_called_in_each_layer(model: Any, recorder: Recorder) -> None:
    """With module, query, key, value and mask by place, heads before tokens, and the layer's number on the module."""
    forward(model)
    assert [call["module"].layer_idx for call in recorder.calls] == [0, 1, 2]
    for call in recorder.calls:
        assert call["query"].shape == (1, 4, 5, 8)
        assert call["key"].shape == call["value"].shape == (1, 2, 5, 8)
        assert call["scaling"] == pytest.approx(8**-0.5)


def test_arguments_of_the_forward_reach_the_function(model: Any, recorder: Recorder) -> None:
    """By keyword, unchanged, through every layer."""
    row_kv = object()
    forward(model, row_kv=row_kv)
    assert [call["row_kv"] for call in recorder.calls] == [row_kv] * 3


def test_no_mask_is_made_for_an_unknown_function(model: Any, recorder: Recorder) -> None:
    """Not even for position ids that start again in the middle."""
    forward(model)
    assert [call["mask"] for call in recorder.calls] == [None] * 3
    assert NAME not in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


def test_the_sliding_window_reaches_the_function(model: Any, recorder: Recorder) -> None:
    """From the layer, in tokens and counting the query itself; absent or None where attention is full."""
    forward(model)
    expected = getattr(model.config, "sliding_window", None) if model.config.model_type == "mistral" else None
    assert [call.get("sliding_window") for call in recorder.calls] == [expected] * 3


def test_rotation_follows_position_ids_alone(model: Any, recorder: Recorder) -> None:
    """One token five times: its queries and keys are equal where its positions are, and differ where they differ."""
    forward(model, [5] * 5)
    for name in ("query", "key"):
        at = recorder.calls[0][name].unbind(2)
        torch.testing.assert_close(at[0], at[3], rtol=0, atol=1e-6)
        torch.testing.assert_close(at[1], at[4], rtol=0, atol=1e-6)
        assert not torch.allclose(at[0], at[1], atol=1e-4)


def test_without_a_cache_none_is_made(model: Any, recorder: Recorder) -> None:
    """``use_cache=False`` wins over the configuration."""
    assert model.config.use_cache
    assert forward(model).cache is None


def test_logits_are_kept_by_index(model: Any, recorder: Recorder) -> None:
    """A tensor of indices picks those tokens' logits, in its order."""
    everything = forward(model).logits
    picked = forward(model, logits_to_keep=torch.tensor([4, 2])).logits
    assert picked.shape == (1, 2, 50)
    torch.testing.assert_close(picked[0], everything[0, [4, 2]])


def test_the_switch_goes_both_ways(model: Any) -> None:
    """And is kept in the configuration, under the very name."""
    assert model.config._attn_implementation == "recorder"
    model.set_attn_implementation("sdpa")
    assert model.config._attn_implementation == "sdpa"


def test_our_name_has_no_meaning_of_its_own() -> None:
    """transformers looks for these inside the name."""
    assert NAME in AttentionInterface().valid_keys()
    assert not any(word in NAME for word in ("sdpa", "flash", "flex_attention", "paged", "/"))


def test_models_declare_whether_they_use_the_interface() -> None:
    """The gate's first question."""
    for config, expected in ((CONFIGS["llama"], True), (BloomConfig(hidden_size=32, n_layer=1, n_head=4), False)):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert bool(getattr(model, "_supports_attention_backend", False)) is expected


def test_layer_types_are_inferred_from_the_configuration() -> None:
    """Also for families that don't list them."""
    assert get_layer_types_and_kwargs(CONFIGS["llama"])[0] == ["full_attention"] * 3
    assert get_layer_types_and_kwargs(CONFIGS["mistral"])[0] == ["sliding_attention"] * 3


def test_rotary_parameters_are_in_one_place() -> None:
    """With the type that tells whether frequencies depend on the length."""
    assert CONFIGS["llama"].rope_parameters["rope_type"] == "default"


def test_the_shape_of_keys_can_be_read_from_the_configuration() -> None:
    """Also through the decoder's part of a configuration that has several."""
    text = CONFIGS["llama"].get_text_config(decoder=True)
    assert (text.num_hidden_layers, text.num_key_value_heads, text.head_dim) == (3, 2, 8)
    bloom = BloomConfig(n_layer=2, n_head=4, hidden_size=32).get_text_config(decoder=True)
    assert (bloom.num_hidden_layers, bloom.num_attention_heads, bloom.hidden_size) == (2, 4, 32)


def test_gguf_files_are_dequantised_on_request_and_draw_one_bar() -> None:
    """The bar is drawn by a name of the module, which the loader replaces while it reads."""
    assert GgufConfig(dequantize=True).dequantize
    source = inspect.getsource(modeling_gguf_pytorch_utils)
    assert source.count("tqdm(") == 1
    assert "in tqdm(reader.tensors, desc=" in source
