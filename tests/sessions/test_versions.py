from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError
from otelctx.sessions.snapshot import Snapshot
from otelctx.sessions.versions import Retention, Version, key_of, nearest, surplus, victim

NUMBERS = st.sets(st.integers(1, 500)).map(sorted)


def version(number: int) -> Version:
    return Version(Snapshot(number, 0, 0, 0, (), np.empty(0, np.int32)), 1, (), None, ())


@given(
    kept=NUMBERS,
    more=st.integers(1, 50),
    labelled=st.sets(st.integers(1, 500), max_size=5),
    last=st.integers(1, 20),
    every=st.integers(1, 100),
    milestones=st.integers(0, 4),
)
def test_kept_are_the_last_the_newest_milestones_and_what_has_a_label(
    kept: list[int], more: int, labelled: set[int], last: int, every: int, milestones: int
) -> None:
    current = max(kept, default=0) + more
    gone = surplus(kept, current, labelled, Retention(last, every, milestones))
    stay = [number for number in kept if number not in gone]
    assert gone <= set(kept)
    assert labelled & set(kept) <= set(stay)
    assert all(number in stay for number in kept if number > current - last)
    rounds = [number for number in kept if number % every == 0]
    assert all(number in stay for number in rounds[len(rounds) - min(milestones, len(rounds)) :])
    other = [n for n in stay if n <= current - last and n not in labelled]
    assert len(other) <= milestones
    assert all(number % every == 0 for number in other)


@given(kept=NUMBERS, target=st.integers(0, 600))
def test_the_nearest_is_the_newest_that_is_not_newer(kept: list[int], target: int) -> None:
    found = nearest([version(number) for number in kept], target)
    assert (None if found is None else found.number) == max((n for n in kept if n <= target), default=None)


@pytest.mark.parametrize(
    ("kept", "labelled", "first"),
    [([], {1}, None), ([1, 2, 3], set(), 1), ([1, 2, 3], {1}, 2), ([1, 2, 3], {1, 2, 3}, 1), ([4, 5], {1}, 4)],
)
def test_the_oldest_goes_first_and_labels_go_last(kept: list[int], labelled: set[int], first: int | None) -> None:
    assert victim(kept, labelled) == first


def test_a_key_says_which_prompt_and_which_version() -> None:
    assert key_of("Be brief.", 7) == f"prompt:{hashlib.sha256(b'Be brief.').hexdigest()}@v7"
    assert key_of(None, 7) == key_of("", 7)
    assert key_of("\ud800", 1).endswith("@v1")


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every": 0}, {"milestones": -1}])
def test_a_retention_that_keeps_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        Retention(**wrong)
