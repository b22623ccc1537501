"""The scope of a request or of a ``with session(...)`` block: one mutable, locked holder that everything inside shares.

The OpenTelemetry Context holds a *reference* to it. So a value set in a sync endpoint, in a branch of ``gather`` or
under a middleware that runs the application in another task reaches the outermost middleware, where a value put into a
``ContextVar`` there would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Literal

from otelctx.context.keys import INT_MAX, INT_MIN, KeySpec, Rule, Value, check
from otelctx.context.state import EMPTY, Entry, State, Window
from otelctx.semconv import INCOMPLETE

__all__ = ["RULES", "Scope", "Source", "Token", "UpValue"]

Source = Literal["frame", "baggage", "none"]


def _sum(old: Value, new: Value) -> Value:
    # Saturating: a counter that wraps to a negative number is worse than one that stops.
    return max(INT_MIN, min(INT_MAX, int(old) + int(new)))


def _any(old: Value, new: Value) -> Value:
    return bool(old) or bool(new)


def _last(old: Value, new: Value) -> Value:
    return new


def _number(value: Value) -> int | float:
    # Integers stay integers: beyond 2**53 two of them may be the same float.
    return value if isinstance(value, int) else float(value)


def _max(old: Value, new: Value) -> Value:
    return old if _number(old) >= _number(new) else new


def _min(old: Value, new: Value) -> Value:
    return old if _number(old) <= _number(new) else new


RULES: Final[Mapping[Rule, Callable[[Value, Value], Value]]] = {
    "sum": _sum,
    "max": _max,
    "min": _min,
    "any": _any,
    "last": _last,
}


@dataclass(frozen=True, slots=True)
class UpValue:
    """A value on its way up, with the rule by which it joins what is already there."""

    rule: Rule
    value: Value = field(repr=False)

    def joined(self, older: UpValue | None) -> UpValue:
        if older is None or older.rule != self.rule:
            return self
        return UpValue(self.rule, RULES[self.rule](older.value, self.value))


@dataclass(frozen=True, slots=True)
class Token:
    """What :meth:`Scope.set` replaced; good for one :meth:`Scope.reset` of the same scope."""

    name: str
    before: Entry | None
    after: Entry | None


_NOTHING: Final[Mapping[str, UpValue]] = {}


class Scope:
    """Down state, up values and window report of one request or session block. Safe to use from any thread or task."""

    __slots__ = (
        "__weakref__",
        "_ended",
        "_lock",
        "_state",
        "_taken",
        "_ups",
        "_window",
        "deadline",
        "mistyped",
        "parent",
        "source",
    )

    def __init__(
        self,
        state: State = EMPTY,
        *,
        source: Source = "none",
        incomplete: bool = False,
        parent: Scope | None = None,
    ) -> None:
        """``incomplete`` says that the caller's context did not arrive whole; it is kept as an entry of the state."""
        self._lock = Lock()
        self._state = state.put(INCOMPLETE, True) if incomplete else state
        # Never written in place, so that most scopes need none of their own, and readers no lock.
        self._ups: Mapping[str, UpValue] = _NOTHING
        self._taken: Mapping[str, UpValue] = _NOTHING
        self._window: Window | None = None
        self._ended = False
        self.mistyped = 0  # reads of keys that a peer has sent with another type than they are declared with
        self.source: Source = source
        self.parent = parent
        # Monotonic seconds by which everything in here is to be answered; an inner scope's is never later.
        self.deadline: float | None = None if parent is None else parent.deadline

    # down

    @property
    def state(self) -> State:
        return self._state

    @property
    def incomplete(self) -> bool:
        return self._state.incomplete

    def set(self, spec: KeySpec, value: object) -> Token:
        """Set ``spec``'s key. Raises :class:`~otelctx.errors.ContextTypeError` or ``ContextLimitExceeded`` right here,
        and leaves the scope as it was."""
        checked = check(spec, value)
        with self._lock:
            before = self._state.entry(spec.name)
            self._state = self._state.put(spec.name, checked)
            return Token(spec.name, before, self._state.entry(spec.name))

    def reset(self, token: Token) -> bool:
        """Undo a :meth:`set`, but only while its value is still there. Returns whether it was undone."""
        with self._lock:
            current = self._state.entry(token.name)
            if current is not token.after:
                return False
            self._state = self._state.apply([token.before], ()) if token.before else self._state.drop([token.name])
            return True

    # up

    def record(self, spec: KeySpec, value: object) -> None:
        """Join a value of an up key by its rule: for ``sum`` it is an increment (int64, saturating)."""
        if spec.rule is not None:
            self.merge_ups({spec.name: UpValue(spec.rule, check(spec, value))})

    def merge_ups(self, ups: Mapping[str, UpValue]) -> bool:
        """Join values that came back from a callee. Returns ``False``, and changes nothing, once the scope has
        ended.
        """
        with self._lock:
            if self._ended:
                return False
            before = self._ups
            self._ups = {**before, **{name: up.joined(before.get(name)) for name, up in ups.items()}}
            return True

    def mistook(self) -> None:
        """A key was read whose value is of another type here: it is absent, and the shell counts it."""
        with self._lock:
            self.mistyped += 1

    def up(self, name: str) -> Value | None:
        found = self._ups.get(name)
        return None if found is None else found.value

    def ups(self) -> dict[str, UpValue]:
        """All up values as they stand: a copy."""
        return dict(self._ups)

    @property
    def silent(self) -> bool:
        """Whether there is nothing to tell a caller: no up value and no window report."""
        return not self._ups and self._window is None

    @property
    def untold(self) -> bool:
        """Whether :meth:`take_ups` has not been called since up values last came in."""
        return self._taken is not self._ups

    def take_ups(self) -> dict[str, UpValue]:
        """What has not been taken yet: for ``sum`` the increment since the last call, else the value if it changed.

        An ack carries what this returns, so that a caller who adds up every ack counts each increment once.
        """
        if not self._ups:
            return {}
        with self._lock:
            fresh: dict[str, UpValue] = {}
            for name, up in self._ups.items():
                before = self._taken.get(name)
                if before == up and type(before.value) is type(up.value):
                    continue
                increment = up.rule == "sum" and before is not None
                fresh[name] = UpValue("sum", int(up.value) - int(before.value)) if increment and before else up
            self._taken = self._ups
            return fresh

    # window

    @property
    def window(self) -> Window | None:
        """The newest report of the session's token window, from a callee or from the engine in this process."""
        return self._window

    def report(self, window: Window) -> None:
        """Take a window report whole, if it is newer by (generation, version) than the one at hand."""
        with self._lock:
            if window.newer_than(self._window):
                self._window = window

    # life

    def limit(self, deadline: float) -> None:
        """All of it is to be answered by ``deadline``, in monotonic seconds. The earliest one counts."""
        with self._lock:
            if self.deadline is None or deadline < self.deadline:
                self.deadline = deadline

    @property
    def ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """Join the up values into the enclosing scope; what comes later is refused by :meth:`merge_ups`. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            ups = self._ups
        if self.parent is not None and ups:
            self.parent.merge_ups(ups)
