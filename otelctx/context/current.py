"""The current scope, bound to the OpenTelemetry Context, and the public keys that read and write it.

A scope is looked up in the OpenTelemetry Context first and in a ``ContextVar`` of our own second: some frameworks
replace the first by a Context that they have just extracted from the request's headers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from contextvars import Token as VarToken
from time import monotonic
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from otelctx.context.keys import KeyRegistry, KeySpec, Rule, Value, Visibility, check
from otelctx.context.scope import Scope, Token
from otelctx.context.state import EMPTY, Entry, State, entry
from otelctx.errors import ContextTypeError
from otelctx.semconv import (
    SESSION_ID,
    SESSION_TURN,
    USAGE_INPUT_TOKENS,
    USAGE_OUTPUT_TOKENS,
    WINDOW_OVERFLOWED,
    WINDOW_TRUNCATED,
)

__all__ = [
    "BINDING_KEY",
    "REGISTRY",
    "Binding",
    "ContextKey",
    "UpKey",
    "attach",
    "current_scope",
    "detach",
    "enter_binding",
    "enter_context",
    "leave",
    "session",
    "snapshot",
    "with_scope",
]

T = TypeVar("T", bound=Value)

REGISTRY: Final = KeyRegistry()


class Overlay:
    """One ``bound()`` value: seen by its own branch only, over the scope's."""

    __slots__ = ("entry", "name")

    def __init__(self, name: str, value: Entry | None) -> None:
        self.name = name
        self.entry = value


class Binding:
    """What the Context holds: a scope and the overlays of this branch, outermost first."""

    __slots__ = ("_seen", "overlays", "scope")

    def __init__(self, scope: Scope, overlays: tuple[Overlay, ...] = ()) -> None:
        self.scope = scope
        self.overlays = overlays
        self._seen: tuple[State, list[Entry | None], State] | None = None

    def overlay(self, name: str) -> Overlay | None:
        for candidate in reversed(self.overlays):
            if candidate.name == name:
                return candidate
        return None

    def entry(self, name: str) -> Entry | None:
        over = self.overlay(name)
        return over.entry if over is not None else self.scope.state.entry(name)

    def snapshot(self) -> State:
        state = self.scope.state
        if not self.overlays:
            return state
        values = [over.entry for over in self.overlays]
        seen = self._seen
        # Several calls from one block send the same: its entries are not put together, nor hashed, each time anew.
        if seen is not None and seen[0] is state and seen[1] == values:
            return seen[2]
        last = {over.name: over.entry for over in self.overlays}
        found = state.apply([e for e in last.values() if e], [n for n, e in last.items() if e is None])
        self._seen = state, values, found
        return found


BINDING_KEY: Final = otel_context.create_key("otelctx-scope")
_BINDING_VAR: ContextVar[Binding | None] = ContextVar("otelctx-scope", default=None)

Attached = tuple["VarToken[Context]", "VarToken[Binding | None]"]


def _in_use() -> ContextVar[Context] | None:
    """The variable that ``opentelemetry.context`` reads and writes, if it does no more than that."""
    if type(getattr(otel_context, "_RUNTIME_CONTEXT", None)) is not ContextVarsRuntimeContext:
        return None  # OTEL_PYTHON_CONTEXT names another one, which may do more
    probe = Context()
    token = otel_context.attach(probe)
    try:
        return next((var for var, value in copy_context().items() if value is probe), None)
    finally:
        otel_context.detach(token)


_IN_USE: Final = _in_use()
# What attach() and detach() of OpenTelemetry come to, four calls further in. A request has one of each.
enter_context: Final[Callable[[Context], VarToken[Context]]] = otel_context.attach if _IN_USE is None else _IN_USE.set
_leave_context: Final[Callable[[VarToken[Context]], None]] = otel_context.detach if _IN_USE is None else _IN_USE.reset
enter_binding: Final = _BINDING_VAR.set
_leave_binding: Final = _BINDING_VAR.reset
_now: Final[Callable[[], Context]] = otel_context.get_current if _IN_USE is None else _IN_USE.get


def current_binding(context: Context | None = None) -> Binding | None:
    """What ``context``, by default the current one, holds of ours."""
    found = (_now() if context is None else context).get(BINDING_KEY)
    if isinstance(found, Binding):
        return found
    return _BINDING_VAR.get() if context is None else None


def current_scope(context: Context | None = None) -> Scope | None:
    """The scope of ``context``, by default of the running task or thread; ``None`` outside any."""
    found = current_binding(context)
    return None if found is None else found.scope


def snapshot(context: Context | None = None) -> State:
    """The state that a call made now would send: the current scope's, with the values of ``bound()`` over it."""
    found = current_binding(context)
    return EMPTY if found is None else found.snapshot()


def with_scope(scope: Scope, context: Context | None = None) -> Context:
    """``context`` with ``scope`` in it; nothing is attached."""
    return otel_context.set_value(BINDING_KEY, Binding(scope), context)


def attach(context: Context, scope: Scope | None = None) -> Attached:
    """Make ``context``, with ``scope`` in it, the current one. Must be undone by :func:`detach` in the same task."""
    binding = Binding(scope) if scope is not None else None
    if binding is not None:
        context = otel_context.set_value(BINDING_KEY, binding, context)
    return otel_context.attach(context), _BINDING_VAR.set(binding)


def detach(tokens: Attached) -> None:
    """Undo :func:`attach`."""
    leave(*tokens)


def leave(context: VarToken[Context], binding: VarToken[Binding | None]) -> None:
    """Undo :data:`enter_context` and :data:`enter_binding`, which came in this order."""
    try:
        _leave_binding(binding)
    except ValueError:
        # A generator that was left half-way is finalised in another task's context. There is nothing to undo there, and
        # OpenTelemetry's own detach would log an error for it.
        return
    _leave_context(context)


def _bind(binding: Binding) -> Attached:
    context = otel_context.set_value(BINDING_KEY, binding)
    return otel_context.attach(context), _BINDING_VAR.set(binding)


def _writable() -> Binding:
    """The current binding; outside any scope an implicit one, which lives as long as the task's or thread's context."""
    found = current_binding()
    if found is None:
        found = Binding(Scope())
        _bind(found)
    return found


@contextmanager
def session(session_id: str, *, timeout: float | None = None) -> Iterator[Scope]:
    """Everything inside belongs to session ``session_id``: calls carry it, and what comes back is read from the scope.

    The scope starts with the enclosing state; on exit its up values join the enclosing scope. ``timeout`` is the
    seconds from now after which nobody waits for an answer any more: calls tell what is left of it, so that who serves
    them can end in time. Nothing here is cancelled by it, and an enclosing deadline that ends earlier stays.

    Raises :class:`~otelctx.errors.ContextTypeError` if the id is no text or empty or the timeout is not above 0,
    ``ContextLimitExceeded`` over 1024 bytes.
    """
    if session_id == "":
        raise ContextTypeError("a session id is not empty")
    if timeout is not None and not timeout > 0:
        raise ContextTypeError(f"a timeout is in seconds, above 0; this one is {timeout!r}")
    outer = current_binding()
    state = outer.snapshot() if outer is not None else EMPTY
    scope = Scope(state, parent=outer.scope if outer is not None else None)
    if outer is not None:
        scope.source = outer.scope.source
    scope.set(SESSION.spec, session_id)
    if timeout is not None:
        scope.limit(monotonic() + timeout)
    tokens = _bind(Binding(scope))
    try:
        yield scope
    finally:
        detach(tokens)
        scope.end()


_HANDLES: Final[dict[str, Any]] = {}


def _declared_at() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "typing":  # ContextKey[str]("name", str)
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Handle(Generic[T]):
    """Shared by both kinds of key: an equal redeclaration gives the same object."""

    __slots__ = ("spec",)
    spec: KeySpec

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name!r} {self.spec.type.__name__}>"


def _handle(cls: type[Any], spec: KeySpec) -> Any:
    known = REGISTRY.declare(spec)
    handle = _HANDLES.get(spec.name)
    if handle is None:
        handle = object.__new__(cls)
        handle.spec = known
        # Two threads that declare the same key at once must get one object.
        handle = _HANDLES.setdefault(spec.name, handle)
    return handle


class ContextKey(_Handle[T]):
    """A value that the caller owns and callees receive.

    ``type`` is str, int (64 bit), bool, float or bytes, and a value's type must be exactly it. ``flow="local"`` keeps
    it in this process, ``visibility="public"`` also puts it into W3C baggage. Values take up to 1024 bytes.
    """

    __slots__ = ()

    def __new__(
        cls, name: str, type: type[T], flow: Literal["down", "local"] = "down", visibility: Visibility = "internal"
    ) -> ContextKey[T]:
        return cast("ContextKey[T]", _handle(cls, KeySpec(name, type, flow, visibility, None, _declared_at())))

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """The value here, or ``default``; also ``default`` if a peer sent it with another type."""
        binding = current_binding()
        found = binding.entry(self.spec.name) if binding is not None else None
        if binding is None or found is None:
            return default
        if found.kind is not self.spec.kind:
            binding.scope.mistook()
            return default
        return cast("T", found.value)

    def set(self, value: T) -> Token:
        """Set it for the whole scope, or for the innermost ``bound()`` block of this key.

        Raises :class:`~otelctx.errors.ContextTypeError` and ``ContextLimitExceeded``.
        """
        binding = _writable()
        over = binding.overlay(self.spec.name)
        if over is None:
            return binding.scope.set(self.spec, value)
        before = over.entry
        over.entry = self._overlaid(binding, value)
        return Token(self.spec.name, before, over.entry)

    def reset(self, token: Token) -> bool:
        """Undo a :meth:`set`, if its value is still there. Returns whether it was undone."""
        binding = _writable()
        over = binding.overlay(self.spec.name)
        if over is None:
            return binding.scope.reset(token)
        if over.entry is not token.after:
            return False
        over.entry = token.before
        return True

    @contextmanager
    def bound(self, value: T) -> Iterator[None]:
        """Overlay the value for this branch (task, thread or block) only, until the block ends."""
        outer = current_binding()
        inner = outer if outer is not None else Binding(Scope())
        overlay = Overlay(self.spec.name, self._overlaid(inner, value))
        tokens = _bind(Binding(inner.scope, (*inner.overlays, overlay)))
        try:
            yield
        finally:
            detach(tokens)

    def _overlaid(self, binding: Binding, value: object) -> Entry:
        new = entry(self.spec.name, check(self.spec, value))
        binding.snapshot().apply([new], ())  # raises ContextLimitExceeded here, where the value is set
        return new


class UpKey(_Handle[T]):
    """A value that the callee owns; it travels back in acks and joins by ``rule``: sum, max, min, any or last.

    ``sum`` is for int only (64 bit, saturating) and is recorded and carried as increments. Text and bytes take up to
    256 bytes.
    """

    __slots__ = ()

    def __new__(cls, name: str, type: type[T], *, rule: Rule) -> UpKey[T]:
        return cast("UpKey[T]", _handle(cls, KeySpec(name, type, "up", "internal", rule, _declared_at())))

    def record(self, value: T) -> None:
        """Join ``value`` into the current scope. Raises :class:`~otelctx.errors.ContextTypeError`."""
        _writable().scope.record(self.spec, value)

    def get(self) -> T | None:
        """What has been recorded here or has come back so far; a ``sum`` starts at 0."""
        scope = current_scope()
        found = scope.up(self.spec.name) if scope is not None else None
        if found is None or type(found) is not self.spec.type:
            return cast("T", 0) if self.spec.rule == "sum" else None
        return cast("T", found)


SESSION: Final = ContextKey(SESSION_ID, str)
USAGE_INPUT: Final = UpKey(USAGE_INPUT_TOKENS, int, rule="sum")
USAGE_OUTPUT: Final = UpKey(USAGE_OUTPUT_TOKENS, int, rule="sum")
TURN: Final = UpKey(SESSION_TURN, int, rule="max")
OVERFLOWED: Final = UpKey(WINDOW_OVERFLOWED, bool, rule="any")
TRUNCATED: Final = UpKey(WINDOW_TRUNCATED, bool, rule="any")
