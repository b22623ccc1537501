from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelctx.sessions.arena import Arena
from otelctx.sessions.owned import Owned
from otelctx.sessions.record import SessionRecord
from otelctx.sessions.window import TokenWindow

ARENA = Arena(1)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["ann", "bob"]), st.integers(0, 20)), max_size=40)


@given(steps=STEPS, limit=st.integers(1, 5))
def test_whatever_comes_and_goes_each_owner_sees_all_of_its_own_and_nothing_else(
    steps: list[tuple[bool, str, int]], limit: int
) -> None:
    owned = Owned()
    model: list[SessionRecord] = []
    for number, (comes, owner, which) in enumerate(steps):
        if comes:
            record = SessionRecord(str(number), owner, TokenWindow(ARENA, 64), 0.0, 0.0)
            owned.add(record)
            model.append(record)
        elif model:
            gone = model.pop(which % len(model))
            owned.remove(gone)
            assert gone.elder is gone.younger is None
    for owner in ("ann", "bob", "nobody"):
        mine = [record for record in reversed(model) if record.owner == owner]
        seen: list[SessionRecord] = []
        more = True
        while more:
            found, more = owned.page(owner, limit, seen[-1] if seen else None)
            assert len(found) == limit or not more
            seen += found
        assert seen == mine
