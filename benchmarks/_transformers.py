"""transformers' continuous batching, decoding on demand so that it can be timed in turn with something else."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.harness import MissingPeer

# transformers does not annotate it.
_generation: Any = GenerationConfig

__all__ = ["ContinuousBatching"]

_PAGE: Final = 256
# Everything is finished or has failed long before.
_PATIENCE: Final = 120.0


class ContinuousBatching:
    """``prompts`` prefilled and decoding greedily, up to ``tokens`` each; paused except in :meth:`decode`."""

    def __init__(self, model: Any, prompts: list[list[int]], tokens: int) -> None:
        chosen: dict[str, Any] = {
            # By default 60 % of all memory is taken and filled.
            "num_blocks": len(prompts) * ((len(prompts[0]) + tokens) // _PAGE + 2),
            "max_batch_tokens": 512,
            "allow_block_sharing": False,  # its advice for few short prompts; there is nothing to share here
        }
        text = ", ".join(f"{name}={value}" for name, value in chosen.items())
        generation = _generation(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=tokens)
        self._counts: Counter[str] = Counter()
        self._paused = ExitStack()
        self._manager = model.init_continuous_batching(generation, ContinuousBatchingConfig(page_size=_PAGE, **chosen))
        self.options = f"continuous batching, {model.config._attn_implementation}, greedy, page_size={_PAGE}, {text}"
        self._manager.start()
        self._ids = self._manager.add_requests(prompts, max_new_tokens=tokens, streaming=True)
        self._until(1)
        self._paused.enter_context(self._manager.pause())

    def decode(self, steps: int) -> float:
        """Seconds that ``steps`` steps took, each one token of every prompt."""
        self._drain()
        self._paused.close()
        self._until(min(self._counts[name] for name in self._ids) + 1)
        began = perf_counter()
        self._until(min(self._counts[name] for name in self._ids) + steps)
        seconds = perf_counter() - began
        self._paused.enter_context(self._manager.pause())
        return seconds

    def close(self) -> None:
        self._paused.close()
        self._manager.stop(block=True, timeout=_PATIENCE, hard_stop=True)
        self._manager.destroy()

    def _until(self, tokens: int) -> None:
        """Wait until every prompt has at least so many tokens."""
        end = perf_counter() + _PATIENCE
        while any(self._counts[name] < tokens for name in self._ids):
            self._take(1.0)
            if perf_counter() > end or not self._manager.is_running():
                raise MissingPeer("transformers' continuous batching stopped giving tokens")

    def _drain(self) -> None:
        while self._take(0.001):
            pass

    def _take(self, timeout: float) -> bool:
        output = self._manager.get_result(timeout=timeout)
        if output is None:
            return False
        if output.error is not None:
            raise MissingPeer(f"transformers' continuous batching failed: {output.error}")
        self._counts[output.request_id] = len(output.generated_tokens)
        return True
