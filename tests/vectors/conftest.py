from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otelctx.policy.trust import Key, Keyring

FOLDER = Path(__file__).resolve().parents[2] / "proto" / "vectors"


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], dict[str, Any]]:
    """A file of the recordings, by its name."""

    def load(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
        return found

    return load


@pytest.fixture(scope="session")
def ring() -> Callable[[dict[str, Any]], Keyring]:
    """The keys of a recording."""

    def make(recording: dict[str, Any]) -> Keyring:
        return Keyring([Key(k["id"], k["domain"], bytes.fromhex(k["master"])) for k in recording["keys"]])

    return make
