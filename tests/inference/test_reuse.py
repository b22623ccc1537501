from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.reuse import Hope, Loss, Miss, miss

FIRST = Hope(head=10)
HISTORY = Hope(head=10, history=True)
SESSION = Hope(head=10, kept=50, row=1)


@pytest.mark.parametrize(
    ("hope", "shared", "held", "loss", "why"),
    [
        (FIRST, 0, 0, "cold", "cold"),
        (FIRST, 10, 60, None, "cold"),  # the head of another conversation was reused, and more there could not be
        (FIRST, 30, 60, None, None),
        (HISTORY, 0, 0, "cold", "cold"),
        (HISTORY, 0, 0, "dropped", "dropped"),
        (HISTORY, 0, 60, None, "prefix_mismatch"),
        (HISTORY, 10, 60, None, "prefix_mismatch"),
        (HISTORY, 11, 60, None, "edited"),
        (HISTORY, 60, 60, None, None),
        (HISTORY, 99, 150, None, None),
        (Hope(head=10, history=True, truncated=True), 10, 60, None, "truncated"),
        (SESSION, 50, 50, None, None),
        (SESSION, 49, 49, None, None),  # its last token was chosen and not fed
        (SESSION, 49, 70, None, None),  # a turn was taken back behind it
        (SESSION, 45, 55, None, "retokenised"),
        (SESSION, 0, 0, "row_taken", "row_taken"),
        (SESSION, 10, 60, "row_taken", "row_taken"),
        (SESSION, 0, 0, "dropped", "dropped"),
        (SESSION, 0, 0, "cold", "cold"),
        (Hope(head=10, kept=50, row=1, truncated=True), 10, 60, None, "truncated"),
    ],
)
def test_the_reason_why_less_was_reused(
    hope: Hope, shared: int, held: int, loss: Loss | None, why: Miss | None
) -> None:
    assert miss(hope, prompt=100, shared=shared, held=held, loss=loss) == why


@given(head=st.integers(0, 50), kept=st.integers(0, 99), flags=st.tuples(st.booleans(), st.booleans()))
def test_there_is_no_reason_when_only_the_one_token_is_fed_that_must_be(
    head: int, kept: int, flags: tuple[bool, bool]
) -> None:
    hope = Hope(head, kept, *flags)
    assert miss(hope, prompt=100, shared=99, held=200, loss="cold") is None
