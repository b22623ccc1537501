"""Each check holds for a run in which all is well, and fails alone for what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scripts.soak.checks import judge
from scripts.soak.faults import EVERY
from scripts.soak.ledger import BROKEN, GONE, UNPARSED
from scripts.soak.options import Options
from scripts.soak.replay import Verdict
from scripts.soak.seen import Seen

STATE = {"rows_busy": 0, "leases": 0, "queued": 0, "active": 0, "sessions": 1, "pages_used": 3, "tasks": 4}
SPANS = {"handed": 100, "delivered": 90, "dropped": 10, "accepted": 95}


def well() -> Seen:
    """Five requests, of which four came to the guard: one was cancelled, and one answer is a session's."""
    seen = Seen(Options(seconds=300.0))
    for fate in ("length", "rejected", GONE, UNPARSED, "completed"):
        asked = seen.ledger.open(fate, "s" if fate == "length" else None)
        seen.ledger.close(asked, fate, text="so" if fate == "length" else None)
        if fate != UNPARSED:
            seen.record.append({"reached": asked.number})
    seen.record.append({"session": "s", "id": "1", "text": "so"})
    seen.counters = {"length": 1, "rejected": 1, "cancelled": 1, "completed": 1}
    seen.memory = [(float(t), 800 + t % 3) for t in range(300)]
    seen.before = STATE | {"ready": True}
    seen.rest = STATE | {"ready": True, "faults": dict.fromkeys(EVERY, 1)}
    seen.emptied = STATE | {"sessions": 0, "pages_used": 0}
    seen.spans, seen.outages = dict(SPANS), {"restart": 1, "swallow": 1}
    seen.verdict, seen.sessions = Verdict(windows=1, distinct=set(range(30))), 1
    seen.status = 0
    return seen


def test_a_run_in_which_all_is_well_passes() -> None:
    assert [check for check in judge(well()) if not check.ok] == []


def unsettled(seen: Seen) -> None:
    seen.ledger.open("stream", None)
    seen.record.append({"reached": "6"})
    seen.counters["cancelled"] += 1


def broken(seen: Seen) -> None:
    seen.ledger.close(seen.ledger.open("stream", None), BROKEN)
    seen.record.append({"reached": "6"})
    seen.counters["error"] = 1


def came_twice(seen: Seen) -> None:
    seen.record.append({"reached": "3"})
    seen.counters["cancelled"] += 1


def never_came(seen: Seen) -> None:
    seen.record.remove({"reached": "5"})
    seen.counters["cancelled"] = 0


def another_outcome(seen: Seen) -> None:
    seen.counters |= {"completed": 0, "cancelled": 2}


def no_outcome(seen: Seen) -> None:
    seen.counters["cancelled"] = 0


def two_outcomes(seen: Seen) -> None:
    seen.counters["cancelled"] = 2


def put(name: str, **changes: Any) -> Callable[[Seen], None]:
    """``changes`` to the dictionary, or the object, that is the field ``name``."""

    def change(seen: Seen) -> None:
        field = getattr(seen, name)
        if isinstance(field, dict):
            field.update(changes)
        else:
            for key, value in changes.items():
                setattr(field, key, value)

    return change


def growing(seen: Seen) -> None:
    seen.memory = [(t, value + t / 30) for t, value in seen.memory]


WRONG: dict[str, tuple[str, Callable[[Seen], None]]] = {
    "no fate": ("one fate each", unsettled),
    "a connection that broke": ("one fate each", broken),
    "came twice": ("at the guard once", came_twice),
    "never came": ("at the guard once", never_came),
    "another outcome": ("one outcome each", another_outcome),
    "no outcome": ("one outcome each", no_outcome),
    "two outcomes": ("one outcome each", two_outcomes),
    "another text": ("answers as kept", lambda seen: seen.record[-1].update(text="that")),
    "not kept": ("answers as kept", lambda seen: seen.record.pop() and None),
    "another token": ("conversations undisturbed", put("verdict", unlike=["s: 3 instead of 4"])),
    "a window not compared": ("conversations undisturbed", put("verdict", windows=0)),
    "always the same token": ("conversations undisturbed", put("verdict", distinct={1})),
    "a row": ("engine at rest", put("rest", rows_busy=1)),
    "a lease": ("engine at rest", put("rest", leases=1)),
    "a turn in the queue": ("engine at rest", put("rest", queued=1)),
    "a turn": ("engine at rest", put("rest", active=1)),
    "a task": ("engine at rest", put("rest", tasks=9)),
    "not ready": ("engine at rest", put("rest", ready=False)),
    "too many rows in mid-run": ("engine at rest", lambda seen: seen.odd.append("rows_busy was 9 of 8")),
    "a page": ("no page left", put("emptied", pages_used=1)),
    "a session": ("no page left", put("emptied", sessions=1)),
    "two MiB a minute": ("memory", growing),
    "spans that nobody counted": ("telemetry", put("spans", dropped=9)),
    "delivered to nobody": ("telemetry", put("spans", accepted=80)),
    "a trace with a hole": ("telemetry", lambda seen: seen.traces.append("no decode")),
    "a traceback": ("log", lambda seen: seen.tracebacks.append("ValueError")),
    "an exit status": ("end", lambda seen: setattr(seen, "status", 1)),
    "no exit": ("end", lambda seen: setattr(seen, "status", None)),
    "no fault": ("enough happened", put("rest", faults={"slow": 3})),
    "no outage": ("enough happened", lambda seen: seen.outages.pop("swallow") and None),
}


@pytest.mark.parametrize(("name", "spoil"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_fails_the_check_that_is_for_it(name: str, spoil: Callable[[Seen], None]) -> None:
    seen = well()
    spoil(seen)
    assert [check.name for check in judge(seen) if not check.ok] == [name]


def test_a_short_run_tells_its_growth_and_is_not_judged_by_it() -> None:
    seen = well()
    seen.options = Options(seconds=45.0)
    growing(seen)
    (check,) = [check for check in judge(seen) if check.name == "memory"]
    assert check.ok
    assert "not judged" in check.detail
