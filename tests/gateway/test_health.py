"""When an upstream gets requests, as a table, and then with real ones that fail, recover, drain, leave and come."""

from __future__ import annotations

import asyncio
import socket
import threading
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.errors import ConfigError
from otelctx.gateway import probe
from otelctx.gateway.health import Health, Phase, Rules, Signal
from otelctx.gateway.options import Options
from otelctx.gateway.upstreams import Upstream, Upstreams
from otelctx.semconv import GATEWAY_SESSION_HEADER as SESSION

OK, FAILED, GONE = Signal.OK, Signal.FAILED, Signal.GONE
UNCHECKED = Options(health_path="")


@pytest.mark.parametrize(
    ("signals", "phase"),
    [
        ([], Phase.UP),
        ([FAILED, FAILED], Phase.UP),
        ([FAILED, FAILED, OK, FAILED, FAILED], Phase.UP),
        ([FAILED] * 3, Phase.EJECTED),
        ([GONE], Phase.EJECTED),
        ([GONE, OK], Phase.EJECTED),
    ],
)
def test_what_ejects(signals: list[Signal], phase: Phase) -> None:
    health = Health()
    for signal in signals:
        health.see(signal, 0.0)
    assert (health.phase, health.admits(0.5)) == (phase, phase is Phase.UP)


def test_an_ejected_one_gets_one_request_as_a_trial_and_is_up_if_that_goes_well() -> None:
    health = Health()
    assert health.see(GONE, 0.0)
    assert not health.admits(0.9)
    assert health.admits(1.0)
    health.chosen(1.0)
    assert (health.phase, health.admits(1.1)) == (Phase.TRIAL, False)
    health.see(OK, 1.2)
    assert (health.phase, health.admits(1.2)) == (Phase.UP, True)


def test_a_trial_of_which_nothing_is_heard_gives_way_to_another() -> None:
    health = Health(Rules(trial=10))
    health.see(GONE, 0.0)
    health.chosen(1.0)
    assert [health.admits(t) for t in (10.9, 11.0)] == [False, True]


def test_each_ejection_is_twice_as_long_up_to_a_bound_and_the_count_is_forgotten_when_all_is_well() -> None:
    health, now, lengths = Health(), 0.0, []
    for _ in range(8):
        health.see(GONE, now)
        lengths.append(next(n for n in range(100) if health.admits(now + n)))
        now += lengths[-1]
        health.chosen(now)
    assert lengths == [1, 2, 4, 8, 16, 30, 30, 30]
    health.see(OK, now)
    health.see(OK, now)
    health.see(GONE, now)
    assert health.admits(now + 1)


def test_ejections_are_spread() -> None:
    one, other = Health(), Health()
    one.see(GONE, 0.0, 0.0)
    other.see(GONE, 0.0, 0.9)
    assert (one.admits(1.1), other.admits(1.1), other.admits(1.25)) == (True, False, True)


def test_a_check_that_goes_well_ends_an_ejection_once_its_time_is_over() -> None:
    health = Health()
    health.see(GONE, 0.0)
    health.see(OK, 0.5)
    assert health.phase is Phase.EJECTED
    health.see(OK, 1.0)
    assert health.phase is Phase.UP


@given(st.lists(st.tuples(st.sampled_from(Signal), st.floats(0, 5), st.booleans()), max_size=60))
def test_whatever_happens_it_is_never_out_for_longer_than_the_bound(steps: list[tuple[Signal, float, bool]]) -> None:
    health, now = Health(), 0.0
    for signal, later, chosen in steps:
        now += later
        if chosen and health.admits(now):
            health.chosen(now)
        health.see(signal, now, 0.5)
        assert health.admits(now + 30 * 1.25)


# upstreams


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://a", "http://", "http://a?b", "http://a#b", "http://u:p@a", "http://a:99999", "http://é", "/a"],
)
def test_what_is_no_upstream_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match="--upstream"):
        Upstream(url)


def test_an_upstream_has_one_name_however_it_is_written() -> None:
    assert Upstream("http://A:80/").name == Upstream("http://a").name == "http://a"
    assert Upstream("https://[::1]:8443/x/").name == "https://[::1]:8443/x"
    assert Upstream("https://a").tls is not None


@pytest.mark.parametrize(("urls", "bound"), [([], 1.25), (["http://a"], 0.5)])
def test_a_gateway_needs_an_upstream_and_a_bound_of_one_or_more(urls: list[str], bound: float) -> None:
    with pytest.raises(ConfigError):
        Upstreams(urls, bound=bound)


def test_those_that_stay_keep_what_is_known_of_them() -> None:
    upstreams = Upstreams(["http://a", "http://b"])
    a = next(u for u in upstreams if u.host == "a")
    upstreams.replace(["http://a", "http://c"])
    assert a in list(upstreams)
    assert sorted(u.host for u in upstreams) == ["a", "c"]


def test_a_loaded_owner_is_passed_over_and_strict_affinity_is_not() -> None:
    urls = ["http://a", "http://b"]
    for bound, moves in ((1.25, True), (float("inf"), False)):
        upstreams = Upstreams(urls, bound=bound)
        owner = upstreams.of_session("s")
        owner.active = 50
        assert (upstreams.of_session("s") is not owner) is moves
        owner.active = 7
        assert upstreams.of_session("s") is owner


def test_requests_without_a_session_are_spread_and_alone_they_stay() -> None:
    upstreams = Upstreams(["http://a", "http://b", "http://c"])
    first = upstreams.of_owner("key:1")
    assert all(upstreams.of_owner("key:1") is first for _ in range(5))
    chosen = []
    for _ in range(6):
        chosen.append(upstreams.of_owner("key:1"))
        chosen[-1].active += 1
    assert [chosen.count(u) for u in upstreams] == [2, 2, 2]


# checks, with real workers


def check(upstream: Upstream, **options: Any) -> None:
    async def run() -> None:
        await probe.check(upstream, Options(**options))

    asyncio.run(run())


def test_a_worker_that_says_it_is_not_ready_gets_nothing(workers: Any) -> None:
    upstream = Upstream(workers[0].url)
    check(upstream)
    assert upstream.health.phase is Phase.UP
    workers[0].ready = 404
    check(upstream)
    assert upstream.health.phase is Phase.UP, "who has no such path is there all the same"
    workers[0].ready = 503
    check(upstream)
    assert upstream.health.phase is Phase.EJECTED


def test_who_does_not_listen_is_out_at_once_and_who_does_not_answer_after_three_times(
    refused: str, scripted: Any
) -> None:
    gone = Upstream(refused)
    check(gone)
    assert gone.health.phase is Phase.EJECTED
    silent = Upstream(scripted(lambda connection: connection.recv(1) and connection.recv(1 << 20) and None).url)
    for phase in (Phase.UP, Phase.UP, Phase.EJECTED):
        check(silent, health_interval=0.05)
        assert silent.health.phase is phase


def test_a_gateway_checks_by_itself_those_that_come_later_too(edge: Any, workers: Any, eventually: Any) -> None:
    workers[0].ready = workers[1].ready = 503
    running = edge([workers[0].url], options=Options(health_interval=0.1))
    eventually(lambda: not running.gateway.upstreams.ready)
    workers[0].ready = 200
    eventually(lambda: running.gateway.upstreams.ready)
    running.gateway.upstreams.replace([workers[1].url])
    eventually(lambda: not running.gateway.upstreams.ready)


# requests


def test_a_worker_that_is_gone_costs_no_request(client: Any, edge: Any, workers: Any, refused: str, seen: Any) -> None:
    running = edge([workers[0].url, refused], options=UNCHECKED, **seen.options)
    answers = [client.post(running.url, content=b"x").status_code for _ in range(20)]
    assert answers == [200] * 20
    assert len(workers[0].seen) == 20


def test_a_session_of_a_worker_that_is_gone_goes_to_the_next_and_comes_back(
    client: Any, edge: Any, workers: Any
) -> None:
    running = edge([w.url for w in workers], options=UNCHECKED)
    mine = client.post(running.url).headers[SESSION]
    home = next(u for u in running.gateway.upstreams if u.name == running.gateway.upstreams.home(mine))
    home.health.see(GONE, monotonic())
    for worker in workers:
        worker.seen.clear()
    client.post(running.url, headers={SESSION: mine})
    (other,) = [w for w in workers if w.seen]
    assert other.url != home.name
    home.health._until = 0.0
    client.post(running.url, headers={SESSION: mine})
    client.post(running.url, headers={SESSION: mine})
    assert len(other.seen) == 1


def test_a_worker_that_is_added_takes_its_share_and_only_its_share(client: Any, edge: Any, workers: Any) -> None:
    running = edge([workers[0].url], options=UNCHECKED)
    sessions = [client.post(running.url).headers[SESSION] for _ in range(30)]
    running.gateway.upstreams.replace([w.url for w in workers])
    for worker in workers:
        worker.seen.clear()
    for mine in sessions:
        client.post(running.url, headers={SESSION: mine})
    moved = len(workers[1].seen)
    assert 3 < moved < 27
    assert len(workers[0].seen) == 30 - moved


def test_503_is_tried_elsewhere_if_the_body_can_be_sent_again(client: Any, edge: Any, workers: Any) -> None:
    async def busy(request: Any) -> None:
        await request.answer(b"busy", 503, [(b"retry-after", b"3")])

    workers[0].handler = busy
    running = edge([w.url for w in workers], options=UNCHECKED)
    for _ in range(6):
        workers[1].seen.clear()
        assert client.post(running.url, content=b"x").status_code == 200
        assert workers[1].seen[0].body == b"x"
    workers[1].handler = busy
    answer = client.post(running.url, content=b"x")
    assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (503, "busy", "3")


def test_a_busy_worker_that_says_when_to_come_again_is_not_ejected(client: Any, edge: Any, workers: Any) -> None:
    headers = [(b"retry-after", b"1")]

    async def busy(request: Any) -> None:
        await request.answer(b"busy", 503, headers)

    workers[0].handler = busy
    running = edge([workers[0].url], options=UNCHECKED)
    assert [client.get(running.url).text for _ in range(5)] == ["busy"] * 5
    headers.clear()
    assert [client.get(running.url).text == "busy" for _ in range(4)] == [True, True, True, False]


def test_under_strict_affinity_a_busy_worker_keeps_its_sessions(client: Any, edge: Any, workers: Any) -> None:
    running = edge([w.url for w in workers], options=Options(load_bound=float("inf"), health_path=""))
    mine = client.post(running.url).headers[SESSION]
    (home,) = [w for w in workers if w.seen]

    async def busy(request: Any) -> None:
        await request.answer(b"busy", 503, [(b"retry-after", b"1")])

    home.handler = busy
    assert client.post(running.url, headers={SESSION: mine}).status_code == 503
    assert client.post(running.url).status_code == 200, "a new one can go anywhere"


def test_503_after_a_body_that_went_by_is_handed_on(client: Any, edge: Any, workers: Any) -> None:
    async def busy(request: Any) -> None:
        await request.read()
        await request.answer(b"busy", 503)

    for worker in workers:
        worker.handler = busy
    running = edge([w.url for w in workers], options=UNCHECKED)
    assert client.post(running.url, content=iter([b"x"])).status_code == 503
    assert sum(len(w.seen) for w in workers) == 1


def _dies_at_once(connection: socket.socket) -> None:
    connection.recv(65536)


@pytest.mark.parametrize(
    ("method", "headers", "tries"),
    [("GET", {}, 2), ("PUT", {}, 2), ("POST", {}, 1), ("PATCH", {}, 1), ("POST", {"idempotency-key": "1"}, 2)],
)
def test_what_may_have_been_done_is_not_done_twice(
    client: Any, edge: Any, scripted: Any, method: str, headers: dict[str, str], tries: int
) -> None:
    dying = [scripted(_dies_at_once), scripted(_dies_at_once)]
    answer = client.request(method, edge([d.url for d in dying], options=UNCHECKED).url, content=b"x", headers=headers)
    assert answer.status_code == 502
    assert sum(d.connections for d in dying) == tries


def test_retries_have_a_budget(client: Any, edge: Any, workers: Any, seen: Any) -> None:
    async def busy(request: Any) -> None:
        await request.answer(b"busy", 503)

    for worker in workers:
        worker.handler = busy
    running = edge([w.url for w in workers], options=UNCHECKED, **seen.options)
    for upstream in running.gateway.upstreams:
        upstream.health._rules = Rules(failures=10**6)
    for _ in range(40):
        client.get(running.url)
    tried = sum(len(w.seen) for w in workers)
    assert 40 + 10 <= tried <= 40 + 10 + 40 * 0.2 + 1


def test_the_metrics_tell_of_each_upstream(client: Any, edge: Any, workers: Any, refused: str, seen: Any) -> None:
    from otelctx import semconv

    go, begun = threading.Event(), threading.Event()

    async def slow(request: Any) -> None:
        begun.set()
        await asyncio.to_thread(go.wait, 60)
        await request.answer()

    workers[0].handler = slow
    running = edge([workers[0].url, refused], options=UNCHECKED, **seen.options)
    thread = threading.Thread(target=client.post, args=(running.url,))
    thread.start()
    assert begun.wait(60)
    observed = {a[semconv.SERVER_PORT]: (n, up) for a, n, up in running.gateway.upstreams.observed()}
    go.set()
    thread.join()
    assert observed[int(workers[0].url.rpartition(":")[2])] == (1, 1)
    assert [n for _, n, _ in running.gateway.upstreams.observed()] == [0, 0]
