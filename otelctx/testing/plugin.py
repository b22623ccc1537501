"""The pytest fixture ``otelctx_capture``. Imports nothing heavy: pytest loads it in every run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from otelctx.testing.captured import Captured

__all__ = ["otelctx_capture"]


@pytest.fixture
def otelctx_capture() -> Iterator[Captured]:
    """All spans and metrics that the test makes: ``seen.span("POST /chat").event("otelctx.truncation")``."""
    from otelctx.testing.captured import capture

    with capture() as seen:
        yield seen
