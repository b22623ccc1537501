"""A tiny model with random weights, as the load's replay takes it; nothing is read from a disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelctx.inference.loader import Loaded


@pytest.fixture(scope="session")
def make_loaded(torch_on_one_thread: None, make_tiny: Callable[[], tuple[Any, Any]]) -> Callable[[], Loaded]:
    """The same model each time; one belongs to an engine until that is closed."""

    def make() -> Loaded:
        model, tokenizer = make_tiny()
        return Loaded(model, tokenizer, "tiny", 512, (tokenizer.eos_token_id,))

    return make
