"""Token ids to text, one at a time, without ever showing half a character.

A table holds the bytes of every token, so that a token costs one look-up and one incremental UTF-8 step instead of
decoding the text again. What the stream gives in all is what ``tokenizer.decode`` gives at once; U+FFFD stands only for
bytes that no later token can complete.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otelctx.errors import ConfigError

__all__ = ["Detokenizer", "Stream"]

_Utf8: Final = codecs.getincrementaldecoder("utf-8")


def _byte_level() -> dict[str, int]:
    """GPT-2's alphabet: every byte as a printable character, the printable ones as themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_LEVEL: Final = _byte_level()


@dataclass(slots=True)
class _Rules:
    """What a tokenizer's decoder does to each token, and how many of which character it strips from the text."""

    byte_level: bool = False
    byte_fallback: bool = False
    replace: tuple[tuple[str, str], ...] = ()
    strip: tuple[str, int] = ("", 0)

    def read(self, step: Mapping[str, Any]) -> bool:
        """Take over one step of the decoder; False if it is one that this module does not do."""
        match step:
            case {"type": "ByteLevel"}:
                self.byte_level = True
            case {"type": "ByteFallback"}:
                self.byte_fallback = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self.replace += ((old, new),)
            case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0}:
                self.strip = (content, start)
            case {"type": "Fuse"}:
                pass
            case _:
                return False
        return True

    def bytes_of(self, token: str) -> bytes:
        if self.byte_level and all(character in _BYTE_LEVEL for character in token):
            return bytes(_BYTE_LEVEL[character] for character in token)
        for old, new in self.replace:
            token = token.replace(old, new)
        if self.byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.encode()


def _rules(tokenizer: Any) -> _Rules:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
    rules = _Rules()
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
    for step in steps:
        if step is None or not rules.read(step):
            raise ConfigError(f"can't stream text from {type(tokenizer).__name__}: its decoder is {json.dumps(step)}")
    return rules


class Detokenizer:
    """The byte table of one tokenizer; read-only, so that any number of streams on any thread may share it.

    Raises:
        ConfigError: the tokenizer is neither byte-level nor SentencePiece with byte fallback.
    """

    def __init__(self, tokenizer: Any) -> None:
        rules = _rules(tokenizer)
        special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self.table = [b""] * (max(vocabulary.values()) + 1)
        for token, number in vocabulary.items():
            if number not in special:
                self.table[number] = rules.bytes_of(token)
        self._strip = rules.strip

    def stream(self) -> Stream:
        """A new text, with nothing in it yet."""
        return Stream(self.table, *self._strip)

    def text(self, ids: Iterable[int]) -> str:
        """All of ``ids`` at once, special tokens left out."""
        stream = self.stream()
        return "".join([*map(stream.push, ids), stream.finish()[0]])


class Stream:
    """One text as it grows. Not thread-safe."""

    __slots__ = ("_character", "_decoder", "_strip", "_table")

    def __init__(self, table: list[bytes], character: str, strip: int) -> None:
        self._table = table
        self._character = character
        self._strip = strip
        self._decoder = _Utf8(errors="replace")

    @property
    def pending(self) -> int:
        """Bytes of a character that is not complete yet."""
        return len(self._decoder.getstate()[0])

    def push(self, token: int) -> str:
        """The text that ``token`` completes; special tokens and ids outside the vocabulary have none."""
        piece = self._table[token] if 0 <= token < len(self._table) else b""
        return self._stripped(self._decoder.decode(piece))

    def finish(self) -> tuple[str, int]:
        """End the text: U+FFFD for a character that was never completed, or ``""``, and how many bytes it had."""
        pending = self.pending
        return self._stripped(self._decoder.decode(b"", final=True)), pending

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(self._character):
                self._strip = 0
                break
            text = text[len(self._character) :]
            self._strip -= 1
        return text
