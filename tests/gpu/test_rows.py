"""Rows on a CUDA device: what they give, what they survive, and that memory comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from otelctx.inference import stepping
from otelctx.inference.runner import Runner
from otelctx.inference.sampling import Params, RowState, Sampler

pytestmark = pytest.mark.gpu

LENGTHS = (200, 64, 129)


def ids_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (length,), generator=generator).tolist()


def last_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1].float()


@pytest.mark.parametrize("static", [True, False], ids=["static", "ragged"])
@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 2e-3), (torch.bfloat16, 0.06)], ids=["float32", "bfloat16"]
)
def test_rows_give_what_the_models_own_forward_gives(
    make: Callable[[torch.dtype], Any], dtype: torch.dtype, share: float, static: bool
) -> None:
    """Chunks beside decoding rows of other lengths; within ``share`` of the largest logit."""
    reference, runner = make(dtype), Runner(make(dtype), rows=4, window=512, static=static)
    held = [ids_of(length, seed) for seed, length in enumerate(LENGTHS)]
    for row, ids in enumerate(held):
        runner.step([(row, ids[:50])])
        runner.step([(row, ids[50:])])
    for turn in range(8):
        work = [(row, ids_of(17 if row == turn % 3 else 1, 100 + 10 * turn + row)) for row in range(3)]
        result = runner.step(work)
        for (row, ids), line in zip(work, result.logits, strict=True):
            held[row] += ids
            expected = last_logits(reference, held[row])
            assert float((line - expected).abs().max()) <= share * float(expected.abs().max())
    runner.close()


def test_the_default_on_a_device_is_static(make: Callable[[torch.dtype], Any]) -> None:
    runner = Runner(make(torch.float32), rows=2, window=64)
    assert runner.kv._static
    assert bool((runner.kv._keys == 0).all())
    runner.close()


def test_a_real_lack_of_memory_costs_only_the_step(make: Callable[[torch.dtype], Any], cuda: torch.device) -> None:
    """Nearly all memory is taken by somebody else: work is halved until it fits or fails, and the rows go on."""
    runner = Runner(make(torch.float32), rows=3, window=2048)
    ids = [ids_of(1500, 1), ids_of(40, 2)]
    expected = [line.clone() for line in runner.step([(0, ids[0][:9]), (1, ids[1][:9])]).logits]
    for row in (0, 1):
        runner.kv.zero(row)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - (96 << 20)), dtype=torch.uint8, device=cuda)
    try:
        stepped = stepping.run(runner, [(0, ids[0]), (1, ids[1])])
        assert sum(stepped.counts) > 0
    finally:
        del hog
        torch.cuda.empty_cache()
    for row in (0, 1):
        runner.kv.zero(row)
    again = runner.step([(0, ids[0][:9]), (1, ids[1][:9])]).logits
    torch.testing.assert_close(again, torch.stack(expected), rtol=1e-4, atol=1e-4)
    runner.close()


def test_ids_out_of_range_never_reach_the_device(make: Callable[[torch.dtype], Any]) -> None:
    """There they would poison the whole process."""
    runner = Runner(make(torch.float32), rows=1, window=64)
    with pytest.raises(ValueError, match="out of range"):
        runner.step([(0, [512])])
    assert runner.step([(0, [511])]).bad_rows == ()
    torch.cuda.synchronize()
    runner.close()


def test_a_row_that_is_not_finite_leaves_the_others_alone(make: Callable[[torch.dtype], Any]) -> None:
    """Static rows are read beyond their length: what a bad row left there must not come through the mask."""
    runner = Runner(make(torch.float32), rows=2, window=256)
    runner.step([(0, ids_of(20, 1)), (1, ids_of(30, 2))])
    with torch.inference_mode():
        runner.kv._keys[:, 1, :, :30] = float("nan")
    result = runner.step([(0, [7]), (1, [8])])
    assert result.bad_rows == (1,)
    assert bool(result.logits[0].isfinite().all())
    assert runner.step([(0, [7]), (1, [8])]).bad_rows == ()
    runner.close()


@pytest.mark.parametrize("params", [Params(temperature=0.0), Params(seed=3), Params(0.7, 0.9, 40, seed=4)], ids=repr)
def test_draws_are_the_same_as_on_a_cpu(cuda: torch.device, params: Params) -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(5)) * 4
    drawn = [Sampler().sample(where, [RowState(params) for _ in range(3)]) for where in (logits, logits.to(cuda))]
    assert drawn[0] == drawn[1]


def test_closing_gives_the_memory_back(make: Callable[[torch.dtype], Any]) -> None:
    model = make(torch.float32)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    runner = Runner(model, rows=8, window=2048)
    assert torch.cuda.memory_allocated() - before >= runner.kv.bytes
    runner.close()
    del runner
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
