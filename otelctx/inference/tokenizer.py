"""Messages → token ids, as the model's chat template has them.

Where the template is concatenative and its pieces meet only at special tokens, each message is tokenised by itself and
once: the ids of the whole are those of the pieces, one after the other. Otherwise everything is rendered and tokenised
again each time.

The tokenizer is shared with other threads. Truncation and padding are settings of the shared object in its library, so
they are switched off once, here, and never passed with a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal

from otelctx.errors import ConfigError, InvalidRequest
from otelctx.inference.bounds import Bounds, bounds_of
from otelctx.inference.template import Frame, Pieces, probe
from otelctx.inference.turn import Message

__all__ = ["ChatTokenizer", "Piece", "SpecialTokens"]

SpecialTokens = Literal["neutralise", "reject"]
_MARK: Final = "Qz7sentinel"


@dataclass(frozen=True, slots=True)
class Piece:
    """Token ids, and how many special tokens in messages were neutralised for them."""

    ids: tuple[int, ...]
    neutralised: int = 0


class ChatTokenizer:
    """``tokenizer`` with its chat template.

    ``special_tokens``: what happens to a special token that is spelled out in a message. ``neutralise`` encodes it as
    the ordinary text that it is there, ``reject`` refuses the request.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, *, special_tokens: SpecialTokens = "neutralise") -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{type(tokenizer).__name__} has no chat template: set tokenizer.chat_template")
        self._tokenizer = tokenizer
        self._reject = special_tokens == "reject"
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self._special = _Special(tokenizer)
        # Half a special token encoded by itself must give its own text and nothing else.
        self._separable = tokenizer.decode([*self.encode("a"), *self.encode("|b")]) == "a|b"
        self._once = lru_cache(64)(lambda text: tuple(self.encode(text)))
        self._dated = "strftime_now" in str(tokenizer.chat_template)
        pieces = probe(self._render)
        self.pieces: Pieces | None = pieces if pieces is not None and self._meets_at_special(pieces) else None
        self.open: tuple[int, ...] = self._once(self.pieces.open) if self.pieces else ()
        self.closing: tuple[int, ...] = self._once(self.pieces.closing) if self.pieces else ()
        self.bounds: Bounds | None = _bounds(tokenizer)

    @property
    def concatenative(self) -> bool:
        """Whether messages can be tokenised one by one."""
        return self.pieces is not None

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` and nothing around it; special tokens in it are special."""
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def head(self, system: str | None, at: str = "messages[0].content") -> Piece:
        """What stands before the first exchange: the system message, or the template's own default."""
        pieces = self._pieces_now()
        if system is None:
            return Piece(self._once(pieces.default_head))
        return self._framed(pieces.head, system, at)

    def message(self, message: Message, at: str = "messages") -> Piece:
        """One message after the head. Raises :class:`~otelctx.errors.InvalidRequest` if the template has no place for
        its role there."""
        frame = self._pieces_now().frames.get(message.role)
        if frame is None:
            raise InvalidRequest(
                f"{at}.role: this model takes a {message.role} message only as the first",
                code="unsupported_value",
                param=f"{at}.role",
            )
        return self._framed(frame, message.content, f"{at}.content")

    def whole(self, messages: Sequence[Message]) -> Piece:
        """All messages and the opening of the answer, rendered by the template itself."""
        count, plain = 0, []
        for index, message in enumerate(messages):
            parts = self._split(message.content, f"messages[{index}].content")
            count += len(parts) - 1
            # The template's text can't be cut into pieces here; an invisible space keeps the token from being one.
            plain.append({"role": message.role, "content": "\u200b".join(parts)})
        try:
            text = self._render(plain, True)
        except Exception as error:  # a template raises what it likes
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {error}", param="messages"
            ) from None
        return Piece(tuple(self.encode(text)), count)

    def least_tokens(self, messages: Sequence[Message]) -> int:
        """A number of tokens that these messages have at least, from their bytes alone; 0 where nothing is proven."""
        # Templates may strip a message's ends.
        return 0 if self.bounds is None else self.bounds.least(m.content.strip() for m in messages)

    def most_tokens(self, messages: Sequence[Message]) -> int | None:
        """A number of tokens that these messages, rendered, have at most, without tokenising them; ``None`` where
        nothing is proven."""
        if self.bounds is None or self.pieces is None:
            return None
        return self.bounds.most(self.pieces.render([{"role": m.role, "content": m.content} for m in messages], True))

    def _framed(self, frame: Frame, content: str, at: str) -> Piece:
        parts = self._split(frame.content(content), at)
        if len(parts) == 1:
            return Piece(tuple(self.encode(f"{frame.before}{parts[0]}{frame.after}")))
        if self._separable:
            parts[0] = frame.before + parts[0]
            parts[-1] += frame.after
            return Piece(tuple(token for part in parts for token in self.encode(part)), len(parts) - 1)
        text = "\u200b".join(parts)
        return Piece(tuple(self.encode(f"{frame.before}{text}{frame.after}")), len(parts) - 1)

    def _split(self, content: str, at: str) -> list[str]:
        """``content`` cut inside each special token that it spells out."""
        parts = self._special.split(content)
        if len(parts) > 1 and self._reject:
            raise InvalidRequest(f"{at} contains a special token of the model", code="special_token", param=at)
        return parts

    def _pieces_now(self) -> Pieces:
        pieces = self.pieces
        if pieces is None:
            raise ConfigError("this chat template is not concatenative")
        if not self._dated:
            return pieces
        # The head holds today's date.
        user = pieces.frames["user"].text(_MARK)
        default = self._render([{"role": "user", "content": _MARK}], False)
        headed = self._render([{"role": "system", "content": _MARK * 2}, {"role": "user", "content": _MARK}], False)
        before, after = headed.removesuffix(user).split(_MARK * 2)
        head = Frame(before, after, pieces.head.strip_left, pieces.head.strip_right)
        return Pieces(pieces.frames, head, default.removesuffix(user), pieces.open)

    def _render(self, messages: Sequence[Mapping[str, str]], open_answer: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                [dict(m) for m in messages], tokenize=False, add_generation_prompt=open_answer
            )
        )

    def _meets_at_special(self, pieces: Pieces) -> bool:
        """Whether ids of pieces can be joined: each seam lies at a special token, and so it turns out to be."""
        frames = list(pieces.frames.values())
        ends = [pieces.default_head, pieces.head.after, *(frame.after for frame in frames)]
        starts = [pieces.open, *(frame.before for frame in frames)]
        seams = [(end, start) for end in ends if end for start in starts]
        # An answer's own ids are followed by what closes it, and an answer is opened as the template writes one.
        seams.append(("", pieces.closing or pieces.frames["user"].before))
        if pieces.frames["assistant"].before != pieces.open:
            return False
        if not all(self._special.ends(left) or self._special.starts(right) for left, right in seams):
            return False
        return all(self._joined(pieces, texts) for texts in _SAMPLES)

    def _joined(self, pieces: Pieces, texts: Sequence[str]) -> bool:
        users = [pieces.frames["user"].text(text) for text in texts]
        answers = [pieces.frames["assistant"].text(text) for text in texts]
        parts = [pieces.default_head, *(p for pair in zip(users, answers, strict=True) for p in pair), pieces.open]
        return [token for part in parts for token in self.encode(part)] == self.encode("".join(parts))


_SAMPLES: Final = (("a", " b", "\n"), ("", "1", "é\n\n"), ("  ", "\t.", "Zz "))


class _Special:
    """The special tokens of a tokenizer, to find them in text."""

    def __init__(self, tokenizer: Any) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        texts = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
        self._any = re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True)) or r"(?!)")
        # One that strips what stands beside it is no boundary between independent texts.
        eats = {str(t) for t in added if t.lstrip or t.rstrip or t.single_word or t.normalized}
        self._bounds = tuple(texts - eats)

    def starts(self, text: str) -> bool:
        return bool(self._bounds) and text.startswith(self._bounds)

    def ends(self, text: str) -> bool:
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


def _bounds(tokenizer: Any) -> Bounds | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else bounds_of(json.loads(backend.to_str()))
