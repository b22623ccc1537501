"""Messages → token ids, as the model's chat template has them.

Where the template is concatenative and its pieces meet only at special tokens, each message is tokenised by itself and
once: the ids of the whole are those of the pieces, one after the other. Otherwise everything is rendered and tokenised
again each time.

The tokenizer is shared with other threads. Truncation and padding are settings of the shared object in its library, so
they are switched off once, here, and never passed with a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, takewhile
from typing import Any, Final, Literal

from otelctx.errors import ConfigError, InvalidRequest
from otelctx.inference.bounds import Bounds, bounds_of
from otelctx.inference.special import SpecialTexts
from otelctx.inference.template import Frame, Pieces, probe
from otelctx.inference.turn import Message

__all__ = ["ChatTokenizer", "Piece", "Rendered", "SpecialTokens"]

SpecialTokens = Literal["neutralise", "reject"]
_MARK: Final = "Qz7sentinel"
_NAME: Final = "Qz7name"
_INVISIBLE: Final = "\u200b"


@dataclass(frozen=True, slots=True)
class Piece:
    """Token ids, and how many special tokens in messages were neutralised for them."""

    ids: tuple[int, ...]
    neutralised: int = 0


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as its template writes it. ``parts`` are encoded each by itself: where they meet, a message spells
    out a special token that must not become one."""

    parts: tuple[str, ...]
    neutralised: int = 0


class ChatTokenizer:
    """``tokenizer`` with its chat template.

    ``special_tokens``: what happens to a special token that is spelled out in a message. ``neutralise`` encodes it as
    the ordinary text that it is there, or refuses the request where that can't be done; ``reject`` refuses it always.

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
        self._special = SpecialTexts(tokenizer)
        # Half a special token encoded by itself must give its own text and nothing else.
        self._separable = tokenizer.decode([*self.encode("a"), *self.encode("|b")]) == "a|b"
        self._once = lru_cache(64)(lambda text: tuple(self.encode(text)))
        self._dated = "strftime_now" in str(tokenizer.chat_template)
        self._names = self._writes_names()
        pieces = probe(self._render)
        self.pieces: Pieces | None = pieces if pieces is not None and self._meets_at_special(pieces) else None
        self.open: tuple[int, ...] = self._once(self.pieces.open) if self.pieces else ()
        self.closing: tuple[int, ...] = self._once(self.pieces.closing) if self.pieces else ()
        self.bounds: Bounds | None = _bounds(tokenizer)
        self.leading: tuple[int, ...] = self._leading()
        self._fixed = lru_cache(64)(self._fixed_head)

    @property
    def concatenative(self) -> bool:
        """Whether messages can be tokenised one by one."""
        return self.pieces is not None

    def names(self, messages: Sequence[Message]) -> bool:
        """Whether the template writes a name that one of ``messages`` has. Those are not tokenised one by one."""
        return self._names and any(message.name for message in messages)

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
        return self._framed(self._frame(message, at), message.content, f"{at}.content")

    def text(self, text: str, at: str = "prompt") -> Piece:
        """Ids of ``text`` as it is, without a template and after what the tokenizer itself begins a text with."""
        return self._framed(Frame("", ""), text, at)

    def render(self, messages: Sequence[Message], since: int = 0) -> Rendered:
        """All messages and the opening of the answer, as the template itself writes them.

        Messages before ``since`` were accepted in an earlier request: what they spell out is neither refused nor
        counted any more. Raises :class:`~otelctx.errors.InvalidRequest`; places in it count from ``since`` on.
        """
        plain, neutralised = [], 0
        mark = self._mark(messages)
        for index, message in enumerate(messages):
            fields = {"content": message.content}
            if self._names and message.name:
                fields["name"] = message.name
            for field, given in fields.items():
                if index < since:
                    parts = self._special.split(given)
                else:
                    parts = self._split(given, f"messages[{index - since}].{field}")
                    neutralised += len(parts) - 1
                fields[field] = mark.join(parts)
            plain.append({"role": message.role, **fields})
        try:
            text = self._render(plain, True)
        except Exception as error:  # a template raises what it likes
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {error}", param="messages"
            ) from None
        return Rendered(tuple(text.split(mark)) if self._separable else (text,), neutralised)

    def tokens(self, rendered: Rendered) -> tuple[int, ...]:
        """Ids of what :meth:`render` gave."""
        return tuple(token for part in rendered.parts for token in self.encode(part))

    def whole(self, messages: Sequence[Message]) -> Piece:
        """All messages and the opening of the answer, rendered by the template itself."""
        rendered = self.render(messages)
        return Piece(self.tokens(rendered), rendered.neutralised)

    def fixed_head(self, system: str | None, ids: Sequence[int]) -> int:
        """How many of the first tokens of ``ids``, a conversation with this system message, any other such
        conversation begins with too."""
        return _shared(self._fixed(system), ids)

    def least_tokens(self, messages: Sequence[Message]) -> int:
        """A number of tokens that these messages have at least, from their bytes alone; 0 where nothing is proven."""
        if self.bounds is None or self.pieces is None or self.names(messages):
            return 0  # a template that looks at the whole conversation may leave out what it likes
        # Templates may strip a message's ends.
        return self.bounds.least(m.content.strip() for m in messages)

    def least_rendered(self, rendered: Rendered) -> int:
        """A number of tokens that ``rendered`` has at least; 0 where nothing is proven."""
        return 0 if self.bounds is None else self.bounds.least(rendered.parts)

    def most_tokens(self, messages: Sequence[Message]) -> int | None:
        """A number of tokens that these messages, rendered, have at most, without tokenising them; ``None`` where
        nothing is proven. Raises :class:`~otelctx.errors.InvalidRequest` as if they were tokenised."""
        if self.bounds is None:
            return None
        pieces = self.pieces
        if pieces is None or self.names(messages):
            return sum(map(self.bounds.most, self.render(messages).parts))
        system = bool(messages) and messages[0].role == "system"
        frames = [self._frame(m, f"messages[{n}]") for n, m in enumerate(messages) if n or not system]
        if self._reject or self._special.stubborn:
            for index, message in enumerate(messages):
                self._split(message.content, f"messages[{index}].content")
        texts = [f.text(m.content) for f, m in zip(frames, messages[system:], strict=True)]
        head = pieces.head.text(messages[0].content) if system else pieces.default_head
        return sum(map(self.bounds.most, (head, *texts, pieces.open)))

    def _frame(self, message: Message, at: str) -> Frame:
        frame = self._pieces().frames.get(message.role)
        if frame is None:
            raise InvalidRequest(
                f"{at}.role: this model takes a {message.role} message only as the first",
                code="unsupported_value",
                param=f"{at}.role",
            )
        return frame

    def _framed(self, frame: Frame, content: str, at: str) -> Piece:
        parts = self._split(frame.content(content), at)
        if len(parts) == 1:
            return Piece(tuple(self.encode(f"{frame.before}{parts[0]}{frame.after}")))
        if self._separable:
            parts[0] = frame.before + parts[0]
            parts[-1] += frame.after
            return Piece(tuple(token for part in parts for token in self.encode(part)), len(parts) - 1)
        # Half a token is not itself by itself here; an invisible space keeps the halves apart.
        text = _INVISIBLE.join(parts)
        return Piece(tuple(self.encode(f"{frame.before}{text}{frame.after}")), len(parts) - 1)

    def _split(self, content: str, at: str) -> list[str]:
        """``content`` cut inside each special token that it spells out."""
        parts = self._special.split(content)
        if len(parts) > 1 and (self._reject or not self._harmless(parts)):
            raise InvalidRequest(f"{at} contains a special token of the model", code="special_token", param=at)
        return parts

    def _harmless(self, parts: list[str]) -> bool:
        """Whether nothing of a text that was cut is special any more. One of a single character can't be cut."""
        texts = parts if self._separable else [_INVISIBLE.join(parts)]
        return not any(token in self._special.ids for text in texts for token in self.encode(text))

    def _mark(self, messages: Sequence[Message]) -> str:
        """What stands where a special token is cut, while a template has the text in its hands."""
        if not self._separable:
            return _INVISIBLE
        marks = (f"\ue000{number}\ue000" for number in count())
        return next(mark for mark in marks if not any(mark in m.content or mark in (m.name or "") for m in messages))

    def _writes_names(self) -> bool:
        for roles in (("system", "user", "assistant", "user"), ("user", "assistant"), ("user",)):
            try:
                text = self._render([{"role": role, "content": _MARK, "name": _NAME} for role in roles], True)
            except Exception:  # a template raises what it likes at messages that it does not take
                continue
            if _NAME in text:
                return True
        return False

    def _leading(self) -> tuple[int, ...]:
        plain = self.encode("a")
        full = list(self._tokenizer.encode("a", add_special_tokens=True))
        return tuple(takewhile(lambda token: token not in plain[:1], full))

    def _fixed_head(self, system: str | None) -> tuple[int, ...]:
        before = [] if system is None else [Message("system", system)]
        try:
            one, other = (self.whole([*before, Message("user", text)]).ids for text in ("a", "Z"))
        except InvalidRequest:
            return ()
        return one[: _shared(one, other)]

    def _pieces(self) -> Pieces:
        if self.pieces is None:
            raise ConfigError("this chat template is not concatenative")
        return self.pieces

    def _pieces_now(self) -> Pieces:
        pieces = self._pieces()
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


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _bounds(tokenizer: Any) -> Bounds | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else bounds_of(json.loads(backend.to_str()))
