"""All cases by their names. Each is a function of a :class:`~harness.cell.Cell` that its module lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from harness import context_cases, http_cases, left_cases, odd_cases, websocket_cases
from harness.cell import Cell

__all__ = ["CASES"]

_MODULES: Final = (http_cases, left_cases, odd_cases, context_cases, websocket_cases)
CASES: Final[dict[str, Callable[[Cell], None]]] = {case.__name__: case for module in _MODULES for case in module.CASES}
