"""Linear layers packed for the CPU's kernels: the same function, and the same weights afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from otelctx.errors import ConfigError
from otelctx.inference import runner
from otelctx.inference.kvrows import RowKV
from otelctx.inference.packed import pack, unpack
from otelctx.inference.runner import Runner


class Tied(nn.Module):
    """Embeddings, a layer of its own, one with a bias, and a head on the embeddings' weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 8)
        self.inner = nn.Linear(8, 8, bias=False)
        self.biased = nn.Linear(8, 8)
        self.head = nn.Linear(8, 19, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.biased(F.silu(self.inner(self.embed(ids)))))
        return found


@pytest.fixture
def tied() -> Tied:
    torch.manual_seed(5)
    return Tied().eval()


@pytest.fixture(autouse=True)
def needs_onednn() -> None:
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available():
        pytest.skip("this build of torch has no oneDNN: nothing is packed")


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("tokens", [0, 1, 2, 8, 37, 600])
@torch.inference_mode()
def test_a_packed_layer_gives_the_same(tokens: int) -> None:
    """For any number of tokens, also none, and for inputs that are not contiguous."""
    torch.manual_seed(tokens)
    for layer in (nn.Linear(72, 40, bias=False), nn.Linear(40, 33)):
        given = torch.randn(1, layer.in_features, tokens).transpose(1, 2)
        expected = layer(given)
        assert pack(layer) == [layer]
        torch.testing.assert_close(layer(given), expected, rtol=0, atol=1e-5)


def test_only_weights_of_ones_own_are_packed(tied: Tied) -> None:
    """A shared weight stays in the order in which the embeddings look it up."""
    ids = torch.arange(19)[None]
    with torch.inference_mode():
        expected = tied(ids)
        assert pack(tied) == [tied.inner, tied.biased]
        torch.testing.assert_close(tied(ids), expected, rtol=0, atol=1e-5)
    assert tied.head.weight is tied.embed.weight
    assert tied.inner.weight.shape == (8, 8)
    assert tied.inner.weight.dtype == torch.float32


def test_no_weight_is_kept_twice(tied: Tied) -> None:
    """The packed weight takes the place of the stored one."""
    pack(tied)
    dense = [name for name, value in tied.named_parameters() if value.layout == torch.strided]
    assert dense == ["embed.weight", "biased.bias"]


def test_unpacked_weights_are_the_same_bits(tied: Tied) -> None:
    """And the layers are plain ones again: they can be trained, and packed once more."""
    before, named = bits(tied), list(tied.state_dict())
    for _ in range(2):
        unpack(pack(tied))
        assert list(tied.state_dict()) == named
        assert all(torch.equal(value, before[name]) for name, value in tied.state_dict().items())
    tied(torch.arange(3)[None]).sum().backward()
    assert tied.inner.weight.grad is not None


def test_what_is_packed_already_is_left_alone(tied: Tied) -> None:
    packed = pack(tied)
    assert pack(tied) == []
    unpack(packed)


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.bfloat16])
def test_other_types_are_left_alone(tied: Tied, change: Callable[[nn.Module], nn.Module]) -> None:
    assert pack(change(tied)) == []


def test_a_layer_that_is_more_than_linear_is_left_alone() -> None:
    """It may do anything with its weight."""

    class Scaled(nn.Linear):
        def forward(self, given: Tensor) -> Tensor:
            return 2 * F.linear(given, self.weight)

    assert pack(nn.Sequential(Scaled(4, 4))) == []


def test_nothing_is_packed_while_onednn_is_off(tied: Tied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert pack(tied) == []


def test_where_packing_fails_the_layers_stay_as_they_are(tied: Tied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them packed would be as well, but nobody would know which."""
    before, own, calls = bits(tied), torch.ops.mkldnn._reorder_linear_weight, count(1)

    def fails_later(weight: Tensor, tokens: int) -> Tensor:
        if next(calls) == 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        found: Tensor = own(weight, tokens)
        return found

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", fails_later)
    assert pack(tied) == []
    assert next(calls) == 3
    assert all(torch.equal(value, before[name]) for name, value in tied.state_dict().items())
    assert "forward" not in vars(tied.inner)


@pytest.mark.parametrize("make", [lambda w: w.t().contiguous().t(), lambda w: w[:, ::2], lambda w: w[:1].expand(6, -1)])
@torch.inference_mode()
def test_weights_that_lie_otherwise_give_the_same(make: Callable[[Tensor], Tensor]) -> None:
    """Transposed, a part of another tensor, or one row for all."""
    torch.manual_seed(2)
    weight = make(torch.randn(6, 8))
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight)
    given = torch.randn(3, layer.in_features)
    expected = layer(given)
    assert pack(layer) == [layer]
    torch.testing.assert_close(layer(given), expected, rtol=0, atol=1e-5)
    unpack([layer])
    assert torch.equal(layer.weight, weight)


def test_a_model_that_is_served_unpacked_is_not_packed_by_who_comes_next(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first runner may be in the middle of a step."""
    tried: list[Any] = []

    def seen(model: Any) -> list[Any]:
        tried.append(model)
        return []

    monkeypatch.setattr(runner, "pack", seen)
    with closing(Runner(llama, rows=1, window=16)):
        with pytest.raises(ConfigError, match="not closed"):
            Runner(llama, rows=1, window=16)
        assert tried == [llama]


def test_a_closed_runner_gives_the_weights_back(llama: Any) -> None:
    """However often it is closed."""
    before = bits(llama)
    with closing(Runner(llama, rows=1, window=16)) as served:
        weights = [layer.weight for layer in llama.modules() if isinstance(layer, nn.Linear)]
        assert any(weight.is_mkldnn for weight in weights)
        served.step([(0, [1, 2, 3])])
        served.close()
    assert all(torch.equal(value, before[name]) for name, value in llama.state_dict().items())


def test_a_refused_model_keeps_its_weights(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is the gate that refuses it, the memory for its rows that is not there, or something else."""
    before = bits(llama)

    def refuse(model: Any) -> None:
        raise ConfigError("refused")

    def no_memory(*args: object, **options: object) -> RowKV:
        raise MemoryError

    def unknown(*args: object, **options: object) -> RowKV:
        raise ValueError("no such device")

    for name, fault, error in (
        ("check", refuse, ConfigError),
        ("RowKV", no_memory, ConfigError),
        ("RowKV", unknown, ValueError),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(runner, name, fault)
            with pytest.raises(error):
                Runner(llama, rows=1, window=16)
        assert all(torch.equal(value, before[key]) for key, value in llama.state_dict().items())


def test_a_model_that_uses_weights_past_their_layers_is_served_as_it_is(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opaque weight would fail it, so that it is not packed."""
    layer = llama.model.layers[0].mlp
    own = layer.forward

    def forward(given: Tensor) -> Tensor:
        found: Tensor = own(given) + 0 * F.linear(given, layer.up_proj.weight).sum()
        return found

    monkeypatch.setitem(vars(layer), "forward", forward)
    with closing(Runner(llama, rows=1, window=16)) as served:
        assert not layer.up_proj.weight.is_mkldnn
        served.step([(0, [1, 2, 3])])
