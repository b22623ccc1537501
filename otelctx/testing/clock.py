"""Time that passes only when somebody says so."""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """``now`` in seconds. Called, it is a clock; ``await clock.sleep(2)`` returns at once, two seconds later."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Raises ``ValueError`` for less than nothing."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
