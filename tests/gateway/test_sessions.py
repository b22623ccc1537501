"""Session ids at the edge: minted here, bound to their owner, and good for nothing else."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.gateway.options import Options
from otelctx.gateway.sessions import Sessions
from otelctx.policy.slots import slot_of
from otelctx.policy.trust import Keyring
from otelctx.semconv import GATEWAY_SESSION_HEADER as SESSION
from otelctx.settings import Settings

OLD, NEW = (f"{n}:" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
OWNERS = st.text(max_size=20)


def sessions_of(keys: str) -> Sessions:
    keyring = Keyring.parse(keys)
    return Sessions(lambda: keyring)


@given(OWNERS, OWNERS)
def test_an_id_is_its_owners_alone(owner: str, other: str) -> None:
    sessions = sessions_of(OLD)
    minted = sessions.mint(owner)
    assert sessions.owned(minted, owner)
    assert sessions.owned(minted, other) is (
        owner.encode("utf-8", "surrogatepass") == other.encode("utf-8", "surrogatepass")
    )
    assert len(minted) == 44


@given(st.integers(0, 43), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/= é"))
def test_no_changed_character_is_overlooked(at: int, character: str) -> None:
    sessions = sessions_of(OLD)
    minted = sessions.mint("o")
    changed = minted[:at] + character + minted[at + 1 :]
    assert sessions.owned(changed, "o") is (changed == minted)


@given(st.text(max_size=60) | st.binary(max_size=33).map(lambda b: base64.urlsafe_b64encode(b).decode()))
def test_what_was_not_minted_is_nobodys(text: str) -> None:
    assert not sessions_of(OLD).owned(text, "anonymous")


def test_every_process_with_the_key_knows_an_id_and_after_a_rotation_too() -> None:
    minted = sessions_of(OLD).mint("o")
    assert sessions_of(f"{NEW},{OLD}").owned(minted, "o")
    assert not sessions_of(NEW).owned(minted, "o")
    assert sessions_of(f"{OLD},{NEW}").owned(sessions_of(NEW).mint("o"), "o")


def test_without_keys_ids_are_good_in_this_process_only() -> None:
    one, other = sessions_of(""), sessions_of("")
    minted = one.mint("o")
    assert (one.lasting, one.owned(minted, "o"), other.owned(minted, "o")) == (False, True, False)


def test_an_id_that_fits_is_looked_for_and_not_for_ever() -> None:
    sessions = sessions_of(OLD)
    assert slot_of(sessions.mint("o", lambda s: slot_of(s) % 4 == 1)) % 4 == 1
    assert sessions.owned(sessions.mint("o", lambda s: False), "o")


def test_a_seal_for_one_purpose_is_none_for_another() -> None:
    keyring = Keyring.parse(OLD)
    seal = keyring.seal(b"session", b"x")
    assert keyring.sealed(b"session", b"x", seal)
    assert not keyring.sealed(b"other", b"x", seal)
    assert not keyring.sealed(b"session", b"x", seal[:-1])


# through a real gateway

ALICE, BOB = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))


@pytest.fixture
def running(edge: Any, workers: Any) -> Any:
    return edge([w.url for w in workers], options=Options(health_path=""))


@pytest.mark.parametrize("stated", ["chat-1", "A" * 44, "", "x" * 5000, "é"])
def test_an_id_that_the_client_made_up_is_not_created(client: Any, running: Any, workers: Any, stated: str) -> None:
    answer = client.post(running.url, headers={SESSION: stated.encode("latin-1")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert SESSION not in answer.headers
    assert [w.seen for w in workers] == [[], []]


def test_somebody_elses_session_is_not_found(client: Any, running: Any, workers: Any) -> None:
    mine = client.post(running.url, headers=ALICE).headers[SESSION]
    assert client.post(running.url, headers={**ALICE, SESSION: mine}).status_code == 200
    for other in (BOB, {}):
        answer = client.post(running.url, headers={**other, SESSION: mine})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
        assert client.get(f"{running.url}/v1/sessions/{mine}", headers=other).status_code == 404
    assert client.get(f"{running.url}/v1/sessions/{mine}", headers=ALICE).status_code == 200


def test_two_session_headers_are_refused(client: Any, running: Any) -> None:
    mine = client.post(running.url).headers[SESSION]
    answer = client.post(running.url, headers=[(SESSION, mine), (SESSION, mine)])
    assert answer.status_code == 400


def test_a_session_survives_the_gateway_and_is_known_by_its_replica(client: Any, edge: Any, workers: Any) -> None:
    urls = [w.url for w in workers]
    one = edge(urls, options=Options(health_path=""))
    other = edge(urls[::-1], options=Options(health_path=""))
    for _ in range(8):
        mine = client.post(one.url).headers[SESSION]
        before = [len(w.seen) for w in workers]
        assert client.post(one.url, headers={SESSION: mine}).status_code == 200
        assert client.post(other.url, headers={SESSION: mine}).status_code == 200
        grown = [len(w.seen) - n for w, n in zip(workers, before, strict=True)]
        assert sorted(grown) == [0, 2], "both send it to the same worker"


def test_the_first_request_goes_where_the_session_will_stay(client: Any, running: Any, workers: Any) -> None:
    for _ in range(10):
        for worker in workers:
            worker.seen.clear()
        mine = client.post(running.url).headers[SESSION]
        for _ in range(3):
            client.post(running.url, headers={SESSION: mine})
        assert sorted(len(w.seen) for w in workers) == [0, 4]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_no_session_rides_on_what_a_cache_may_keep(client: Any, running: Any, method: str) -> None:
    assert SESSION not in client.request(method, running.url).headers


def test_a_worker_can_not_name_a_session_to_the_client(client: Any, running: Any, workers: Any) -> None:
    async def name(request: Any) -> None:
        await request.answer(headers=[(SESSION.encode(), b"mine")])

    for worker in workers:
        worker.handler = name
    assert SESSION not in client.get(running.url).headers
    assert client.post(running.url).headers.get_list(SESSION) != ["mine"]


def test_without_keys_there_is_a_warning(edge: Any, workers: Any, caplog: Any) -> None:
    edge([workers[0].url], settings=Settings())
    assert "OTELCTX_KEYS is not set" in caplog.text


def test_a_gateway_that_runs_mints_with_the_keys_as_they_are_now(edge: Any, workers: Any, client: Any) -> None:
    """Ids of the old key are good as long as it is listed."""
    running = edge([workers[0].url], options=Options(health_path=""), settings=Settings(keys=OLD))
    node = running.gateway.node
    first = client.post(running.url).headers[SESSION]
    node.reload(Settings(keys=f"{NEW},{OLD}"))
    second = client.post(running.url).headers[SESSION]
    assert [base64.urlsafe_b64decode(session)[16] for session in (first, second)] == [1, 2]
    assert client.post(running.url, headers={SESSION: first}).status_code == 200
    node.reload(Settings(keys=NEW))
    assert client.post(running.url, headers={SESSION: first}).status_code == 404
    assert client.post(running.url, headers={SESSION: second}).status_code == 200
