"""``otelctx show window``: the token window of a session, as its worker tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelctx.errors import ConfigError
from otelctx.settings import Settings

__all__ = ["read", "rows", "show"]

_BAR: Final = 24  # characters
_PATIENCE: Final = 10.0  # seconds


def read(session: str, url: str, api_key: str | None) -> dict[str, Any]:
    """What the worker at ``url`` says of the session. Raises :class:`~otelctx.errors.ConfigError` if it says nothing.

    ``api_key`` is the one that owns the session.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    where = f"{url.rstrip('/').removesuffix('/v1')}/v1/sessions/{quote(session, safe='')}"
    try:
        answer = httpx.get(where, headers=headers, timeout=_PATIENCE)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no worker answers at {url}: {error}; say where it is with --url") from None
    told = _object(answer)
    refusal, window = told.get("error"), told.get("window")
    if answer.status_code == 404 and isinstance(refusal, dict) and refusal.get("code") == "session_not_found":
        whose = "that OTELCTX_API_KEY owns" if api_key else "without an owner; set OTELCTX_API_KEY to its owner's key"
        raise ConfigError(f"the worker at {url} has no session {session!r} {whose}")
    known = isinstance(window, dict) and all(type(window.get(name)) is int for name in ("used", "limit", "evicted"))
    if answer.status_code != 200 or not known:
        raise ConfigError(f"what answers at {url} is no worker of otelctx: HTTP {answer.status_code}")
    return told


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say, by name. Nested objects get a row for each of their values."""
    for name, value in told.items():
        if name in ("object", "window"):
            continue
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", str(inner)) for key, inner in value.items())
        else:
            yield name, str(value)


def _bar(window: Mapping[str, Any]) -> Text:
    used, limit = int(window["used"]), int(window["limit"])
    filled = round(_BAR * used / limit) if limit else 0
    text = Text("█" * filled, style="red" if used * 10 >= limit * 9 else "green")
    text.append("░" * (_BAR - filled), style="dim")
    return text.append(f" {used} of {limit} tokens, {window['evicted']} evicted", style="default")


def show(session: str, url: str, *, as_json: bool) -> None:
    """Print it. Raises :class:`~otelctx.errors.ConfigError` if there is nothing to print."""
    told = read(session, url, Settings.load().api_key)
    if as_json:
        print(json.dumps(told, indent=2))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("window", _bar(told["window"]))
    for name, value in rows(told):
        table.add_row(name, Text("".join(c for c in value if c.isprintable())))
    Console(highlight=False).print(table)
