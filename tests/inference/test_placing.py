from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import TokenLimitExceeded
from otelctx.inference.guard import Prompt
from otelctx.inference.overflow import Fits, Mode, Truncate
from otelctx.inference.placing import place, place_alone
from otelctx.sessions.arena import Arena
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

HEAD = tuple(range(1, 33))
CLOSING = (7, 8)


def record(limit: int = 512) -> SessionRecord:
    return SessionRecord("s", "alice", TokenWindow(Arena(40), limit), 0.0, 0.0)


def prompt(*exchanges: int, head: tuple[int, ...] = ()) -> Prompt:
    return Prompt(head, tuple((100 + n,) * length for n, length in enumerate(exchanges)), (9,))


def answered(record: SessionRecord, request: Prompt, answer: int, mode: Mode = "turns") -> Fits | Truncate:
    """One turn as the engine runs it: placed, answered, committed; what closes the answer stays owed."""
    placed = place(record, request, answer, mode)
    assert placed.tx is not None
    record.window.append(placed.tx, [50] * min(answer, placed.verdict.output))
    record.window.commit(placed.tx)
    record.pending = CLOSING
    return placed.verdict


@given(
    turns=st.lists(st.tuples(st.lists(st.integers(1, 120), min_size=1, max_size=3), st.integers(1, 200)), max_size=12)
)
def test_what_was_rendered_is_in_the_window_or_counted_as_dropped(turns: list[tuple[list[int], int]]) -> None:
    """prompt + dropped = rendered, turn after turn, and the head is always there."""
    session = record()
    for number, (exchanges, answer) in enumerate(turns):
        request = prompt(*exchanges, head=HEAD if number == 0 else ())
        kept, owed = session.window.kept, session.pending
        rendered = len(request.ids) + kept + len(owed)
        placed = place(session, request, answer, "turns")
        dropped = placed.verdict.dropped if isinstance(placed.verdict, Truncate) else 0
        assert placed.tx is not None
        assert len(placed.ids) == placed.verdict.prompt == rendered - dropped == session.window.kept
        assert tuple(placed.ids[: len(HEAD)]) == HEAD
        assert placed.ids.tolist()[-len(request.exchanges[-1]) - 1 :] == [*request.exchanges[-1], 9]
        assert len(placed.ids) + placed.verdict.output <= 512
        assert placed.before == kept
        assert session.window.appended == session.window.kept + session.window.evicted
        session.window.append(placed.tx, [50] * placed.verdict.output)
        session.window.commit(placed.tx)
        session.pending = CLOSING


def test_a_refused_turn_leaves_the_window_as_it_was_and_the_next_goes_on() -> None:
    session = record()
    answered(session, prompt(40, head=HEAD), 20)
    before = session.window.tokens()
    with pytest.raises(TokenLimitExceeded):
        place(session, prompt(500), 20, "turns")
    assert session.window.tokens().tolist() == before.tolist()
    assert session.window.version == 1
    assert answered(session, prompt(40), 20) == Fits(32 + 40 + 1 + 20 + 2 + 40 + 1, 20)


def test_what_a_turn_without_its_lease_has_left_open_does_not_count() -> None:
    """A long turn lost its lease halfway; the next is placed as if that had never been."""
    session, twin = record(), record()
    for each in (session, twin):
        answered(each, prompt(100, head=HEAD), 100)
    late = place(session, prompt(200), 60, "turns")
    session.window.void()
    request = prompt(150)
    placed, expected = place(session, request, 50, "turns"), place(twin, request, 50, "turns")
    assert placed.verdict == expected.verdict
    assert placed.ids.tolist() == expected.ids.tolist()
    assert late.tx is not None
    session.window.rollback(late.tx)
    assert session.window.tokens().tolist() == twin.window.tokens().tolist()


def test_a_turn_without_a_session_has_its_prompt_and_nothing_else() -> None:
    request = prompt(10, 20, head=HEAD)
    placed = place_alone(request, 512, 64)
    assert placed.ids.tolist() == request.ids
    assert placed.verdict == Fits(63, 64)
    with pytest.raises(TokenLimitExceeded) as caught:
        place_alone(prompt(500), 512, 64)
    assert caught.value.details["n_prompt_tokens"] == 501
