"""``/v1/sessions`` over a fake engine: routes, owners, bodies, pages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from otelctx.testing.fake_engine import FakeEngine

MINE, OTHER = {"authorization": "Bearer key-1"}, {"authorization": "Bearer key-2"}


async def turn(client: httpx.AsyncClient, session: str, headers: dict[str, str] = MINE) -> dict[str, Any]:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "hi"}],
        "otelctx": {"session": session, "mode": "append"},
    }
    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_sessions_are_listed_newest_first_in_pages_to_their_owner(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        for name in ("a", "b/c", "ü"):
            await turn(client, name)
        await turn(client, "x", OTHER)
        first = (await client.get("/v1/sessions?limit=2", headers=MINE)).json()
        assert [session["id"] for session in first["data"]] == ["ü", "b/c"]
        assert (first["object"], first["has_more"], first["first_id"], first["last_id"]) == ("list", True, "ü", "b/c")
        rest = (await client.get("/v1/sessions", params={"after": "b/c"}, headers=MINE)).json()
        assert ([session["id"] for session in rest["data"]], rest["has_more"]) == (["a"], False)
        assert rest["data"][0] | {"idle_seconds": 0} == (await client.get("/v1/sessions/a", headers=MINE)).json() | {
            "idle_seconds": 0
        }
        nothing = (await client.get("/v1/sessions", headers={"authorization": "Bearer new"})).json()
        assert nothing == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("limit=0", (400, "invalid_value")),
        ("limit=101", (400, "invalid_value")),
        ("limit=-1", (400, "invalid_value")),
        ("limit=1e1", (400, "invalid_value")),
        ("limit=%D9%A1", (400, "invalid_value")),
        ("limit=" + "9" * 5000, (400, "invalid_value")),
        ("order=asc", (400, "unknown_parameter")),
        ("after=x", (404, "session_not_found")),
        ("after=nobody's", (404, "session_not_found")),
    ],
)
async def test_a_page_that_can_not_be_is_refused(direct: Any, query: str, error: tuple[int, str]) -> None:
    async with direct(FakeEngine()) as client:
        await turn(client, "a")
        await turn(client, "x", OTHER)
        assert code(await client.get(f"/v1/sessions?{query}", headers=MINE)) == error


async def test_without_a_key_no_ids_are_given_away(direct: Any) -> None:
    """A session of nobody's is reached by its id, and so by whoever knows it."""
    async with direct(FakeEngine()) as client:
        await turn(client, "unguessable", {})
        answer = await client.get("/v1/sessions")
        assert code(answer) == (401, "key_required")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/v1/sessions/unguessable")).status_code == 200


@pytest.mark.parametrize(
    "session", ["a/versions", "a/rollback", "a/labels/b", "a/b", "a%2Fb", "labels/x", "..", "versions"]
)
async def test_written_with_percent_signs_every_id_is_unambiguous(direct: Any, session: str) -> None:
    path = "/v1/sessions/" + "".join(f"%{byte:02X}" for byte in session.encode())
    async with direct(FakeEngine()) as client:
        await turn(client, "a")
        await turn(client, session)
        assert (await client.get(path, headers=MINE)).json()["id"] == session
        assert len((await client.get(f"{path}/versions", headers=MINE)).json()["data"]) == 1
        named = await client.put(f"{path}/labels/x%2Fversions", headers=MINE)
        assert (named.json()["session"], named.json()["label"]) == (session, "x/versions")
        assert (await client.delete(path, headers=MINE)).json()["id"] == session
        assert (await client.get(path, headers=MINE)).status_code == 404
        assert (await client.get("/v1/sessions/a", headers=MINE)).status_code == 200


async def test_a_path_that_ends_like_anothers_is_never_taken_for_an_id(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        await turn(client, "a/versions")
        for method, path in (
            ("DELETE", "a/versions"),
            ("POST", "a/versions"),
            ("GET", "a/rollback"),
            ("GET", "a/labels/b"),
        ):
            assert code(await client.request(method, f"/v1/sessions/{path}", headers=MINE)) == (
                405,
                "method_not_allowed",
            )
        assert code(await client.get("/v1/sessions/a/versions", headers=MINE)) == (404, "session_not_found")
        assert (await client.get("/v1/sessions/a%2Fversions", headers=MINE)).status_code == 200


async def test_every_route_answers_for_a_foreign_session_as_for_none(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        await turn(client, "a")
        await client.put("/v1/sessions/a/labels/first", headers=MINE)
        for method, suffix, body in (
            ("GET", "", None),
            ("GET", "/versions", None),
            ("POST", "/rollback", {"version": 1}),
            ("POST", "/rollback", {"label": "first"}),
            ("PUT", "/labels/mine", None),
            ("DELETE", "/labels/first", None),
            ("DELETE", "", None),
        ):
            foreign = await client.request(method, f"/v1/sessions/a{suffix}", json=body, headers=OTHER)
            unknown = await client.request(method, f"/v1/sessions/b{suffix}", json=body, headers=OTHER)
            assert code(foreign) == (404, "session_not_found")
            assert foreign.text.replace("'a'", "'b'") == unknown.text
        state = (await client.get("/v1/sessions/a", headers=MINE)).json()
        assert (state["version"], state["labels"]) == (1, {"first": 1})


async def test_rollback_and_labels_say_what_they_did(direct: Any) -> None:
    async with direct(FakeEngine()) as client:
        used = [(await turn(client, "a"))["otelctx"]["window"]["used"] for _ in range(3)]
        named = (await client.put("/v1/sessions/a/labels/prompt%20v3.1.0", json={"version": 1}, headers=MINE)).json()
        assert (named["label"], named["version"]) == ("prompt v3.1.0", 1)
        back = (await client.post("/v1/sessions/a/rollback", json={"label": "prompt v3.1.0"}, headers=MINE)).json()
        assert (back["object"], back["restored"], back["version"], back["turns"]) == ("session.rollback", 1, 4, 1)
        assert back["window"]["used"] == used[0]
        versions = (await client.get("/v1/sessions/a/versions", headers=MINE)).json()
        rows = [(v["version"], v["current"], v["window"]["used"], v["labels"]) for v in versions["data"]]
        assert rows == [
            (4, True, used[0], []),
            (3, False, used[2], []),
            (2, False, used[1], []),
            (1, False, used[0], ["prompt v3.1.0"]),
        ]
        assert versions["last_id"] == named["key"]
        again = (await client.post("/v1/sessions/a/rollback", json={"label": named["key"]}, headers=MINE)).json()
        assert (again["restored"], again["version"]) == (1, 5)
        await client.post("/v1/sessions/a/rollback", json={"version": 3}, headers=MINE)  # nothing is lost by a rollback
        assert (await turn(client, "a"))["otelctx"]["window"]["used"] == used[2] + used[0]
        gone = (await client.delete("/v1/sessions/a/labels/prompt%20v3.1.0", headers=MINE)).json()
        assert gone["deleted"] is True
        assert (await client.get("/v1/sessions/a", headers=MINE)).json()["labels"] == {}


@pytest.mark.parametrize(
    ("method", "suffix", "content", "error"),
    [
        ("POST", "rollback", b'{"version": 9}', (404, "version_not_found")),
        ("POST", "rollback", b'{"version": 0}', (400, "value_out_of_range")),
        ("POST", "rollback", b'{"version": 1e400}', (400, "invalid_type")),
        ("POST", "rollback", b'{"version": true}', (400, "invalid_type")),
        ("POST", "rollback", b'{"label": "no"}', (404, "label_not_found")),
        ("POST", "rollback", b'{"label": ""}', (400, "invalid_label")),
        ("POST", "rollback", b'{"version": 1, "label": "x"}', (400, "invalid_request")),
        ("POST", "rollback", b"{}", (400, "missing_required_parameter")),
        ("POST", "rollback", b"", (400, "invalid_json")),
        ("POST", "rollback", b'{"versoin": 1}', (400, "unknown_parameter")),
        ("POST", "rollback", b'{"label": "' + b"x" * 20_000 + b'"}', (413, "request_too_large")),
        ("PUT", "labels/x", b'{"version": 9}', (404, "version_not_found")),
        ("PUT", "labels/x%00", b"", (400, "invalid_label")),
        ("PUT", "labels/" + "x" * 129, b"", (400, "invalid_label")),
        ("DELETE", "labels/x", b"", (404, "label_not_found")),
    ],
)
async def test_what_can_not_be_done_is_refused_and_changes_nothing(
    direct: Any, method: str, suffix: str, content: bytes, error: tuple[int, str]
) -> None:
    async with direct(FakeEngine()) as client:
        await turn(client, "a")
        headers = MINE | {"content-type": "application/json"}
        answer = await client.request(method, f"/v1/sessions/a/{suffix}", content=content, headers=headers)
        assert code(answer) == error
        state = (await client.get("/v1/sessions/a", headers=MINE)).json()
        assert (state["version"], state["labels"], state["busy"]) == (1, {}, False)


async def test_a_session_that_runs_a_turn_shows_what_was_before_and_is_not_changed(direct: Any) -> None:
    engine = FakeEngine()
    async with direct(engine) as client:
        used = (await turn(client, "a"))["otelctx"]["window"]["used"]
        engine.gate = asyncio.Event()
        engine.begun.clear()
        running = asyncio.create_task(turn(client, "a"))
        await engine.begun.wait()
        state = (await client.get("/v1/sessions/a", headers=MINE)).json()
        assert (state["busy"], state["version"], state["window"]["used"]) == (True, 1, used)
        for answer in (
            await client.post("/v1/sessions/a/rollback", json={"version": 1}, headers=MINE),
            await client.put("/v1/sessions/a/labels/x", headers=MINE),
            await client.delete("/v1/sessions/a", headers=MINE),
        ):
            assert code(answer) == (409, "session_busy")
        engine.gate.set()
        await running
        assert (await client.post("/v1/sessions/a/rollback", json={"version": 1}, headers=MINE)).status_code == 200
