"""A turn's place in its session's window: what is dropped for it, what is appended, and what is kept of its answer.

Everything happens in one transaction, which begins with the turn and ends with its commit or rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otelctx.inference.detokenize import Detokenizer
from otelctx.inference.overflow import Fits, Mode, Reject, Truncate, plan
from otelctx.inference.prompt import Prompt, system_of
from otelctx.inference.rerender import text_limit
from otelctx.inference.turn import TurnRequest
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow, Tx

__all__ = ["Placed", "kept_ids", "place", "place_alone", "remember", "shown_text"]


@dataclass(frozen=True, slots=True)
class Placed:
    """``ids``: all that is in context, int32; ``before``: tokens that the window held, ``evicted`` of which left."""

    ids: NDArray[np.int32]
    verdict: Fits | Truncate
    tx: Tx | None = None
    before: int = 0
    evicted: int = 0


def place_alone(prompt: Prompt, window: int, max_tokens: int | None, mode: Mode = "reject") -> Placed:
    """A turn without a session: its prompt is all there is, and what had to go from it has gone. Raises
    ``TokenLimitExceeded``."""
    return Placed(np.asarray(prompt.ids, np.int32), _as_it_is(prompt, window, max_tokens, mode))


def _as_it_is(prompt: Prompt, window: int, max_tokens: int | None, mode: Mode) -> Fits | Truncate:
    """The verdict on a prompt of which no more can go."""
    head, total = len(prompt.head), len(prompt.ids)
    verdict = plan(window=window, pinned=head, turns=(), new=total - head, max_tokens=max_tokens, mode=mode)
    if isinstance(verdict, Reject):
        raise verdict.error()
    if not prompt.cut:
        return verdict
    return Truncate(prompt.cut, prompt.dropped, total + prompt.dropped, total, window, verdict.output)


def place(record: SessionRecord, prompt: Prompt, max_tokens: int | None, mode: Mode) -> Placed:
    """Make room for ``prompt`` in the session's window and append it, in a transaction that stays open.

    Raises ``TokenLimitExceeded`` or ``ArenaExhausted``; the window is then as it was.
    """
    window = record.window
    tx = window.begin()
    try:
        if prompt.messages is not None:
            return _rewrite(window, tx, prompt, max_tokens, mode)
        return _place(record, window, tx, prompt, max_tokens, mode)
    except BaseException:
        window.rollback(tx)
        raise


def _place(
    record: SessionRecord, window: TokenWindow, tx: Tx, prompt: Prompt, max_tokens: int | None, mode: Mode
) -> Placed:
    # What closes the last answer was not appended with it: it is fed first now, and belongs to that exchange.
    owed = record.pending
    old = window.turns
    if old:
        old[-1] += len(owed)
    older = [len(exchange) for exchange in prompt.exchanges[:-1]]
    verdict = plan(
        window=window.limit,
        pinned=window.pinned + len(prompt.head),
        turns=[*old, *older],
        new=len(prompt.exchanges[-1]) + len(prompt.open),
        max_tokens=max_tokens,
        mode=mode,
    )
    if isinstance(verdict, Reject):
        raise verdict.error()
    before, drops = window.kept, verdict.turns if isinstance(verdict, Truncate) else 0
    evicted = _append(window, tx, prompt, owed, min(drops, len(old)), max(0, drops - len(old)))
    return Placed(window.tokens(), verdict, tx, before, evicted)


def _rewrite(window: TokenWindow, tx: Tx, prompt: Prompt, max_tokens: int | None, mode: Mode) -> Placed:
    """The window becomes ``prompt``, which is the session's conversation rendered anew."""
    verdict = _as_it_is(prompt, window.limit, max_tokens, mode)
    before = window.kept
    # Exchanges that came with this request and were dropped at once never were in the window.
    evicted = min(before, prompt.dropped)
    window.replace(tx, prompt.ids, evicted=evicted, pinned=len(prompt.head))
    return Placed(window.tokens(), verdict, tx, before, evicted)


def _append(window: TokenWindow, tx: Tx, prompt: Prompt, owed: Sequence[int], evict: int, skip: int) -> int:
    """``evict`` exchanges leave the window, the prompt's first ``skip`` never come in. Returns the tokens evicted."""
    if prompt.head:
        window.append(tx, prompt.head)
        window.pin(tx, len(prompt.head))
    evicted = window.evict_turns(tx, evict)
    if window.marks:
        window.append(tx, owed)
    for exchange in prompt.exchanges[skip:]:
        window.mark_turn(tx)
        window.append(tx, exchange)
    window.append(tx, prompt.open)
    return evicted


def kept_ids(detokenizer: Detokenizer, encode: Callable[[str], list[int]], ids: Sequence[int], shown: int) -> list[int]:
    """Ids of the first ``shown`` characters of the text of ``ids``: those that were generated as far as they reach,
    the rest encoded anew."""
    stream = detokenizer.stream()
    length, whole, at = 0, 0, 0
    parts: list[str] = []
    for count, token in enumerate(ids, 1):
        text = stream.push(token)
        parts.append(text)
        length += len(text)
        if length > shown:
            break
        if not stream.pending:
            whole, at = count, length
    return [*ids[:whole], *encode("".join(parts)[at:shown])]


def shown_text(detokenizer: Detokenizer, ids: Sequence[int], shown: int) -> str:
    """The first ``shown`` characters of the text of ``ids``: what the client has seen of an answer."""
    return detokenizer.text(ids)[:shown]


def remember(
    record: SessionRecord, request: TurnRequest, prompt: Prompt, closing: tuple[int, ...], answer: str
) -> None:
    """What a committed turn leaves beside the window. ``closing`` are the ids that close an answer and are fed first in
    the next turn; ``answer`` is its text, wanted only where ``prompt`` is a whole conversation."""
    if record.turns == 0:
        record.system = system_of(request.messages)
    record.turns += 1
    record.pending = closing
    if prompt.messages is not None:
        # An answer may go on for ever. One that is cut here is longer than the window, and leaves with the next turn.
        answer = answer[-text_limit(record.window.limit) :]
        record.messages = (*prompt.messages, ("assistant", answer))
