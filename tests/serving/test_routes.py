"""Everything beside the chat: models, sessions, health, and what does not exist."""

from __future__ import annotations

from typing import Any

import pytest

from otelctx.asgi.owner import ANONYMOUS, owner_of
from otelctx.testing import capture
from otelctx.testing.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
TURN: dict[str, Any] = {
    "model": "org/fake",
    "messages": [{"role": "user", "content": "hi"}],
    "otelctx": {"session": "a/b", "mode": "append"},
}


async def test_models_state_the_window_in_effect_and_the_models_own_apart(direct: Any) -> None:
    async with direct(FakeEngine(name="org/fake", window=64)) as client:
        listed = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/org/fake")
        missing = await client.get("/v1/models/other")
    (model,) = listed["data"]
    assert model == one.json()
    assert (model["id"], model["object"], model["max_model_len"]) == ("org/fake", "model", 64)
    assert model["otelctx"] == {"window": 64, "model_max": 128}
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert one.headers["cache-control"] == "no-store"


async def test_a_session_is_its_owners_alone(direct: Any) -> None:
    mine, other = {"authorization": "Bearer key-1"}, {"authorization": "Bearer key-2"}
    async with direct(FakeEngine(name="org/fake")) as client:
        assert (await client.post(CHAT, json=TURN, headers=mine)).json()["otelctx"]["session"] == "a/b"
        state = await client.get("/v1/sessions/a/b", headers=mine)
        assert (state.status_code, state.json()["window"]["used"]) == (200, 5)
        for headers in (other, {}):
            answers = [
                await client.get("/v1/sessions/a/b", headers=headers),
                await client.delete("/v1/sessions/a/b", headers=headers),
                await client.post(CHAT, json=TURN, headers=headers),
            ]
            assert [(a.status_code, a.json()["error"]["code"]) for a in answers] == [(404, "session_not_found")] * 3
        gone = await client.delete("/v1/sessions/a/b", headers=mine)
        assert gone.json() == {"id": "a/b", "object": "session.deleted", "deleted": True}
        assert (await client.get("/v1/sessions/a/b", headers=mine)).status_code == 404


class User:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.username = name


def test_owners_are_told_apart_and_keep_no_secret() -> None:
    def owner(**scope: Any) -> str:
        return owner_of({"headers": [], **scope})

    key = [(b"authorization", b"Bearer secret")]
    assert owner() == ANONYMOUS
    assert owner(headers=key) == owner(headers=[(b"authorization", b"bearer  secret")])
    assert "secret" not in owner(headers=key)
    assert owner(headers=key, user=User("ann")) == owner(user=User("ann")) != owner(user=User("bob"))
    known = {ANONYMOUS, owner(headers=key), owner(user=User("anonymous")), owner(user=User(owner(headers=key)))}
    assert len(known) == 4


async def test_health_is_of_the_process_and_readiness_of_the_engine(direct: Any) -> None:
    engine = FakeEngine()
    async with direct(engine) as client:
        assert [(await client.get(p)).status_code for p in ("/healthz", "/readyz")] == [200, 200]
        await engine.close()
        assert [(await client.get(p)).status_code for p in ("/healthz", "/readyz")] == [200, 503]
        answer = await client.post(CHAT, json=TURN | {"model": "fake"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_process_is_unhealthy_only_when_no_other_thing_helps_than_a_new_one(direct: Any) -> None:
    engine = FakeEngine()
    async with direct(engine) as client:
        engine.ready, engine.broken = False, "ValueError: where it was"
        alive, ready = [await client.get(path) for path in ("/healthz", "/readyz")]
        assert (alive.status_code, ready.status_code) == (503, 503)
        assert alive.json() == {"status": "broken", "model": "fake"}, "strangers are not told why"


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("POST", "/v1/responses", 404, "use /v1/chat/completions"),
        ("POST", "/chat/completions", 404, "lacks /v1"),
        ("POST", "/v1/chat/completions/", 404, "paths end without a slash"),
        ("GET", "/v1/models/", 404, "paths end without a slash"),
        ("GET", "/v1/nothing", 404, "openapi.json lists"),
        ("GET", "/", 404, "does not exist"),
        ("GET", CHAT, 405, "does not take GET"),
        ("PUT", "/v1/sessions/s", 405, "does not take PUT"),
        ("GET", "/%ff%00", 404, "does not exist"),
    ],
)
async def test_what_does_not_exist_says_so_in_the_apis_shape(
    direct: Any, method: str, path: str, status: int, word: str
) -> None:
    async with direct(FakeEngine()) as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert word in error["message"]
    assert ("allow" in answer.headers) is (status == 405)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/v1/models", 200, None),
        ("HEAD", "/healthz", 200, None),
        ("HEAD", CHAT, 405, "POST"),
        ("OPTIONS", CHAT, 405, "POST"),
        ("TRACE", "/v1/models", 405, "GET, HEAD"),
    ],
)
async def test_other_methods_are_answered_as_http_has_it(
    direct: Any, method: str, path: str, status: int, allow: str | None
) -> None:
    async with direct(FakeEngine()) as client:
        answer = await client.request(method, path)
    allowed = answer.headers.get("allow")
    assert answer.status_code == status
    assert (None if allowed is None else ", ".join(sorted(allowed.split(", ")))) == allow


async def test_a_models_name_may_be_percent_encoded_and_no_redirect_is_made_of_a_host_header(direct: Any) -> None:
    async with direct(FakeEngine(name="org/fake v1")) as client:
        one = await client.get("/v1/models/org%2Ffake%20v1")
        assert (one.status_code, one.json()["id"]) == (200, "org/fake v1")
        slash = await client.post(f"{CHAT}/", headers={"host": "evil.example"})
    assert slash.status_code == 404
    assert "location" not in slash.headers


async def test_every_answer_has_a_request_id_which_is_the_traces(direct: Any) -> None:
    with capture() as seen:
        async with direct(FakeEngine(fail=RuntimeError("secret"))) as client:
            answers = [
                await client.get("/v1/models", headers={"x-request-id": "chosen by the client"}),
                await client.get("/v1/nothing"),
                await client.post(CHAT, json=TURN | {"model": "fake"}),
                await client.get("/healthz"),
            ]
        ids = [answer.headers["x-request-id"] for answer in answers]
        assert [answer.status_code for answer in answers] == [200, 404, 500, 200]
        assert len(set(ids)) == 4
        assert all(len(found) == 32 for found in ids)
        assert seen.span("GET /v1/models").trace_id == ids[0]
        assert ids[3] not in {span.trace_id for span in seen.spans}  # health is not traced
