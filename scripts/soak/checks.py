"""What must hold of a run. Pure: from what was seen to verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from scripts.soak.faults import EVERY
from scripts.soak.ledger import GONE, UNPARSED
from scripts.soak.memory import growth
from scripts.soak.seen import Seen

__all__ = ["SETTLED", "Check", "judge"]

_BATCH: Final = 512  # spans of one export: what may have arrived without its answer, at each outage
_DISTINCT: Final = 20
_SHOWN: Final = 50
_LENGTH: Final = 2000  # characters

SETTLED: Final = 90.0
"""Seconds of load from which on memory is judged."""

Found = tuple[list[str], str]
"""What is wrong, and what was counted."""


@dataclass(frozen=True, slots=True)
class Check:
    """``detail`` says what was counted, ``wrong`` what does not hold: the first of it."""

    name: str
    detail: str
    wrong: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong


def judge(seen: Seen) -> list[Check]:
    """All checks, in the order in which to read them."""
    return [_judged(name, *check(seen)) for name, check in _CHECKS]


def _judged(name: str, wrong: list[str], detail: str) -> Check:
    return Check(name, detail, tuple(what[:_LENGTH] for what in wrong[:_SHOWN]))


def _fates(seen: Seen) -> Found:
    """Each request that was sent has exactly one fate, and none that no request may have."""
    books = seen.ledger.books()
    wrong = [*seen.ledger.twice, *(f"{what}: no fate" for what in books.unsettled), *books.broken]
    return wrong, f"{len(seen.ledger)} requests: " + _listed(books.fates)


def _reached(seen: Seen) -> Found:
    """A request that got an answer came to the guard once, one that was refused before it never did."""
    times = Counter(line["reached"] for line in seen.record if "reached" in line)
    wrong = [f"request {number or 'without an id'} came {n} times" for number, n in times.items() if n > 1]
    for asked in seen.ledger.all():
        came = times.pop(asked.number, 0)
        if came != 1 and asked.fate not in (GONE, UNPARSED):
            wrong.append(f"request {asked.number} ({asked.fate}) came {came} times")
        if came and asked.fate == UNPARSED:
            wrong.append(f"request {asked.number} ({asked.kind}) was refused, but came to the guard")
    wrong += [f"request {number or 'without an id'} was never sent" for number in times]
    return wrong, f"{sum(1 for line in seen.record if 'reached' in line)} came to the guard"


def _counters(seen: Seen) -> Found:
    """Terminal counters add up to the requests that came; none is below what clients were told of it."""
    came = sum(1 for line in seen.record if "reached" in line)
    counted, certain = sum(seen.counters.values()), seen.ledger.books().certain
    wrong = [] if counted == came else [f"{counted} outcomes for {came} requests"]
    wrong += [
        f"{outcome}: clients were told {told}, counted {seen.counters.get(outcome, 0)}"
        for outcome, told in certain.items()
        if seen.counters.get(outcome, 0) < told
    ]
    return wrong, f"{counted} outcomes: " + _listed(seen.counters)


def _answers(seen: Seen) -> Found:
    """An answer that a client got whole is its session's, letter by letter; no other turn was kept."""
    kept = {line["id"]: line["text"] for line in seen.record if "session" in line}
    wrong, same = [], 0
    for asked in seen.ledger.all():
        if asked.session is None:
            continue
        text = kept.get(asked.number)
        if asked.text is not None and text != asked.text:
            wrong.append(f"request {asked.number}: {asked.text[:50]!r} came, {text and text[:50]!r} was kept")
        if text is not None and asked.text is None and asked.fate != GONE:
            wrong.append(f"request {asked.number} was kept, but is {asked.fate}")
        same += asked.text is not None
    return wrong, f"{same} answers are the same on both sides"


def _equality(seen: Seen) -> Found:
    """Conversations are what they would have been without the others, the failures and the cancelled turns."""
    verdict = seen.verdict
    wrong = list(verdict.unlike)
    if verdict.windows != seen.sessions:
        wrong.append(f"{verdict.windows} of {seen.sessions} windows were compared")
    if len(verdict.distinct) < _DISTINCT:
        wrong.append(f"{len(verdict.distinct)} different tokens prove nothing")
    return wrong, (
        f"{verdict.conversations} conversations, {verdict.turns} turns, {verdict.tokens} tokens ({verdict.ties} ties), "
        f"largest |Δlogit| {verdict.largest:.1e}, {verdict.windows} windows; {verdict.skipped} not judged"
    )


def _rest(seen: Seen) -> Found:
    """The engine is at rest: nothing runs, waits or is held, and it never held more than it may."""
    held = {name: seen.rest[name] for name in ("rows_busy", "leases", "queued", "active")}
    wrong = [f"{name}: {count}" for name, count in held.items() if count]
    if seen.rest["tasks"] > seen.before["tasks"] + 1:
        wrong.append(f"{seen.rest['tasks']} asyncio tasks, {seen.before['tasks']} before")
    if not seen.rest["ready"]:
        wrong.append("it takes no requests")
    return wrong + seen.odd, _listed(held)


def _pages(seen: Seen) -> Found:
    """Without sessions there are no pages."""
    held = {name: seen.emptied[name] for name in ("sessions", "pages_used")}
    wrong = [f"{name}: {count}" for name, count in held.items() if count]
    return wrong, f"{seen.rest['pages_used']} pages of {seen.rest['sessions']} sessions, none once deleted"


def _memory(seen: Seen) -> Found:
    """The worker does not grow. It is wrong only if the whole confidence interval, not just its middle, is; and not in
    a short run, which begins with whatever memory there is."""
    limit = seen.options.growth
    try:
        grown = growth(seen.memory, warm_up=seen.options.warm_up)
    except ValueError as error:
        return [str(error)], "not enough samples"
    last = seen.memory[-1][1]
    detail = f"{grown.slope:+.2f} MiB/min ({grown.low:+.2f} to {grown.high:+.2f}), {last:.0f} MiB at the end"
    if seen.options.seconds < SETTLED:
        return [], f"{detail}: not judged, under {SETTLED:.0f} s of load"
    return [] if grown.low < limit else [f"it grows by more than {limit:g} MiB/min: {detail}"], detail


def _telemetry(seen: Seen) -> Found:
    """Spans are delivered or counted as dropped; what was delivered was accepted; afterwards all is well again."""
    spans = seen.spans
    missing = spans["handed"] - spans["delivered"] - spans["dropped"]
    wrong = [] if missing == 0 else [f"{missing} of {spans['handed']} spans neither delivered nor counted as dropped"]
    extra = spans["accepted"] - spans["delivered"]
    if not 0 <= extra <= _BATCH * sum(seen.outages.values()):
        wrong.append(f"the collector accepted {spans['accepted']} of {spans['delivered']} delivered")
    return wrong + seen.traces, _listed(spans)


def _log(seen: Seen) -> Found:
    return seen.tracebacks, "no traceback"


def _end(seen: Seen) -> Found:
    return [] if seen.status == 0 else [f"exit status {seen.status}"], "exit status 0"


def _amount(seen: Seen) -> Found:
    """A load under which nothing went wrong shows nothing: each fault, outage and kind of ending was there."""
    faults: dict[str, int] = seen.rest["faults"]
    books = seen.ledger.books()
    wrong = [f"no fault of the kind {kind}" for kind in EVERY if not faults.get(kind)]
    wrong += [f"no outage of the kind {kind}" for kind in ("restart", "swallow") if not seen.outages.get(kind)]
    wrong += [f"no request was {fate}" for fate in ("length", "rejected", GONE, UNPARSED) if not books.fates[fate]]
    return wrong, f"faults: {_listed(faults)}; outages: {_listed(seen.outages)}; {_listed(books.kinds)}"


def _listed(counts: Any) -> str:
    return ", ".join(_parts(dict(counts))) or "none"


def _parts(counts: dict[str, int]) -> Iterator[str]:
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        yield f"{count} {name}"


_CHECKS: Final[tuple[tuple[str, Callable[[Seen], Found]], ...]] = (
    ("one fate each", _fates),
    ("at the guard once", _reached),
    ("one outcome each", _counters),
    ("answers as kept", _answers),
    ("conversations undisturbed", _equality),
    ("engine at rest", _rest),
    ("no page left", _pages),
    ("memory", _memory),
    ("telemetry", _telemetry),
    ("log", _log),
    ("end", _end),
    ("enough happened", _amount),
)
