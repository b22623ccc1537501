from __future__ import annotations

import pytest

from otelctx.errors import ArenaExhausted, ConfigError
from otelctx.sessions.arena import PAGE, Arena, pages_for


def test_allocation_is_all_or_nothing() -> None:
    arena = Arena(3)
    arena.allocate(2)
    with pytest.raises(ArenaExhausted, match="2 pages") as caught:
        arena.allocate(2)
    assert caught.value.status == 503
    assert arena.free_pages == 1


def test_a_page_is_zeroed_when_its_last_reference_goes() -> None:
    arena = Arena(1)
    (page,) = arena.allocate(1)
    arena.page(page)[:] = 7
    arena.retain(page)
    arena.release(page)
    assert arena.page(page).all()
    arena.release(page)
    assert not arena.page(page).any()
    assert arena.free_pages == 1


@pytest.mark.parametrize("act", ["retain", "release"])
def test_a_free_page_has_no_references_to_change(act: str) -> None:
    arena = Arena(1)
    with pytest.raises(ValueError, match="free"):
        getattr(arena, act)(0)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_an_arena_needs_a_page() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Arena(0)


def test_more_pages_than_there_is_memory_for_are_a_mistake_of_configuration() -> None:
    with pytest.raises(ConfigError, match="choose a smaller window"):
        Arena(2**42)
