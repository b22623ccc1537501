"""Routes that are matched before a path is decoded, for ids that may hold slashes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope

__all__ = ["EncodedRoute"]


class EncodedRoute(Route):
    """A route whose parameters are decoded after the path was matched: ``%2F`` is a slash of a parameter's, and never
    the end of one. Paths that ``unless`` finds something in are other routes'.

    Without ``raw_path``, which ASGI does not promise, the decoded path is matched.
    """

    def __init__(self, path: str, endpoint: Any, *, methods: Sequence[str], name: str, unless: str | None) -> None:
        super().__init__(path, endpoint, methods=list(methods), name=name)
        self._unless = None if unless is None else re.compile(unless)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw = scope.get("raw_path")
        path = scope["path"] if not raw else raw.decode("latin-1")
        if self._unless is not None and self._unless.search(path):
            return Match.NONE, {}
        match, child = super().matches({**scope, "path": path})
        if raw and match is not Match.NONE:
            parameters = child["path_params"]
            for name in self.param_convertors:
                parameters[name] = unquote(parameters[name])
        return match, child
