"""A session that was rolled back goes on as one that never went further, whatever its window and its template do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from otelctx.errors import EngineFailed, Overloaded, SessionBusy, SessionNotFound, VersionNotFound

Make = Callable[..., Any]
# How a message is written depends on whether it is the last: the conversation must be rendered anew each turn.
WHOLE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% if loop.last %}{{ '!' }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LONG = "tell me all of it, and then all of it again, please "


@pytest.mark.parametrize("whole", [False, True], ids=["pieces", "whole"])
@pytest.mark.parametrize("mode", ["turns", "slide"])
async def test_after_a_rollback_the_next_turn_is_that_of_a_conversation_that_never_went_on(
    make_engine: Make, make_tokenizer: Make, ask: Make, window_of: Make, whole: bool, mode: str
) -> None:
    """Long turns in between, so that exchanges of the version that is restored have left the window."""
    more: dict[str, Any] = {"tokenizer": make_tokenizer(WHOLE)} if whole else {}
    engine = make_engine(window=256, when_full=mode, **more)
    await engine.start()
    for session in ("s", "fresh"):
        await ask(engine, "hello there", session=session)
    await engine.sessions.label("s", "prompt v3.1.0")
    first = window_of(engine, "s")
    for n in range(5):
        await ask(engine, f"{LONG}{n}", session="s", max_tokens=40)
    assert (await engine.session_state("s"))["window"]["evicted"] > 0
    done = await engine.sessions.rollback("s", label="prompt v3.1.0")
    assert (done["restored"], done["version"], done["turns"]) == (1, 7, 1)
    assert window_of(engine, "s") == first
    after, reference = [await ask(engine, "and the hill?", session=name) for name in ("s", "fresh")]
    assert after.text == reference.text
    assert after.result.usage.prompt_tokens == reference.result.usage.prompt_tokens
    assert window_of(engine, "s") == window_of(engine, "fresh")
    state, fresh = await engine.session_state("s"), await engine.session_state("fresh")
    assert (state["version"], state["turns"], state["window"]) == (8, 2, fresh["window"])
    assert after.result.window.version == 8
    for name in ("s", "fresh"):
        await engine.delete_session(name)
    assert engine.stats().pages_used == 0


async def test_what_is_restored_is_continued_from_the_kv_that_it_shares_with_what_came_after(
    make_engine: Make, ask: Make, window_of: Make
) -> None:
    engine = make_engine(rows=1)
    await ask(engine, "hello", session="s")
    held = len(window_of(engine, "s"))
    await ask(engine, "more", session="s")
    await engine.sessions.rollback("s", version=1)
    again = await ask(engine, "something else", session="s")
    assert held <= again.result.usage.cached_tokens < again.result.usage.prompt_tokens


async def test_a_rollback_can_itself_be_rolled_back(make_engine: Make, ask: Make, window_of: Make) -> None:
    engine = make_engine()
    windows = {}
    for n in (1, 2, 3):
        await ask(engine, f"number {n}", session="s")
        windows[n] = window_of(engine, "s")
    assert (await engine.sessions.rollback("s", version=1))["version"] == 4
    assert (await engine.sessions.rollback("s", version=3))["version"] == 5
    assert window_of(engine, "s") == windows[3]
    versions = (await engine.sessions.versions("s"))["data"]
    assert [(v["version"], v["window"]["used"]) for v in versions] == [
        (5, len(windows[3])),
        (4, len(windows[1])),
        (3, len(windows[3])),
        (2, len(windows[2])),
        (1, len(windows[1])),
    ]


async def test_a_turn_in_its_course_shows_only_what_was_before_it(
    make_engine: Make, make_gate: Make, ask: Make
) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    before = await engine.session_state("s")
    gate = make_gate(engine)
    turn = asyncio.create_task(ask(engine, "more", session="s"))
    await gate.allow(3)
    during = await engine.session_state("s")
    assert during["busy"] is True
    assert during | {"idle_seconds": 0, "busy": False} == before | {"idle_seconds": 0}
    assert [v["version"] for v in (await engine.sessions.versions("s"))["data"]] == [1]
    with pytest.raises(SessionBusy):
        await engine.sessions.delete("s")
    waiting = asyncio.create_task(engine.sessions.rollback("s", version=1))
    await asyncio.sleep(0)
    gate.open()
    await turn
    done = await waiting
    assert (done["restored"], done["version"]) == (1, 3)  # it came after the turn
    assert done["window"] == before["window"]


async def test_who_asked_may_go_while_the_engine_rolls_back(make_engine: Make, ask: Make, until: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    await ask(engine, "more", session="s")
    asked = asyncio.create_task(engine.sessions.rollback("s", version=1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.stats().leases == 1
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: engine.stats().leases == 0)
    assert (await engine.session_state("s"))["version"] == 3
    await ask(engine, "and on", session="s")


async def test_who_waits_for_a_session_and_goes_changes_nothing(make_engine: Make, make_gate: Make, ask: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    gate = make_gate(engine)
    turn = asyncio.create_task(ask(engine, "more", session="s"))
    await gate.allow(1)
    waiting = asyncio.create_task(engine.sessions.rollback("s", version=1))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.open()
    await turn
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await engine.session_state("s"))["version"] == 2


@pytest.mark.parametrize(("names", "pages"), [("a", 13), ("ab", 26)])
async def test_running_turns_take_the_pages_of_versions_and_never_miss_them(
    make_engine: Make, make_tokenizer: Make, ask: Make, names: str, pages: int
) -> None:
    """Windows that are written anew keep whole copies as versions: far more than the arena has."""
    engine = make_engine(window=256, pages=pages, rows=2, tokenizer=make_tokenizer(WHOLE))
    for n in range(8):
        await asyncio.gather(*(ask(engine, f"{LONG}{n}", session=name, max_tokens=60) for name in names))
    for name in names:
        state = await engine.session_state(name)
        assert (state["turns"], state["version"]) == (8, 8)
        assert state["versions"]["kept"] < 8


async def test_versions_are_their_owners_alone(make_engine: Make, ask: Make) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s", owner="ann")
    sessions = engine.sessions
    for act in (
        lambda: sessions.state("s", "bob"),
        lambda: sessions.versions("s", "bob"),
        lambda: sessions.rollback("s", "bob", version=1),
        lambda: sessions.label("s", "x", "bob"),
        lambda: sessions.unlabel("s", "x", "bob"),
        lambda: sessions.page("bob", after="s"),
    ):
        with pytest.raises(SessionNotFound):
            await act()
    with pytest.raises(VersionNotFound):
        await sessions.rollback("s", "ann", version=2)
    with pytest.raises(ValueError, match="a version or a label"):
        await sessions.rollback("s", "ann")
    assert (await sessions.page("bob"))["data"] == []
    assert [s["id"] for s in (await sessions.page("ann"))["data"]] == ["s"]


async def test_a_mistake_in_a_rollback_is_the_engines_failure_and_keeps_no_session(
    make_engine: Make, ask: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    await ask(engine, "hello", session="s")
    monkeypatch.setattr("otelctx.sessions.record.nearest", None)
    await ask(engine, "more", session="s")
    with pytest.raises(EngineFailed):
        await engine.sessions.rollback("s", version=1)
    assert not engine.ready
    assert engine.stats().leases == 0
    with pytest.raises(Overloaded):
        await engine.sessions.rollback("s", version=2)
    assert "the engine failed" in caplog.text
