from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.inference.sliding import Slide, keep
from otelctx.sessions.arena import Arena, pages_for
from otelctx.sessions.window import TokenWindow

LIMIT = 150


@pytest.mark.parametrize(("window", "pinned", "block"), [(512, 30, 128), (512, 0, 128), (64, 44, 10), (64, 63, 1)])
def test_a_block_is_a_quarter_of_the_window_but_never_the_latest_tokens(window: int, pinned: int, block: int) -> None:
    assert Slide(window, pinned).block == block


@given(pinned=st.integers(0, 70), prompt=st.integers(1, 79), output=st.integers(1, 700))
def test_the_context_is_the_pinned_tokens_and_the_latest_ones(pinned: int, prompt: int, output: int) -> None:
    """Against a list from which blocks are cut; it is never longer than the window, nor is a token lost besides."""
    ids = np.arange(pinned + prompt, dtype=np.int32)
    slide = Slide(LIMIT, pinned)
    expected, generated = ids.tolist(), list[int]()
    recomputed = 0
    for token in range(1000, 1000 + output):
        generated.append(token)
        expected.append(token)
        assert len(expected) <= LIMIT
        assert slide.due(len(ids), len(generated)) == (len(expected) == LIMIT)
        if len(expected) == LIMIT:
            del expected[pinned : pinned + slide.block]
            recomputed += len(expected) - pinned
            context = slide.slide(ids, generated)
            assert context.dtype == np.int32
            assert context.tolist() == expected
    assert (slide.evicted, slide.recomputed) == (len(ids) + output - len(expected), recomputed)


def filled(arena: Arena, pinned: int, old: int) -> tuple[TokenWindow, list[int]]:
    """A window with a committed exchange of ``old`` tokens."""
    window = TokenWindow(arena, LIMIT)
    tx = window.begin()
    ids = list(range(pinned + old))
    window.append(tx, ids[:pinned])
    window.pin(tx, pinned)
    window.mark_turn(tx)
    window.append(tx, ids[pinned:])
    window.commit(tx)
    return window, ids


@given(
    pinned=st.integers(0, 70),
    old=st.integers(0, 40),
    new=st.integers(1, 39),
    output=st.integers(1, 700),
    lost=st.integers(0, 3),
    commit=st.booleans(),
)
@settings(max_examples=200)
def test_the_window_is_brought_to_where_the_answer_has_got_or_back_bit_for_bit(
    pinned: int, old: int, new: int, output: int, lost: int, commit: bool
) -> None:
    """``lost`` tokens at the answer's end were taken back by a stop string."""
    arena = Arena(16)
    window, ids = filled(arena, pinned, old)
    before, pages, marks = window.tokens().tolist(), arena.used_pages, window.marks
    tx = window.begin()
    window.mark_turn(tx)
    question = list(range(500, 500 + new))
    window.append(tx, question)
    slide, generated = Slide(LIMIT, pinned), list[int]()
    prompt = np.asarray([*ids, *question], np.int32)
    for token in range(1000, 1000 + output):
        generated.append(token)
        if token < 999 + output and slide.due(len(prompt), len(generated)):
            slide.slide(prompt, generated)
    answer = generated[: len(generated) - lost]
    used = arena.used_pages
    keep(window, tx, answer, slide.evicted)
    assert arena.used_pages - used <= pages_for(LIMIT) + 2  # which is what a turn is promised
    everything = [*ids, *question, *answer]
    assert window.kept <= LIMIT
    assert window.tokens().tolist() == everything[:pinned] + everything[pinned + slide.evicted :]
    assert window.appended == window.kept + window.evicted == len(everything)
    if commit:
        window.commit(tx)
        assert arena.used_pages <= pages_for(LIMIT) + 2
    else:
        window.rollback(tx)
        assert (window.tokens().tolist(), arena.used_pages, window.marks) == (before, pages, marks)
        assert window.evicted == 0


def test_what_a_stop_string_took_back_after_it_had_left_is_not_evicted_twice() -> None:
    window, ids = filled(Arena(16), 2, 4)
    tx = window.begin()
    keep(window, tx, [7, 8], evicted=9)
    assert window.tokens().tolist() == ids[:2]
    assert window.appended == window.kept + window.evicted == 8
