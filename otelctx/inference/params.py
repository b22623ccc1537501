"""How an answer is sampled, as OpenAI's API says it: values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otelctx.errors import InvalidRequest

__all__ = ["Params"]

# Below it the division overflows float32 long before the result differs from the argmax.
_GREEDY_BELOW: Final = 1e-5
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, float("inf")),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True, slots=True)
class Params:
    """How to sample, with the defaults of OpenAI's API.

    ``temperature`` 0–2, where 0 is greedy; ``top_p`` 0–1; ``top_k`` from 1, or 0 for all; ``seed`` any int;
    ``frequency_penalty`` and ``presence_penalty`` −2–2, over the tokens generated so far.

    Raises:
        InvalidRequest: a value is out of range; ``param`` names it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            # Written so that NaN is refused too.
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}, not {value!r}", param=name)
        if not isinstance(self.top_k, int):
            raise InvalidRequest(f"top_k must be an integer, not {self.top_k!r}", param="top_k")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise InvalidRequest(f"seed must be an integer, not {self.seed!r}", param="seed")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without chance."""
        return self.temperature < _GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether generated tokens weigh on the next."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0
