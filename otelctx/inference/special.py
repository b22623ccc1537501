"""The special tokens of a tokenizer, to find them in text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

__all__ = ["SpecialTexts"]


class SpecialTexts:
    """How ``tokenizer``'s special tokens are spelled."""

    def __init__(self, tokenizer: Any) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        texts = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
        self._any = re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True)) or r"(?!)")
        # One that strips what stands beside it is no boundary between independent texts.
        eats = {str(t) for t in added if t.lstrip or t.rstrip or t.single_word or t.normalized}
        self._bounds = tuple(texts - eats)

    def starts(self, text: str) -> bool:
        """Whether ``text`` begins with one, so that what stands before it can't change its ids."""
        return bool(self._bounds) and text.startswith(self._bounds)

    def ends(self, text: str) -> bool:
        """Whether ``text`` ends with one."""
        return bool(self._bounds) and text.endswith(self._bounds)

    def split(self, text: str) -> list[str]:
        """``text`` cut behind the first character of each special token, so that none is left; one part if it has
        none."""
        cuts = [0, *self._cuts(text), len(text)]
        return [text[a:b] for a, b in pairwise(cuts)]

    def _cuts(self, text: str) -> Iterator[int]:
        found = self._any.search(text)
        while found is not None:
            # Another one may begin inside this one.
            yield found.start() + 1
            found = self._any.search(text, found.start() + 1)
