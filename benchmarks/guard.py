"""``guard``: what it costs to enforce the token limit, and whether its verdicts are right; SmolLM2's tokenizer.

``refuse``  refusing a message of two megabytes, through tokenising it: what a server does that counts tokens first.
``turn``    a new message on a history of 4096 tokens, through rendering and tokenising all of it, which is what a
            server without sessions does with each turn. Both give the ids that are fed.
``wrong``   verdicts over random conversations that differ from those by the length of what the chat template renders
            and the tokenizer makes of it, both for the quick verdict and for the exact one, and refusals whose count is
            not the exact one where the guard says that it is. Most conversations are made to lie near the limit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from benchmarks._model import smollm2, some_words
from benchmarks.harness import Report, at_most, interleave, median_ratio, say, versions
from otelctx.errors import TokenLimitExceeded
from otelctx.inference.guard import Guard
from otelctx.inference.turn import Message, messages_of

__all__ = ["run"]

TARGETS: Final = {"refuse": at_most(0.05), "turn": at_most(0.1), "wrong": at_most(0)}
WINDOW: Final = 4096
HUGE: Final = 2_000_000  # bytes
_NEAR: Final = 256  # the window that conversations are checked against
_ROOM: Final = 16  # tokens that an answer needs
_TELL: Final = 20_000
_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz  ",
    "0123456789.,- ",
    " \n\t\r",
    "äöüßéàñçøåž ",
    "日本語の文字列を漢字仮名 ",
    "😀🎉👩‍💻🇩🇪✨ ",
    "{}[]()<>|=+-*/\\\"'`~!@#$%^&_;:? ",
    "\x00\x01\x04\x06\x13\x7f\u200b\ufeff\U0001f9d1",
)


def run(quick: bool) -> Report:
    report = Report("guard", TARGETS)
    with report.peer("smollm2"):
        tokenizer = smollm2().tokenizer
        report.options["tokenizer"] = f"SmolLM2-135M-Instruct, {versions('tokenizers', 'transformers')}"
        bench = _Bench(report, tokenizer, random.Random(1))
        bench.refuse(HUGE // (20 if quick else 1), rounds=1 if quick else 5)
        bench.turn(64 if quick else WINDOW - 256, rounds=1 if quick else 50)
        bench.wrong(200 if quick else 100_000)
    return report


class _Bench:
    def __init__(self, report: Report, tokenizer: Any, rng: random.Random) -> None:
        self._report, self._tokenizer, self._rng = report, tokenizer, rng
        self._guard = Guard(tokenizer, window=WINDOW)

    def refuse(self, size: int, rounds: int) -> None:
        text = some_words(self._tokenizer, size // 4, self._rng)[:size]
        guard = self._guard if size == HUGE else Guard(self._tokenizer, window=64)
        messages = [Message("user", text)]

        def ours() -> None:
            try:
                guard.check(messages)
            except TokenLimitExceeded:
                return
            raise AssertionError("it was not refused")

        times = interleave({"ours": ours, "tokenise": lambda: self._encode(text)}, rounds=rounds)
        self._report.ratios["refuse"] = median_ratio(times, "ours", "tokenise")
        self._report.figures["refuse_ms"] = 1e3 * min(times["ours"])

    def turn(self, history: int, rounds: int) -> None:
        said = [
            {"role": role, "content": some_words(self._tokenizer, 48, self._rng)}
            for _ in range(history // 128)
            for role in ("user", "assistant")
        ]
        new = {"role": "user", "content": some_words(self._tokenizer, 24, self._rng)}
        added = messages_of([new])
        pinned = len(self._guard.tokenizer.head(None).ids)
        alternatives = {
            "ours": lambda: self._guard.prompt(added, 256, mode="turns", first=False, pinned=pinned),
            "everything": lambda: self._encode(self._render([*said, new])),
        }
        times = interleave(alternatives, rounds=rounds)
        self._report.ratios["turn"] = median_ratio(times, "ours", "everything")
        self._report.figures["turn_us"] = 1e6 * min(times["ours"])

    def wrong(self, texts: int) -> None:
        guard = Guard(self._tokenizer, window=_NEAR)
        wrong = refused = 0
        for number in range(texts):
            if number % _TELL == 0:
                say(f"guard: {number} of {texts} conversations")
            messages = self._conversation()
            exact = len(self._encode(self._render(messages)))
            wrong += not _agrees(guard, messages, exact)
            refused += exact + _ROOM > _NEAR
        self._report.ratios["wrong"] = wrong
        self._report.figures |= {"conversations": texts, "refused": refused}

    def _conversation(self) -> list[dict[str, str]]:
        rng = self._rng
        roles = ["user", "assistant"] * rng.randrange(2) + ["user"]
        if rng.random() < 0.3:
            roles.insert(0, "system")
        # Characters for the whole of it such that its length in tokens falls on both sides of the limit.
        size = rng.choice((40, 200, 500, 900, 1400)) // len(roles)
        return [{"role": role, "content": self._text(rng.randrange(2 * size))} for role in roles]

    def _text(self, length: int) -> str:
        alphabet = self._rng.choice(_ALPHABETS)
        if self._rng.random() < 0.3:
            return some_words(self._tokenizer, max(1, length // 5), self._rng)
        return "".join(self._rng.choices(alphabet, k=length))

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _agrees(guard: Guard, messages: Sequence[dict[str, str]], exact: int) -> bool:
    fits = exact + _ROOM <= _NEAR
    try:
        guard.check(messages)
        quick = True
    except TokenLimitExceeded:
        quick = False
    try:
        return quick == fits and len(guard.admit(messages)) == exact and fits
    except TokenLimitExceeded as error:
        return quick == fits and not fits and error.details.get("n_prompt_tokens", exact) == exact
