"""The ladder, by examples of its rules and against a model of it that keeps every number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError
from otelctx.inference.pressure import ACTIONS, SIGNALS, Limits, Move, Pressure, Threshold

LIMITS = Limits(ttft=2.0)
MEMORY = {1: (0.80, 0.70), 2: (0.90, 0.80), 3: (0.97, 0.90)}
LATENCY = {1: (1.0, 0.8), 2: (1.5, 1.2), 3: (2.0, 1.6)}


def climbed(signal: str, level: int) -> Pressure:
    """A ladder that ``signal`` has brought to ``level``, at second ``10 * level``."""
    pressure = Pressure(LIMITS, 0.0)
    for step in range(1, level + 1):
        look(pressure, 10.0 * step, **{signal: 9.0})
    assert pressure.levels[signal] == level  # type: ignore[index]
    return pressure


def look(
    pressure: Pressure, now: float, memory: float = 0.0, latency: float | None = None, count: int = 20
) -> tuple[Move, ...]:
    """Look, after ``count`` times to first token of ``latency`` times the target."""
    for _ in range(count if latency is not None else 0):
        pressure.first_token((latency or 0.0) * LIMITS.ttft)
    return pressure.look(now, memory=memory)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_level_is_entered_at_its_threshold_and_left_below_the_lower_one(signal: str, level: int) -> None:
    enter, leave = (MEMORY if signal == "memory" else LATENCY)[level]
    pressure = climbed(signal, level - 1)
    now = 10.0 * level
    assert look(pressure, now, **{signal: math.nextafter(enter, 0)}) == ()
    ((move),) = look(pressure, now + 10, **{signal: enter})
    assert (move.signal, move.before, move.after) == (signal, level - 1, level)
    assert look(pressure, now + 20, **{signal: leave}) == ()
    ((move),) = look(pressure, now + 30, **{signal: math.nextafter(leave, 0)})
    assert (move.signal, move.before, move.after) == (signal, level, level - 1)


@pytest.mark.parametrize("signal", SIGNALS)
def test_however_high_the_signal_each_period_climbs_one_level_and_comes_down_one(signal: str) -> None:
    pressure = Pressure(LIMITS, 0.0)
    levels = []
    for step in range(1, 10):
        value = 99.0 if step < 5 else 0.0
        assert look(pressure, 10.0 * step - 0.5, **{signal: value}, count=10) == ()  # the period is not over
        look(pressure, 10.0 * step, **{signal: value}, count=10)
        levels.append(pressure.level)
    assert levels == [1, 2, 3, 3, 2, 1, 0, 0, 0]


def test_the_level_is_the_higher_of_the_two_and_each_signal_keeps_its_own() -> None:
    pressure = climbed("memory", 2)
    look(pressure, 30.0, memory=0.85, latency=5.0)
    assert pressure.levels == {"memory": 2, "latency": 1}
    assert pressure.level == 2
    look(pressure, 40.0, memory=0.0, latency=1.0)
    look(pressure, 50.0, memory=0.0, latency=1.0)
    assert pressure.levels == {"memory": 0, "latency": 1}
    assert pressure.level == 1


def test_a_signal_stays_at_a_level_for_the_dwell_time_however_short_the_period() -> None:
    pressure = Pressure(Limits(period=1.0, dwell=10.0), 0.0)
    moved = [now for now in range(1, 60) if pressure.look(float(now), memory=1.0 if now < 15 else 0.0)]
    assert moved == [1, 11, 21, 31]


def test_a_signal_that_swings_about_a_threshold_moves_once() -> None:
    pressure = Pressure(LIMITS, 0.0)
    moves = [look(pressure, 10.0 * n, memory=0.80 + (0.05 if n % 2 else -0.05)) for n in range(1, 50)]
    assert [len(m) for m in moves] == [1] + [0] * 48
    pressure = Pressure(LIMITS, 0.0)
    moves = [look(pressure, 10.0 * n, latency=1.05 if n % 2 else 0.85) for n in range(1, 50)]
    assert [len(m) for m in moves] == [1] + [0] * 48


def test_too_few_first_tokens_never_climb_however_late_they_are() -> None:
    pressure = Pressure(LIMITS, 0.0)
    assert look(pressure, 10.0, latency=9.0, count=19) == ()
    assert pressure.values["latency"] > 8
    assert look(pressure, 20.0) == ()  # a period without any: those before are forgotten
    assert look(pressure, 30.0, latency=9.0, count=19) == ()
    assert look(pressure, 40.0, latency=0.9, count=1) == ()  # and one that stood below the threshold
    assert look(pressure, 50.0, latency=9.0, count=19) == ()


def test_a_slow_worker_gathers_its_few_first_tokens_over_several_periods() -> None:
    """One that gives a first token a second may be further behind than one that gives a hundred."""
    pressure = Pressure(LIMITS, 0.0)
    moved = [bool(look(pressure, 10.0 * n, latency=1.7, count=7)) for n in range(1, 8)]
    assert moved == [False, False, True, False, False, True, False]  # those that brought it to level 1 count no more
    assert pressure.level == 2


def test_a_few_in_time_bring_it_down_at_once_and_a_few_late_ones_hold_it() -> None:
    pressure = climbed("latency", 3)
    assert look(pressure, 40.0, latency=1.7, count=3) == ()
    ((move),) = look(pressure, 50.0, latency=0.5, count=1)  # of the period alone, whatever was before
    assert (move.before, move.after) == (3, 2)
    assert look(pressure, 60.0) == (Move("latency", 2, 1, 0.0),)


def test_turns_that_wait_too_long_for_their_first_token_count_before_they_have_it() -> None:
    """When everybody gives up before the first token there is no time to first token at all."""
    pressure = Pressure(LIMITS, 0.0)
    waits = [5.0] * 20
    assert pressure.look(10.0, memory=0.0, waits=waits[:19]) == ()
    ((move),) = pressure.look(20.0, memory=0.0, waits=waits)
    assert (move.signal, move.after) == ("latency", 1)
    assert pressure.look(30.0, memory=0.0, waits=[1.6] * 20) == (), "at the threshold that is left below it"
    assert pressure.look(40.0, memory=0.0, waits=[1.59] * 20) == (Move("latency", 1, 0, 0.0),)


def test_those_that_have_only_just_come_do_not_make_the_slow_ones_fewer() -> None:
    pressure = Pressure(LIMITS, 0.0)
    for _ in range(98):
        pressure.first_token(0.1)
    pressure.first_token(9.0)
    pressure.first_token(9.0)
    ((move),) = pressure.look(10.0, memory=0.0, waits=[0.5] * 200)
    assert move.after == 1


def test_what_is_in_force_adds_up_level_by_level() -> None:
    pressure = Pressure(LIMITS, 0.0)
    assert pressure.in_force() == {}
    for level, signal in enumerate(("memory",) * 3, 1):
        look(pressure, 10.0 * level, memory=1.0)
        assert pressure.in_force() == dict.fromkeys(ACTIONS["memory"][:level], signal)
    look(pressure, 40.0, memory=1.0, latency=9.0)
    assert pressure.in_force() == {"max_tokens": "memory", "drop_idle": "memory", "shed": "memory"}
    look(pressure, 50.0, memory=1.0, latency=9.0)
    assert pressure.in_force() == {
        "max_tokens": "memory", "drop_idle": "memory", "shed": "memory", "stream": "latency"
    }  # fmt: skip


def test_a_move_names_what_begins_or_has_ended() -> None:
    assert Move("memory", 1, 2, 0.9).action == Move("memory", 2, 1, 0.7).action == "drop_idle"
    assert Move("latency", 1, 2, 1.5).action == "stream"
    assert Move("latency", 0, 1, 1.0).action == Move("memory", 1, 0, 0.1).action == "max_tokens"
    assert Move("latency", 2, 3, 2.0).action == "shed"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttft": 0.0}, "ttft"),
        ({"ttft": math.nan}, "ttft"),
        ({"ttft": math.inf}, "ttft"),
        ({"period": -1.0}, "period"),
        ({"dwell": -0.1}, "dwell"),
        ({"samples": 0}, "samples"),
        ({"memory": (Threshold(0.8, 0.8), Threshold(0.9, 0.85), Threshold(0.97, 0.9))}, "memory"),
        ({"memory": (Threshold(0.8, 0.7), Threshold(0.8, 0.75), Threshold(0.97, 0.9))}, "memory"),
        ({"latency": (Threshold(1.0, 0.8), Threshold(1.5, 0.7), Threshold(2.0, 1.6))}, "latency"),
        ({"latency": (Threshold(1.0, 0.8), Threshold(1.5, 1.2))}, "latency"),
        ({"latency": (Threshold(1.0, 0.0), Threshold(1.5, 1.2), Threshold(2.0, 1.6))}, "latency"),
    ],
)
def test_wrong_limits_are_refused_by_name(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Limits(**wrong)
    assert Limits(dwell=0.0).dwell == 0


# --- against a model ---


@dataclass
class Model:
    """The same rules, word for word, over lists."""

    limits: Limits
    now: float = 0.0
    began: float = 0.0
    seen: list[float] = field(default_factory=list)
    evidence: list[float] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=lambda: {"memory": -1e9, "latency": -1e9})
    levels: dict[str, int] = field(default_factory=lambda: {"memory": 0, "latency": 0})

    def look(self, memory: float, waits: list[float]) -> list[tuple[str, int, int]]:
        if self.now - self.began < self.limits.period:
            return []
        self.began = self.now
        slow = [w for w in waits if w / self.limits.ttft >= 0.8]
        period = sorted(self.seen + slow)
        self.seen = []
        rank = math.ceil(0.99 * len(period) - 1e-9)
        p99 = period[rank - 1] / self.limits.ttft if period else 0.0
        level = self.levels["latency"]
        self.evidence = self.evidence + period if level < 3 and p99 >= LATENCY[level + 1][0] else []
        enough = len(self.evidence) >= 20
        moves = []
        for signal, value, may, table in (("memory", memory, True, MEMORY), ("latency", p99, enough, LATENCY)):
            level = self.levels[signal]
            target = level
            if level < 3 and may and value >= table[level + 1][0]:
                target = level + 1
            elif level > 0 and value < table[level][1]:
                target = level - 1
            if target != level and self.now - self.moved[signal] >= self.limits.dwell:
                self.moved[signal] = self.now
                self.levels[signal] = target
                self.evidence = [] if signal == "latency" else self.evidence
                moves.append((signal, level, target))
        return moves


events = st.lists(
    st.one_of(
        st.tuples(st.just("token"), st.integers(0, 24).map(lambda n: n / 4), st.integers(1, 30)),
        st.tuples(
            st.just("look"),
            st.sampled_from([0.0, 0.5, 0.69, 0.7, 0.79, 0.8, 0.89, 0.9, 0.96, 0.97, 1.0]),
            st.lists(st.integers(0, 24).map(lambda n: n / 4), max_size=25),
            st.sampled_from([0.25, 5.0, 10.0, 10.25, 30.0]),
        ),
    ),
    max_size=60,
)


@given(events, st.sampled_from([0.0, 10.0, 25.0]))
def test_it_does_what_the_rules_say_and_never_two_levels_within_a_period(
    happening: list[tuple[Any, ...]], dwell: float
) -> None:
    limits = Limits(ttft=2.0, dwell=dwell)
    pressure, model = Pressure(limits, 0.0), Model(limits)
    history: list[tuple[float, int]] = [(0.0, 0)]
    for event in happening:
        if event[0] == "token":
            for _ in range(event[2]):
                pressure.first_token(event[1])
                model.seen.append(event[1])
            continue
        model.now += event[3]
        moves = pressure.look(model.now, memory=event[1], waits=event[2])
        assert [(m.signal, m.before, m.after) for m in moves] == model.look(event[1], event[2])
        assert pressure.levels == model.levels
        history.append((model.now, pressure.level))
    for (t0, before), (t1, after) in pairwise(history):
        assert abs(after - before) <= (1 if t1 > t0 else 0)
    changes = [t1 for (_, a), (t1, b) in pairwise(history) if a != b]
    assert all(later - earlier >= limits.period for earlier, later in pairwise(changes))


@given(events)
def test_from_wherever_it_is_quiet_brings_it_back_to_0_in_three_periods(happening: list[tuple[Any, ...]]) -> None:
    pressure, now = Pressure(LIMITS, 0.0), 0.0
    for event in happening:
        if event[0] == "token":
            for _ in range(event[2]):
                pressure.first_token(event[1])
        else:
            now += event[3]
            pressure.look(now, memory=event[1], waits=event[2])
    # What was counted since the last look may hold it for one period more.
    for n in range(1, 5):
        pressure.look(now + 10.0 * n, memory=0.0)
    assert pressure.level == 0
