"""A runner borrows a model and gives it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BloomConfig, LlamaConfig

from otelctx.errors import ConfigError
from otelctx.inference.attention import NAME
from otelctx.inference.runner import Runner


def test_the_model_is_borrowed(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """In evaluation mode, with the attention of rows until it is closed, twice if need be."""
    model = make_model(llama.config).train()
    before = model.config._attn_implementation
    runner = Runner(model, rows=2, window=64)
    assert (runner.rows, runner.window, runner.vocab) == (2, 64, 97)
    assert not model.training
    assert model.config._attn_implementation == NAME
    assert runner.step([(1, [3, 4])]).logits.shape == (1, 97)
    assert runner.kv.lengths == [0, 2]
    runner.close()
    runner.close()
    assert model.config._attn_implementation == before
    assert model(input_ids=torch.tensor([[3, 4]])).logits.shape == (1, 2, 97)


def test_a_step_builds_no_graph(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """Wholly in inference mode, whatever mode the caller's thread is in."""
    runner = Runner(make_model(llama.config), rows=1, window=64)
    with torch.enable_grad():
        logits = runner.step([(0, [3, 4])]).logits
    assert logits.is_inference()
    assert not torch.is_inference_mode_enabled()


def test_a_window_beyond_the_models_positions_is_refused(llama: Any) -> None:
    """Past them rotary models answer nonsense without an error."""
    with pytest.raises(ConfigError, match="window=129 is longer than the 128 positions"):
        Runner(llama, rows=1, window=129)


def test_rows_for_which_there_is_no_memory_are_a_mistake_of_configuration(
    make_model: Callable[[Any], Any], small: dict[str, Any]
) -> None:
    model = make_model(LlamaConfig(**(small | {"max_position_embeddings": 2**43})))
    before = model.config._attn_implementation
    with pytest.raises(ConfigError, match="choose fewer rows"):
        Runner(model, rows=1, window=2**42)
    assert model.config._attn_implementation == before


def test_a_refused_model_is_untouched(make_model: Callable[[Any], Any]) -> None:
    """The gate's verdict comes before the switch."""
    model = make_model(BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4))
    before = model.config._attn_implementation
    with pytest.raises(ConfigError, match="refused"):
        Runner(model, rows=1, window=16)
    assert model.config._attn_implementation == before


def test_a_model_has_one_runner_at_a_time(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """The second would judge the first's attention, and take it for the model's own at the end."""
    model = make_model(llama.config)
    first = Runner(model, rows=1, window=16)
    with pytest.raises(ConfigError, match="not closed"):
        Runner(model, rows=1, window=16)
    first.close()
    Runner(model, rows=1, window=16)


def test_threads_are_left_alone(llama: Any, make_model: Callable[[Any], Any]) -> None:
    """How many threads torch may use is the application's decision."""
    before = torch.get_num_threads()
    Runner(make_model(llama.config), rows=1, window=16).step([(0, [1])])
    assert torch.get_num_threads() == before
