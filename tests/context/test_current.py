from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otelctx.context.current import (
    REGISTRY,
    ContextKey,
    UpKey,
    attach,
    current_scope,
    detach,
    session,
    snapshot,
    with_scope,
)
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY
from otelctx.errors import ConfigError, ContextLimitExceeded, ContextTypeError

TIER = ContextKey("user.tier", str)
LIMIT = ContextKey("limit.tokens.total", int)
SPENT = UpKey("usage.tokens.output", int, rule="sum")


@pytest.fixture(autouse=True)
def fresh_context() -> Iterator[None]:
    tokens = attach(Context())
    yield
    detach(tokens)


def test_an_equal_redeclaration_is_the_same_object() -> None:
    assert ContextKey("user.tier", str) is TIER
    assert ContextKey[str]("user.tier", str) is TIER


def test_another_declaration_of_a_name_is_refused_and_says_where_the_first_was() -> None:
    with pytest.raises(ConfigError, match=r"test_current\.py:\d+"):
        ContextKey("user.tier", int)
    with pytest.raises(ConfigError, match="rule sum"):
        UpKey("usage.tokens.output", int, rule="max")


def test_an_up_key_is_no_context_key() -> None:
    with pytest.raises(ConfigError, match="usage"):
        ContextKey("usage.tokens.output", int)


def test_true_is_no_int_and_the_message_names_everything() -> None:
    with session("s"), pytest.raises(ContextTypeError, match=r"limit\.tokens\.total.*int.*bool.*declared at"):
        LIMIT.set(True)


def test_outside_any_scope_reads_are_absent_and_writes_last_as_long_as_the_context() -> None:
    assert TIER.get() is None
    assert TIER.get("free") == "free"
    assert SPENT.get() == 0
    TIER.set("gold")
    SPENT.record(5)
    assert TIER.get() == "gold"
    assert SPENT.get() == 5


def test_a_session_carries_the_enclosing_state_and_joins_its_values_on_exit() -> None:
    with session("outer"):
        TIER.set("gold")
        with session("chat-42") as inner:
            assert TIER.get() == "gold"
            assert snapshot()["session.id"] == "chat-42"
            SPENT.record(3)
            assert inner.up("usage.tokens.output") == 3
        assert snapshot()["session.id"] == "outer"
        assert SPENT.get() == 3
    assert current_scope() is None


@pytest.mark.parametrize("bad", ["", 7, "x" * 1025, "\ud800"])
def test_a_bad_session_id_is_refused(bad: object) -> None:
    with pytest.raises((ContextTypeError, ContextLimitExceeded)), session(bad):  # type: ignore[arg-type]
        pass
    assert current_scope() is None


async def test_a_value_set_in_a_gather_branch_or_thread_reaches_the_scope() -> None:
    async def branch() -> None:
        TIER.set("gold")

    with session("s"):
        await asyncio.gather(branch(), asyncio.to_thread(SPENT.record, 2))
        assert TIER.get() == "gold"
        assert SPENT.get() == 2


async def test_bound_is_seen_by_its_own_branch_only() -> None:
    seen: dict[str, str | None] = {}
    inside = asyncio.Event()
    looked = asyncio.Event()

    async def one() -> None:
        with TIER.bound("gold"):
            inside.set()
            await looked.wait()
            seen["one"] = snapshot().get("user.tier")  # type: ignore[assignment]

    async def two() -> None:
        await inside.wait()
        seen["two"] = TIER.get()
        looked.set()

    with session("s") as scope:
        TIER.set("free")
        await asyncio.gather(one(), two())
        assert scope.state["user.tier"] == "free"
    assert seen == {"one": "gold", "two": "free"}


def test_inside_bound_set_changes_the_overlay_and_reset_restores_it() -> None:
    with session("s") as scope:
        with TIER.bound("gold"):
            token = TIER.set("platinum")
            assert TIER.get() == "platinum"
            assert TIER.reset(token) is True
            assert TIER.get() == "gold"
        assert "user.tier" not in scope.state
        assert TIER.get() is None


def test_bound_raises_where_the_value_is_set() -> None:
    blob = ContextKey("test.blob", bytes)
    with session("s"), blob.bound(b"x" * 1000):
        for name in ("a", "b"):
            ContextKey(f"test.blob.{name}", bytes).set(b"x" * 800)
        with pytest.raises(ContextLimitExceeded), ContextKey("test.blob.c", bytes).bound(b"x" * 900):
            pass


def test_a_value_that_a_peer_sent_with_another_type_is_absent_and_counted_and_goes_on_as_it_came() -> None:
    scope = Scope(EMPTY.put("limit.tokens.total", "many"))
    tokens = attach(Context(), scope)
    assert LIMIT.get() is None
    assert LIMIT.get(5) == 5
    assert scope.mistyped == 2
    assert scope.state.root == snapshot().root == EMPTY.put("limit.tokens.total", "many").root
    detach(tokens)


def test_a_framework_that_replaces_the_otel_context_does_not_hide_the_scope() -> None:
    scope = Scope()
    tokens = attach(Context(), scope)
    replaced = otel_context.attach(Context())
    assert current_scope() is scope
    otel_context.detach(replaced)
    detach(tokens)


def test_an_explicit_context_is_read_alone() -> None:
    scope = Scope()
    assert current_scope(with_scope(scope, Context())) is scope
    with session("s"):
        assert current_scope(Context()) is None


async def test_a_generator_finalised_elsewhere_detaches_silently(caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncIterator[int]:
        with session("s"):
            yield 1
            yield 2

    stream = chunks()
    assert await anext(stream) == 1
    await asyncio.get_running_loop().create_task(stream.aclose(), context=contextvars.Context())  # type: ignore[attr-defined]
    del stream
    gc.collect()
    assert caplog.records == []


def test_every_up_key_of_the_wire_table_is_declared() -> None:
    for name in ("usage.tokens.input", "usage.tokens.output", "session.turn", "window.overflowed", "window.truncated"):
        spec = REGISTRY.get(name)
        assert spec is not None
        assert spec.flow == "up"
