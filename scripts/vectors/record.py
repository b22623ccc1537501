"""All recordings, as the files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from scripts.vectors import acks, conversations, example, frames, headers, macs, outcomes, states

__all__ = ["ROOT", "differing", "files", "write"]

ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDER: Final = Path("proto/vectors")
_PAGE: Final = Path("docs/wire-format.md")
_RECORDERS: Final = (states, frames, acks, macs, headers, outcomes, conversations)


def files() -> dict[Path, str]:
    """Path below the repository's root → content."""
    found = {_FOLDER / f"{_name(recorder)}.json": _text(recorder.record()) for recorder in _RECORDERS}
    found[_PAGE] = example.inserted((ROOT / _PAGE).read_text())
    return found


def _name(module: Any) -> str:
    return str(module.__name__).rpartition(".")[2]


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, ensure_ascii=True) + "\n"


def differing() -> list[Path]:
    """Files whose content on disk is not what would be recorded now."""
    return [path for path, text in files().items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]


def write() -> list[Path]:
    """Write what differs; its paths."""
    changed = differing()
    for path, text in files().items():
        if path in changed:
            (ROOT / path).write_text(text)
    return changed
