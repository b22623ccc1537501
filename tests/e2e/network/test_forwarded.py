"""Redirects and forward proxies: what goes along is decided by where a request ends up, hop by hop."""

from __future__ import annotations

import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
PORTS = {"http": 80, "https": 443}


class Forward:
    """A forward proxy: absolute form and CONNECT, whatever the name, to the worker of that scheme."""

    def __init__(self, relay: Any, listening: Any, ports: dict[str, int]) -> None:
        self.heads: list[bytes] = []
