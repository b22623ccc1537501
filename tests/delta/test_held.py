"""The bases that a sender remembers of an origin."""

from __future__ import annotations

import gc
import tracemalloc
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.context.state import EMPTY, State, entry
from otelctx.delta.held import _SESSION_BYTES, HeldBases, _Shapes
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Held


def state(session: str | None, n: int) -> State:
    base = EMPTY if session is None else EMPTY.put("session.id", session)
    return base.put("n", n)


def best(held: HeldBases, what: State, *, shared_only: bool = False, now: float = 0.0) -> bytes | None:
    found = held.best(what, shared_only=shared_only, now=now)
    return None if found is None else found.root


def test_the_state_itself_is_the_best_base_and_else_the_one_acknowledged_last() -> None:
    held = HeldBases(Limits())
    first, second, third = (state("s", n) for n in range(3))
    held.keep(first, Held.PROCESS, 0.0)
    held.keep(second, Held.PROCESS, 1.0)
    assert best(held, first, now=2.0) == first.root
    assert best(held, third, now=2.0) == second.root
    held.keep(first, Held.PROCESS, 3.0)
    assert best(held, third, now=4.0) == first.root


def test_a_base_of_one_process_expires_and_a_shared_one_does_not() -> None:
    held = HeldBases(Limits())
    held.keep(state("s", 1), Held.SHARED, 0.0)
    one = held.bytes
    held.keep(state("s", 2), Held.PROCESS, 0.0)
    assert best(held, state("s", 2), now=59.9) == state("s", 2).root
    assert best(held, state("s", 2), now=60.0) == state("s", 1).root
    assert held.bytes == one


def test_behind_a_balancer_only_shared_bases_count() -> None:
    held = HeldBases(Limits())
    held.keep(state("s", 1), Held.SHARED, 0.0)
    held.keep(state("s", 2), Held.PROCESS, 0.0)
    assert best(held, state("s", 2), shared_only=True, now=1.0) == state("s", 1).root


def test_another_process_leaves_what_is_shared() -> None:
    held = HeldBases(Limits())
    held.keep(state("a", 1), Held.SHARED, 0.0)
    one = held.bytes
    held.keep(state("a", 2), Held.PROCESS, 0.0)
    held.keep(state("b", 1), Held.PROCESS, 0.0)
    held.drop_process()
    assert best(held, state("a", 2), now=1.0) == state("a", 1).root
    assert best(held, state("b", 1), now=1.0) is None
    assert (held.bytes, len(held)) == (one, 1)


@pytest.mark.parametrize("empty", [None, ""])
def test_no_session_is_not_the_session_of_another(empty: str | None) -> None:
    held = HeldBases(Limits())
    held.keep(state(empty, 1), Held.PROCESS, 0.0)
    assert best(held, state(None, 1)) is None
    assert best(held, state(None, 2)) is None
    held.drop(None)
    held.drop("unknown")


NAMES = st.sampled_from(["a", "b", "c", "session.id", "user.tier", "z/9"])
STATES = st.dictionaries(NAMES, st.integers(0, 2) | st.text(max_size=3) | st.booleans(), max_size=6).map(
    lambda values: State({name: entry(name, value) for name, value in values.items()})
)


@given(STATES, STATES)
def test_what_is_remembered_of_a_base_tells_the_same_difference_as_the_base(old: State, new: State) -> None:
    held = HeldBases(Limits())
    held.keep(old.put("session.id", "s"), Held.SHARED, 0.0)
    base = held.best(new.put("session.id", "s"), shared_only=True, now=0.0)
    assert base is not None
    assert base.diff(new) == old.put("session.id", "s").diff(new)


def test_no_value_outlives_its_session_here() -> None:
    """Only what it is called and its leaf: memory dumps of a gateway tell nothing of its users."""
    held = HeldBases(Limits())
    held.keep(state("s", 1).put("user.tier", "topsecret"), Held.PROCESS, 0.0)
    (base,) = held._sessions["s"]
    kept = [getattr(base, name) for name in type(base).__slots__]
    assert not any("topsecret" in repr(value) for value in kept)


# memory


def thirteen(session: int, version: int = 0) -> State:
    values = {"session.id": f"{session:032x}"} | {f"key.number{n}": f"v{n}-{version}" for n in range(12)}
    return State({name: entry(name, value) for name, value in values.items()})


def test_sessions_are_given_up_least_recently_acknowledged_first() -> None:
    held = HeldBases(Limits())
    for session in ("a", "b"):
        held.keep(state(session, 0), Held.SHARED, 0.0)
    held = HeldBases(Limits(held_bytes=held.bytes))
    for session in ("a", "b", "a", "c"):
        held.keep(state(session, 0), Held.SHARED, 0.0)
    assert [s for s in "abc" if best(held, state(s, 0), shared_only=True)] == ["a", "c"]


def test_a_session_that_is_larger_than_the_budget_is_kept_alone() -> None:
    held = HeldBases(Limits(held_bytes=1))
    held.keep(state("a", 0), Held.SHARED, 0.0)
    held.keep(state("b", 0), Held.SHARED, 0.0)
    assert [s for s in "ab" if best(held, state(s, 0))] == ["b"]


def test_ten_thousand_sessions_in_turn_with_four_states_each_are_remembered() -> None:
    held = HeldBases(Limits())
    for version in range(4):
        for session in range(10_000):
            held.keep(thirteen(session, version), Held.PROCESS, 0.0)
    assert len(held) == 10_000
    assert held.bytes < 0.6 * Limits().held_bytes


@pytest.mark.parametrize(("keys", "versions", "shapes"), [(1, 1, 1), (13, 1, 1), (13, 4, 1), (40, 2, 1), (13, 1, 100)])
def test_what_bases_are_said_to_cost_is_what_they_take_in_memory(keys: int, versions: int, shapes: int) -> None:
    def made(session: int, version: int) -> State:
        values = {"session.id": f"session-{session:024}"}
        values |= {f"key{session % shapes}.number{n}": f"{version}" for n in range(keys - 1)}
        return State({name: entry(name, value) for name, value in values.items()})

    for shape in range(shapes):
        made(shape, 0)  # what is remembered of names for leaves is not the subject
    held = HeldBases(Limits())
    gc.collect()
    tracemalloc.start()
    for session in range(500):
        for version in range(versions):
            held.keep(made(session, version), Held.PROCESS, 0.0)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * held.bytes <= taken <= 1.2 * held.bytes


@given(
    st.lists(
        st.tuples(st.sampled_from(["keep", "best", "drop", "drop_process"]), st.integers(0, 3), st.integers(0, 6)),
        max_size=60,
    ),
    st.sampled_from([Held.PROCESS, Held.SHARED]),
)
def test_the_accounts_balance(steps: list[tuple[str, int, int]], kind: Held) -> None:
    """What is counted is what is there, nothing remains of what is dropped, and a session has four bases at most."""
    held, now = HeldBases(Limits()), 0.0
    for what, session, n in steps:
        now += 7
        one = state(f"s{session}", n).put(f"k{n % 3}", n)
        if what == "keep":
            held.keep(one, kind, now)
        elif what == "best":
            held.best(one, shared_only=False, now=now)
        elif what == "drop":
            held.drop(one.session_id)
        else:
            held.drop_process()
        assert all(len(bases) <= 4 for bases in held._sessions.values())
    bases = [base for kept in held._sessions.values() for base in kept]
    shapes = _Shapes()
    for base in bases:
        shapes.take(base.names)
    sessions = sum(_SESSION_BYTES + len(session_id) for session_id in held._sessions)
    assert held.bytes == sum(base.bytes for base in bases) + shapes.bytes + sessions
    for session_id in list(held._sessions):
        held.drop(session_id)
    assert held.bytes == 0


def test_a_balancers_answers_in_turn_cost_the_same_however_many_sessions_there_are() -> None:
    """Each answer is of another process than the last; nothing of what all processes hold is looked through for it."""

    def cost(sessions: int) -> float:
        held = HeldBases(Limits())
        for n in range(sessions):
            held.keep(state(f"s{n}", 0), Held.SHARED, 0.0)
        times = []
        for n in range(20):
            began = thread_time()
            held.keep(state("mine", n), Held.PROCESS, 0.0)
            held.drop_process()
            times.append(thread_time() - began)
        assert len(held) == sessions
        return min(times)

    cost(10)
    assert cost(10_000) < 20 * cost(10)
