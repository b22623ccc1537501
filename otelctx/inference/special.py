"""The special tokens of a tokenizer, to find them in text.

Most are found in a text as it is. A tokenizer may also look for some in the text as it has normalised it, and then
takes other spellings for them too, such as full-width or upper-case letters: where those are, only it can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

__all__ = ["SpecialTexts"]


class SpecialTexts:
    """How ``tokenizer``'s special tokens are spelled."""

    def __init__(self, tokenizer: Any) -> None:
        known = getattr(tokenizer, "added_tokens_decoder", {})
        added = known.values()
        texts = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
        self.ids = frozenset({n for n, token in known.items() if token.special} | set(tokenizer.all_special_ids))
        backend = getattr(tokenizer, "backend_tokenizer", None)
        folds = backend is not None and backend.normalizer is not None
        self._folding = backend if folds and any(token.special and token.normalized for token in added) else None
        self.stubborn: bool = self._folding is not None or any(len(text) == 1 for text in texts)
        """Whether there may be some in a text that :meth:`split` can't cut."""
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
        """``text`` cut behind the first character of each special token, so that none is left, unless it is
        :attr:`stubborn`; one part if it has none."""
        parts = _cut(text, self._cuts(text))
        return parts if self._folding is None else [half for part in parts for half in _cut(part, self._folded(part))]

    def _cuts(self, text: str) -> Iterator[int]:
        found = self._any.search(text)
        while found is not None:
            # Another one may begin inside this one.
            yield found.start() + 1
            found = self._any.search(text, found.start() + 1)

    def _folded(self, text: str) -> Iterator[int]:
        if self._folding is not None:
            found = self._folding.encode(text, add_special_tokens=False)
            yield from (
                start + 1 for token, (start, _) in zip(found.ids, found.offsets, strict=True) if token in self.ids
            )


def _cut(text: str, at: Iterable[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *at, len(text)])]
