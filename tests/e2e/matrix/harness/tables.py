"""What is declared of servers and applications: the matrix's two axes, and what a cell can't do, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["APPS", "BOOM", "CANNOT", "MODES", "App", "Mode", "cannot", "cases"]

BOOM = "support.Boom"  # error.type of what handlers raise


@dataclass(frozen=True)
class Mode:
    """``process`` is a name of ``serve.SERVERS``; ``headers``: how many a request may have."""

    process: str
    version: str
    headers: int = 400


MODES = {
    "uvicorn-h11": Mode("uvicorn-h11", "1.1"),
    "uvicorn-httptools": Mode("uvicorn-httptools", "1.1"),
    "hypercorn-1.1": Mode("hypercorn", "1.1"),
    "hypercorn-2": Mode("hypercorn", "2"),
    "granian-1.1": Mode("granian", "1.1"),
    "granian-2": Mode("granian", "2"),
}


@dataclass(frozen=True)
class App:
    """``raises``: exceptions of a handler come out of the application; else they are known by the 500 alone.

    ``routes``: templates where they are not written as in ``apps/raw.py``; ``None`` for a path that has none.
    """

    module: str
    raises: bool = True
    routes: Mapping[str, str | None] = field(default_factory=dict)

    def route(self, path: str) -> str | None:
        return self.routes.get(path, path)


APPS = {
    "raw": App("raw"),
    "starlette": App("starlette"),
    "starlette-added": App("starlette"),
    "starlette-base-inside": App("starlette"),
    "starlette-base-outside": App("starlette"),
    "fastapi": App("fastapi"),
    "fastapi-wrapped": App("fastapi"),
}

# (mode, application, case) → why; "*" is any.
CANNOT: dict[tuple[str, str, str], str] = {}


def cannot(mode: str, app: str, case: str) -> str | None:
    """Why ``case`` is not tried in this cell."""
    keys = ((m, a, case) for m in (mode, "*") for a in (app, "*"))
    return next((CANNOT[key] for key in keys if key in CANNOT), None)


def cases(mode: str, app: str, every: Iterable[str]) -> list[str]:
    """Those of ``every`` case that the cell can express."""
    return [case for case in every if cannot(mode, app, case) is None]
