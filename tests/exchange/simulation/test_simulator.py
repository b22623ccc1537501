"""What is promised of senders and workers whatever stands between them, and how much it saves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelctx.delta import bases

ONE = {"workers": 1}
TOPOLOGIES: dict[str, list[dict[str, Any]]] = {
    "one worker": [ONE],
    "two origins": [ONE, ONE],
    "sessions stick to workers, shared tier": [{"workers": 3, "balance": "sticky", "tier": True}],
    "in turn, shared tier": [{"workers": 3, "balance": "turn", "tier": True}],
    "at random, shared tier": [{"workers": 4, "balance": "random", "tier": True}],
    "proceeds": [{"workers": 1, "proceed": True}],
}
BALANCED: dict[str, list[dict[str, Any]]] = {
    "in turn": [{"workers": 3, "balance": "turn"}],
    "sessions stick to workers": [{"workers": 3, "balance": "sticky"}],
    "at random": [{"workers": 2, "balance": "random"}],
    "some workers unaware": [{"workers": 1, "strangers": 1, "balance": "random"}],
    "one path unaware": [{"workers": 1, "unaware": frozenset({"/v1"})}],
    "a cap that a full frame does not pass": [{"workers": 1, "cap": 100}],
}


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_without_faults_almost_every_frame_is_compact_and_none_is_flagged(
    sim: Any, topology: list[dict[str, Any]]
) -> None:
    """After a link's first three exchanges and a session's first, at least 95 % are REF or DELTA."""
    world = sim.chatter(sim.world(topology), 600, common=False)
    count, share = world.compact_share()
    assert world.complaints == []
    assert count > 400
    assert share >= 0.95
    assert not any(call.flagged or call.refused for call in world.calls)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_after_a_fault_it_is_so_again_from_the_fourth_exchange_on(
    sim: Any, topology: list[dict[str, Any]], seed: int
) -> None:
    """Unless a period of FULL only, of shared bases only or of W3C only runs. A state to which a session returns after
    all may still be refused once: its base was lost while the session spoke of others.
    """
    world = sim.chatter(sim.world(topology, seed=seed), 1500, faults=0.03, seed=seed, sessions=3, common=False)
    count, share = world.compact_share()
    assert world.complaints == []
    assert count > 150
    assert share >= 0.95
    assert not any(call.flagged for call in world.calls if call.eligible)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("topology", [*TOPOLOGIES.values(), *BALANCED.values()], ids=[*TOPOLOGIES, *BALANCED])
def test_an_application_sees_its_senders_state_or_is_told_that_it_does_not(
    sim: Any, topology: list[dict[str, Any]], seed: int
) -> None:
    world = sim.chatter(sim.world(topology, senders=3, seed=seed), 800, faults=0.3, seed=seed)
    assert world.complaints == []
    assert {call.fate for call in world.calls} >= {"ok", "duplicated", "reply late"}


@pytest.mark.parametrize("seed", range(4))
def test_nothing_depends_on_the_prefix_by_which_a_base_is_looked_up(
    sim: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With one byte instead of eight almost every lookup finds some base, and most find the wrong one."""
    monkeypatch.setattr(bases, "BASE_BYTES", 1)
    world = sim.chatter(sim.world([ONE, ONE], senders=3), 1000, faults=0.05, seed=seed, sessions=60)
    assert world.complaints == []


def test_where_no_base_can_be_relied_on_frames_are_full(sim: Any) -> None:
    """Behind a balancer and without a shared tier: no refusals by the dozen, no lost context."""
    world = sim.chatter(sim.world(BALANCED["in turn"], senders=1), 400)
    refused = sum(call.refused for call in world.calls)
    full = sum(call.kinds == ["full"] for call in world.calls)
    assert world.complaints == []
    assert refused <= 2
    assert full >= 390


def test_an_unaware_origin_is_always_told_in_full(sim: Any) -> None:
    world = sim.chatter(sim.world([{"workers": 0, "strangers": 1}]), 100)
    assert {kind for call in world.calls for kind in call.kinds} == {"full"}


def test_what_is_recorded_comes_up_and_never_twice(sim: Any) -> None:
    world = sim.chatter(sim.world([ONE], senders=1), 300, sessions=2)
    for (_, session), scope in world.scopes.items():
        assert scope.up("sim.runs") == world.recorded[session]


# steps that hypothesis finds

CHANGES = st.none() | st.tuples(st.sampled_from(["tier", "plan"]), st.sampled_from(["a", "b", "c"]))
FATES = ["ok"] * 6 + [
    "request lost", "reply lost", "reply late", "duplicated", "frame stripped", "ack stripped", "both stripped",
    "too large", "502", "304", "412",
]  # fmt: skip
CALL = st.tuples(
    st.just("call"), st.integers(0, 1), st.sampled_from(["s0", "s1"]), st.integers(0, 1), CHANGES,
    st.sampled_from(FATES), st.sampled_from(["/", "/v1"]), st.sampled_from(["POST", "POST", "GET"]), st.booleans(),
)  # fmt: skip
STEP = st.one_of(
    *[CALL] * 5,
    st.tuples(st.just("restart"), st.integers(0, 1)),
    st.tuples(st.just("forget"), st.integers(0, 1)),
    st.just(("arrive",)),
    st.tuples(st.just("wait"), st.sampled_from([61.0, 601.0])),
)
ORIGIN = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 3),
        "strangers": st.sampled_from([0, 0, 0, 1]),
        "tier": st.booleans(),
        "proceed": st.booleans(),
        "balance": st.sampled_from(["first", "turn", "random", "sticky"]),
        "cap": st.sampled_from([4096, 4096, 100]),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.tuples(ORIGIN, ORIGIN), st.integers(0, 3), st.lists(STEP, min_size=10, max_size=60))
def test_no_sequence_of_steps_makes_an_application_see_what_was_not_meant(
    sim: Any, origins: tuple[Any, Any], seed: int, steps: list[tuple[Any, ...]]
) -> None:
    world = sim.world(list(origins), seed=seed)
    for step in steps:
        match step:
            case ("call", sender, session, origin, change, fate, path, method, cacheable):
                what = None if change is None else (sim.keys[change[0]], change[1])
                world.call(
                    sender, session, origin, change=what, fate=fate, path=path, method=method, cacheable=cacheable
                )
            case ("restart", origin):
                world.restart(origin)
            case ("forget", origin):
                world.forget(origin)
            case ("wait", seconds):
                world.now += seconds
            case _:
                world.arrive()
        assert world.complaints == []
