"""A store whose clock stands still until a test moves it."""

from __future__ import annotations

import pytest

from otelctx.sessions.arena import Arena
from otelctx.sessions.store import Limits, SessionStore


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def arena() -> Arena:
    return Arena(16)


@pytest.fixture
def store(arena: Arena, clock: Clock) -> SessionStore:
    return SessionStore(arena, Limits(window=512, sessions=3, idle=60, lease=30), clock)
