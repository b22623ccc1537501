"""What a row holds, and what a step does when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.attention import NAME, NotSupported, Seg, Step, attention
from otelctx.inference.gate import switched
from otelctx.inference.kvrows import RowKV, Work

COLUMNS = 24


@pytest.fixture
def model(llama: Any) -> Iterator[Any]:
    with switched(llama):
        yield llama


@pytest.fixture
def kv(model: Any) -> RowKV:
    return RowKV(model.config, 3, COLUMNS)


def columns(kv: RowKV, row: int) -> torch.Tensor:
    """All keys and values of ``row``, filled or not."""
    return torch.stack([kv._keys[:, row], kv._values[:, row]]).clone()


def poison(model: Any, row_of_tokens: slice) -> Any:
    """Makes the model's last hidden states NaN for some tokens of the next forwards."""

    def spoil(_: object, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = inputs[0].clone()
        hidden[:, row_of_tokens] = float("nan")
        return (hidden, *inputs[1:])

    return model.model.norm.register_forward_pre_hook(spoil)


def test_lengths_advance_by_what_was_fed(kv: RowKV, model: Any) -> None:
    """One line of float32 logits per work item, in the order of the work."""
    result = kv.step(model, [(2, [5, 6, 7]), (0, [9])])
    assert kv.lengths == [1, 0, 3]
    assert result.bad_rows == ()
    assert result.logits.shape == (2, model.config.vocab_size)
    assert result.logits.dtype == torch.float32
    alone = RowKV(model.config, 1, COLUMNS).step(model, [(0, [5, 6, 7])])
    torch.testing.assert_close(result.logits[0], alone.logits[0], rtol=0, atol=1e-4)


def test_ids_may_be_an_array(kv: RowKV, model: Any) -> None:
    """Token windows are int32 arrays; their slices are fed as they are."""
    ids = np.array([5, 6, 7], dtype=np.int32)
    result = kv.step(model, [(0, ids), (1, [5, 6, 7])])
    torch.testing.assert_close(result.logits[0], result.logits[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("work", "match"),
    [
        ([], "at least one"),
        ([(3, [5])], "row 3"),
        ([(-1, [5])], "row -1"),
        ([(0, [5]), (0, [6])], "twice"),
        ([(0, [])], "no tokens"),
        ([(0, [97])], "0–96"),
        ([(0, [5, -1])], "0–96"),
        ([(0, [5] * (COLUMNS + 1))], "columns"),
        ([(1, [5] * 5), (0, [5] * (COLUMNS - 2))], "columns"),
    ],
)
def test_a_wrong_step_is_refused_before_anything_runs(kv: RowKV, model: Any, work: Work, match: str) -> None:
    """On CUDA the same mistakes would be assertions on the device, which end the process."""
    kv.step(model, [(0, [1, 2, 3])])
    before = columns(kv, 0)
    with pytest.raises(ValueError, match=match):
        kv.step(model, work)
    assert kv.lengths == [3, 0, 0]
    assert torch.equal(columns(kv, 0)[..., :3, :], before[..., :3, :])


def test_a_row_can_be_filled_to_its_last_column(kv: RowKV, model: Any) -> None:
    """The capacity itself is allowed; one more is not."""
    kv.step(model, [(0, [5] * COLUMNS)])
    assert kv.lengths[0] == COLUMNS
    with pytest.raises(ValueError, match="columns"):
        kv.step(model, [(0, [5])])


def test_only_the_row_with_bad_logits_fails(kv: RowKV, model: Any) -> None:
    """It is emptied and overwritten; its neighbours advance and go on as if nothing had happened."""
    kv.step(model, [(0, [1, 2, 3]), (1, [4, 5])])
    handle = poison(model, slice(0, 2))
    result = kv.step(model, [(0, [6, 7]), (1, [8, 9, 10])])
    handle.remove()
    assert result.bad_rows == (0,)
    assert not result.logits[0].isfinite().any()
    assert kv.lengths == [0, 5, 0]
    assert not columns(kv, 0)[..., :5, :].any()
    again = kv.step(model, [(1, [11]), (0, [1, 2])])
    fresh = RowKV(model.config, 2, COLUMNS)
    expected = fresh.step(model, [(1, [4, 5, 8, 9, 10, 11]), (0, [1, 2])])
    torch.testing.assert_close(again.logits, expected.logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_one_bad_logit_is_enough(kv: RowKV, model: Any, value: float) -> None:
    """Whatever kind of non-finite number it is, and wherever in the vocabulary."""

    def spoil(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.clone()
        logits[0, 1, 40] = value
        return logits

    handle = model.lm_head.register_forward_hook(spoil)
    result = kv.step(model, [(0, [6]), (1, [8])])
    handle.remove()
    assert result.bad_rows == (1,)


def test_zeroing_reaches_what_a_failed_step_left(kv: RowKV, model: Any) -> None:
    """Columns right of the length may hold another request's keys; a zeroed row holds nothing."""
    kv.zero(1)
    kv._keys.fill_(0)
    kv._values.fill_(0)
    handle = model.model.norm.register_forward_pre_hook(_raise)
    with pytest.raises(RuntimeError, match="stopped"):
        kv.step(model, [(1, [3, 4, 5])])
    handle.remove()
    assert kv.lengths == [0, 0, 0]
    assert columns(kv, 1).any()
    kv.zero(1)
    assert not columns(kv, 1).any()


def _raise(*_: object) -> None:
    raise RuntimeError("stopped")


def test_crop_keeps_columns_as_they_are(kv: RowKV, model: Any) -> None:
    """A cropped row continues as one that never went further."""
    kv.step(model, [(0, [1, 2, 3, 4])])
    before = columns(kv, 0)
    kv.step(model, [(0, [5, 6])])
    kv.crop(0, 4)
    assert torch.equal(columns(kv, 0)[..., :4, :], before[..., :4, :])
    for length in (5, -1):
        with pytest.raises(ValueError, match="cropped"):
            kv.crop(0, length)


def test_copy_replaces_the_whole_row(kv: RowKV, model: Any) -> None:
    """The source stays; the copy doesn't follow it."""
    kv.step(model, [(0, [1, 2, 3, 4]), (1, [9] * 6)])
    source = columns(kv, 0)
    kv.copy(0, 1, 3)
    assert kv.lengths == [4, 3, 0]
    assert torch.equal(columns(kv, 1)[..., :3, :], source[..., :3, :])
    kv.step(model, [(0, [7])])
    assert torch.equal(columns(kv, 1)[..., :3, :], source[..., :3, :])
    for src, dst, length in ((0, 0, 2), (0, 1, 6), (2, 1, 1), (0, 1, -1)):
        with pytest.raises(ValueError, match="copy"):
            kv.copy(src, dst, length)


def test_bytes_are_linear_in_tokens(llama: Any) -> None:
    """2 · layers · kv_heads · head_dim · bytes · tokens."""
    kv = RowKV(llama.config, 3, COLUMNS)
    assert kv.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert kv.bytes == kv.bytes_per_token * 3 * COLUMNS == kv._keys.nbytes + kv._values.nbytes
    assert RowKV(llama.config, 3, COLUMNS, dtype=torch.bfloat16).bytes == kv.bytes // 2


@given(q=st.integers(1, 20), past=st.integers(0, 20), window=st.one_of(st.none(), st.integers(1, 12)))
def test_attention_of_a_segment_is_the_masked_product(q: int, past: int, window: int | None) -> None:
    """Every query sees itself and what came before, ``window`` keys at most; written out, without a kernel."""
    generator = torch.Generator().manual_seed(q * 31 + past)
    kv = q + past
    keys, values = torch.randn(2, 1, 1, 2, kv, 8, generator=generator)
    query = torch.randn(1, 4, q, 8, generator=generator)
    rows, at = torch.zeros(q, dtype=torch.long), torch.arange(past, kv)
    step = Step(keys.clone(), values.clone(), [Seg(0, 0, q, kv)], rows, at)
    module = SimpleNamespace(layer_idx=0)
    new_key, new_value = keys[0, :, :, past:], values[0, :, :, past:]
    out, _ = attention(module, query, new_key, new_value, None, 0.3, sliding_window=window, row_kv=step)

    key, value = (x[0, 0].repeat_interleave(2, dim=0) for x in (keys, values))
    scores = query[0] @ key.transpose(1, 2) * 0.3
    distance = at[:, None] - torch.arange(kv)[None]
    hidden = (distance < 0) | (distance >= (window or kv))
    expected = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
    torch.testing.assert_close(out[0].transpose(0, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_arithmetic_that_rows_lack_is_refused(llama: Any, name: str) -> None:
    """Ignored, it would change the answer silently."""
    one = torch.zeros(1, 1, 1, 8)
    step = Step(one[None], one[None], [], torch.zeros(0), torch.zeros(0))
    with pytest.raises(NotSupported, match=name):
        attention(llama, one, one, one, None, row_kv=step, **{name: 1.0})


def test_a_switched_model_says_why_its_own_forward_fails(model: Any) -> None:
    """Outside a step there are no rows, and a wrong answer would be worse than an error."""
    with pytest.raises(RuntimeError, match=f"{NAME}.*no rows"):
        model(input_ids=torch.tensor([[1, 2, 3]]))


def test_rows_may_hold_narrower_types(make_model: Callable[[Any], Any], llama: Any) -> None:
    """Keys and values take the model's type; logits are float32 all the same."""
    model = make_model(llama.config).to(torch.bfloat16)
    with switched(model):
        result = RowKV(model.config, 1, COLUMNS, dtype=torch.bfloat16).step(model, [(0, [1, 2, 3])])
    assert result.logits.dtype == torch.float32
    assert result.bad_rows == ()
