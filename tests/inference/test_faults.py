"""What an exception means for the engine."""

from __future__ import annotations

import pytest
import torch

from otelctx.errors import BudgetExhausted, EngineFailed
from otelctx.inference.faults import ERRORS, Broken, Failure, Kind, kind_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), "memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), "memory"),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "poisoned"),
        (torch.AcceleratorError("of a kind that nobody has met yet"), "poisoned"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "poisoned"),
        (RuntimeError("HIP error: unspecified launch failure"), "poisoned"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), "poisoned"),
        (RuntimeError("index out of range in self"), "error"),
        (ValueError("not enough memory of what was said"), "error"),
        (KeyError("CUDA error"), "error"),
        (Broken("nothing runs", poisoned=False), "error"),
        (Broken("the device is gone", poisoned=True), "poisoned"),
    ],
)
def test_each_exception_is_of_one_kind(error: Exception, kind: Kind) -> None:
    assert kind_of(error) == kind


def test_a_cpu_really_says_so() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert kind_of(caught.value) == "memory"


@pytest.mark.parametrize(
    ("failure", "cls", "status", "code"),
    [
        ("memory", BudgetExhausted, 503, "insufficient_memory"),
        ("not_finite", EngineFailed, 500, "non_finite_logits"),
        ("error", EngineFailed, 500, "engine_failed"),
    ],
)
def test_a_failure_has_an_answer(failure: Failure, cls: type[Exception], status: int, code: str) -> None:
    error = ERRORS[failure]()
    assert (type(error), error.status, error.code) == (cls, status, code)
