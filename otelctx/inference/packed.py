"""Weights of linear layers in the order in which the CPU's matrix kernels read them.

Handed a weight as it was stored, a kernel puts it in its own order first, at each call. With the few tokens of a new
turn that takes a quarter of the time, and as much with eight rows that decode; weights that are packed once stay in
that order. They take the place of the stored ones, so that no weight is kept twice, and :func:`unpack` gives the same
bits back. The arithmetic stays float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["pack", "unpack"]

# Tokens of a forward that the order is chosen for; it is the best one, or next to it, for each number from 2 on.
_TOKENS: Final = 512


def _available() -> bool:
    mkldnn: Any = torch.backends.mkldnn
    return bool(mkldnn.is_available() and mkldnn.enabled)


def _packable(module: nn.Module, uses: Counter[int]) -> bool:
    """Whether ``module`` is a linear layer and nothing else, with a weight of its own. A head that shares its weight
    with the embeddings is not: they look their rows up in the stored order."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and type(module.weight) is nn.Parameter
        and uses[id(module.weight)] == 1
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
        and module.weight.layout == torch.strided
    )


def _forward(module: Any, tokens: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, module.weight, module.bias, "none", [], "")
    return found


@torch.inference_mode(False)
def pack(model: nn.Module) -> list[Any]:
    """Pack the float32 linear layers of ``model`` on the CPU; the result is for :func:`unpack`. Until then they take no
    part in training, and whoever reads their ``weight`` finds an opaque tensor of the same shape and type.

    None is packed where that can't be done, as without the memory for a second copy of the largest one."""
    packed: list[Any] = []
    try:
        _pack(model, packed)
    except Exception:  # a build of torch that has not all of it, or no memory: the layers work as they are
        unpack(packed)
        return []
    return packed


def _pack(model: nn.Module, packed: list[Any]) -> None:
    if not _available():
        return
    uses = Counter(id(one) for _, one in model.named_parameters(remove_duplicate=False))
    modules: Iterable[Any] = model.modules()  # mypy takes a layer's forward for what can't be assigned
    for module in modules:
        if _packable(module, uses):
            order = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), _TOKENS)
            module.weight = nn.Parameter(order, requires_grad=module.weight.requires_grad)
            module.forward = partial(_forward, module)
            packed.append(module)


@torch.inference_mode(False)
def unpack(packed: Sequence[Any]) -> None:
    """Give layers that :func:`pack` has packed their weights as they were."""
    for module in packed:
        module.weight = nn.Parameter(module.weight.detach().to_dense(), requires_grad=module.weight.requires_grad)
        del module.forward
