"""What a chat template does, found by rendering sentinels with it. Pure: the template is passed in as a function.

A template is *concatenative* if a conversation is a head, then one piece per message that depends on nothing but the
message, then the text that opens an answer. Then an old turn's tokens never change and a new turn costs what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Frame", "Pieces", "Render", "probe"]

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""``(messages, open an answer?) → text``; raises whatever it likes for what it does not take."""

_SYSTEM, _USER, _ASSISTANT = "system", "user", "assistant"
_MARK: Final = "Qz7sentinel"


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template puts around a message's content, and on which sides it strips the content first."""

    before: str
    after: str
    strip_left: bool = False
    strip_right: bool = False

    def content(self, text: str) -> str:
        """``text`` as the template has it."""
        text = text.lstrip() if self.strip_left else text
        return text.rstrip() if self.strip_right else text

    def text(self, content: str) -> str:
        return self.before + self.content(content) + self.after


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of a concatenative template. ``frames`` holds user, assistant and, if the template takes it in the
    middle of a conversation, system; ``head`` is around the first system message."""

    frames: Mapping[str, Frame]
    head: Frame
    default_head: str
    open: str

    @property
    def closing(self) -> str:
        """What follows an answer."""
        return self.frames[_ASSISTANT].after

    def render(self, messages: Sequence[Mapping[str, str]], open_answer: bool) -> str:
        """The same text as the template's own."""
        system = bool(messages) and messages[0]["role"] == _SYSTEM
        parts = [self.head.text(messages[0]["content"]) if system else self.default_head]
        parts += [self.frames[m["role"]].text(m["content"]) for m in messages[system:]]
        return "".join([*parts, self.open if open_answer else ""])


def probe(render: Render) -> Pieces | None:
    """The pieces of ``render``'s template, or ``None`` if it is not concatenative."""
    try:
        pieces = _pieces(render)
        return pieces if pieces is not None and _agrees(pieces, render) else None
    except Exception:  # a template raises what it likes at messages that it does not take
        return None


def _message(role: str, number: int) -> dict[str, str]:
    return {"role": role, "content": f" {_MARK}{number} "}


def _pieces(render: Render) -> Pieces | None:
    system, first, answer, second = (_message(r, n) for n, r in enumerate((_SYSTEM, _USER, _ASSISTANT, _USER)))
    one = render([first], False)
    two = render([first, answer], False)
    three = render([first, answer, second], False)
    opened = render([first], True)
    headed = render([system, first], False)
    if not (two.startswith(one) and three.startswith(two) and opened.startswith(one)):
        return None
    user, assistant = _frame(three[len(two) :], 3), _frame(two[len(one) :], 2)
    if user is None or assistant is None:
        return None
    own = user.text(first["content"])
    if not (one.endswith(own) and headed.endswith(own)):
        return None
    head = _frame(headed[: len(headed) - len(own)], 0)
    if head is None:
        return None
    frames = {_USER: user, _ASSISTANT: assistant}
    middle = _middle_system(render, [first, answer], two)
    if middle is not None:
        frames[_SYSTEM] = middle
    return Pieces(frames, head, one[: len(one) - len(own)], opened[len(one) :])


def _frame(text: str, number: int) -> Frame | None:
    mark = f"{_MARK}{number}"
    if text.count(mark) != 1:
        return None
    before, after = text.split(mark)
    left, right = before.endswith(" "), after.startswith(" ")
    return Frame(before.removesuffix(" ") if left else before, after.removeprefix(" "), not left, not right)


def _middle_system(render: Render, before: list[dict[str, str]], text: str) -> Frame | None:
    try:
        longer = render([*before, _message(_SYSTEM, 4)], False)
    except Exception:
        return None
    return _frame(longer[len(text) :], 4) if longer.startswith(text) else None


def _agrees(pieces: Pieces, render: Render) -> bool:
    """Whether the pieces give the template's text wherever a template might depend on its surroundings."""
    roles = [
        [_USER],
        [_SYSTEM, _USER],
        [_USER, _USER],  # a template that wants roles to alternate must see all messages
        [_USER, _ASSISTANT],
        [_SYSTEM, _USER, _ASSISTANT, _USER, _ASSISTANT, _USER],
        [_USER, _ASSISTANT, _ASSISTANT, _USER, _USER, _ASSISTANT],
    ]
    if _SYSTEM in pieces.frames:
        roles.append([_SYSTEM, _USER, _ASSISTANT, _SYSTEM, _USER])
    contents = [f"{_MARK} x", "\n\ty z \n", "", "<think>a</think>b", "{{ c }} 'd'"]
    for conversation in roles:
        for shift in range(len(contents)):
            messages = [
                {"role": role, "content": contents[(n + shift) % len(contents)]} for n, role in enumerate(conversation)
            ]
            if any(pieces.render(messages, o) != render(messages, o) for o in (False, True)):
                return False
    return True
