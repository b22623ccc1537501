"""Variables that nobody reads, though somebody may have meant them to be read: those change nothing, in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Final

from otelctx.settings import VARIABLES

__all__ = ["misspelt", "of_opentelemetry"]

# How alike two names are, at least, for one to be a slip of the other: without what they all begin with. Names of
# OpenTelemetry differ in little where they mean different things, and nobody knows all that there are.
_OURS: Final = 0.75
_THEIRS: Final = 0.93
_PREFIX: Final = "OTELCTX_"


def of_opentelemetry() -> frozenset[str]:
    """Names of the variables that the installed parts of OpenTelemetry say they read; they say so by entry points."""
    found: set[str] = set()
    for entry in entry_points(group="opentelemetry_environment_variables"):
        try:
            module = entry.load()
        except Exception:  # a package that does not fit the others is theirs to report
            continue
        found |= {value for value in vars(module).values() if isinstance(value, str) and value.startswith("OTEL_")}
    return frozenset(name for name in found if name.replace("_", "").isalnum())


def misspelt(given: Iterable[str], theirs: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Those of ``given`` that are read by nobody, each with the name that may have been meant; ``None`` for one of ours
    that is like no other. One of OpenTelemetry's that is like no other may be read by what is not known here.
    """
    known = VARIABLES | set(theirs)
    for name in given:
        if name in known:
            continue
        upper = name.upper()
        meant = upper if upper in known else _nearest(upper, known)
        if meant is not None or upper.startswith(_PREFIX):
            yield name, meant


def _nearest(name: str, known: Iterable[str]) -> str | None:
    ours = {variable.removeprefix(_PREFIX): variable for variable in known if variable.startswith(_PREFIX)}
    for prefix in (_PREFIX, "OTEL_CTX_", "OTELCTX"):
        if name.startswith(prefix):
            found = get_close_matches(name.removeprefix(prefix), ours, 1, _OURS)
            return ours[found[0]] if found else None
    return next(iter(get_close_matches(name, [v for v in known if v not in ours.values()], 1, _THEIRS)), None)
