"""What an exception in a step means for the engine: a table, so that it is decided in one place.

``memory``    There was not enough of it. With less work, or a little later, the same call succeeds.
``poisoned``  The device's context is lost (a kernel's assertion, an illegal access). Each later call to it fails too,
              whatever it is for, until the process is a new one.
``error``     Anything else. It may come from one request's data, so the engine looks for that request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import torch

from otelctx.errors import BudgetExhausted, EngineFailed, OtelctxError

__all__ = ["ERRORS", "Broken", "Failure", "Kind", "engine_failed", "kind_of"]

Kind = Literal["memory", "poisoned", "error"]
Failure = Literal["memory", "not_finite", "error"]

# The first line that fits counts: classes of their own, or a text in a RuntimeError. CPUs have no class for a lack of
# memory; a driver's own lack of it comes as an AcceleratorError, which leaves the device as it was.
_KINDS: Final[tuple[tuple[Kind, tuple[type[BaseException], ...], tuple[str, ...]], ...]] = (
    ("memory", (torch.OutOfMemoryError, MemoryError), ()),
    (
        "memory",
        (),
        ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    ),
    ("poisoned", (torch.AcceleratorError,), ()),
    (
        "poisoned",
        (),
        (
            "CUDA error",
            "HIP error",
            "device-side assert",
            "illegal memory access",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_EXECUTION_FAILED",
        ),
    ),
)


class Broken(Exception):
    """The engine can't go on, and no single request is to blame. ``poisoned``: only a new process gets over it."""

    def __init__(self, reason: str, *, poisoned: bool) -> None:
        super().__init__(reason)
        self.poisoned = poisoned


def kind_of(error: BaseException) -> Kind:
    """Which line of the table ``error`` stands in."""
    if isinstance(error, Broken):
        return "poisoned" if error.poisoned else "error"
    text = str(error) if isinstance(error, RuntimeError) else ""
    for kind, classes, texts in _KINDS:
        if isinstance(error, classes) or any(part in text for part in texts):
            return kind
    return "error"


def engine_failed() -> OtelctxError:
    """What a request is told that the engine failed at."""
    return EngineFailed("the engine failed at this request")


ERRORS: Final[Mapping[Failure, Callable[[], OtelctxError]]] = {
    "memory": lambda: BudgetExhausted("there is not enough memory for this request; try again later"),
    "not_finite": lambda: EngineFailed("the model gave no finite logits for this request", code="non_finite_logits"),
    "error": engine_failed,
}
"""What the request is told whose part of a step has failed."""
