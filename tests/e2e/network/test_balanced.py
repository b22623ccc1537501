"""Several workers behind one address: whatever the balancer does, no request runs without its context unknowingly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otelctx.exchange.shared import SharedTier

pytestmark = pytest.mark.e2e


class Store:
    """What workers share, as Redis would be: see ``BaseStore``."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def load(self, key: str) -> bytes | None:
        return self.kept.get(key)

    async def store(self, key: str, value: bytes, ttl: float) -> None:
        self.kept[key] = value


def balanced(servers: list[str], rules: str = "") -> tuple[str, str]:
    lines = " ".join(f"server {server};" for server in servers)
    return f"location / {{ proxy_pass http://workers; {rules} }}", f"upstream workers {{ {lines} }}"


def test_round_robin_over_two_workers(
    nginx: Any, worker: Any, party: Callable[..., Any], clock: Any, tmp_path: Path
) -> None:
    """The third ack is of the first worker again: a balancer, so what one worker alone holds is not built on."""
    one, two, alone = worker(), worker(), tmp_path / "alone"
    rules = f"error_page 418 = @two; if (-f {alone}) {{ return 418; }}"
    forward, around = balanced([f"127.0.0.1:{w.port}" for w in (one, two)], rules)
    proxy = nginx(f"{forward} location @two {{ proxy_pass {two.url}; }}", around)
    caller = party()
    answers = [caller.ask(proxy.url) for _ in range(10)]
    assert (caller.kinds(), caller.lost) == (["full"] * 10, 0)
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
    assert (one.served, two.served) == (5, 5)
    caller.mixed(proxy.url)
    assert (set(caller.kinds()), caller.lost) == ({"full"}, 0)
    alone.touch()
    clock.forward(601)
    answers = [caller.ask(proxy.url) for _ in range(3)]
    assert (caller.kinds(), {a.source for a in answers}) == (["full", "ref", "ref"], {"frame"})


def test_round_robin_over_workers_that_share_their_bases(nginx: Any, worker: Any, party: Callable[..., Any]) -> None:
    store = Store()
    workers = [worker(shared=SharedTier(store)) for _ in range(2)]
    proxy = nginx(*balanced([f"127.0.0.1:{w.port}" for w in workers]))
    caller = party()
    for _ in range(8):
        caller.ask(proxy.url)
    caller.kinds()
    answers = [caller.ask(proxy.url) for _ in range(6)] + [caller.ask(proxy.url, tier="silver")]
    assert (caller.kinds(), caller.lost) == (["ref"] * 6 + ["delta"], 0)
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
    assert len({w.node.boot_id for w in workers}) == 2


def test_a_worker_that_gets_a_request_now_and_then(nginx: Any, worker: Any, party: Callable[..., Any]) -> None:
    """The link is aware before it meets the second worker, which refuses the REF unread and gets it in full."""
    one, two = worker(), worker()
    proxy = nginx(*balanced([f"127.0.0.1:{one.port} weight=7", f"127.0.0.1:{two.port}"]))
    caller = party()
    answers = [caller.ask(proxy.url) for _ in range(24)]
    kinds = caller.kinds()
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
    assert caller.lost == 0
    assert one.served + two.served == 24
    assert two.served >= 1
    assert len(kinds) - 24 <= 2, "refused at most twice, before the balancer is known for one"
    assert set(kinds[-4:]) == {"full"}


def test_a_worker_dies_with_the_request_in_its_hands(
    nginx: Any, worker: Any, relay: Any, party: Callable[..., Any]
) -> None:
    """nginx hands the very same bytes to the next worker, which has no base for them."""
    one, two = worker(), worker()
    first = relay(one.port)
    rules = "proxy_next_upstream error timeout non_idempotent;"
    proxy = nginx(*balanced([f"127.0.0.1:{first.port}", f"127.0.0.1:{two.port} backup"], rules))
    caller = party()
    for _ in range(5):
        caller.ask(proxy.url)
    assert caller.kinds()[-1] == "ref"
    first.crash = 1000
    answers = [caller.ask(proxy.url) for _ in range(3)]
    kinds = caller.kinds()
    assert kinds == ["ref", "full", "ref", "ref"]
    assert (caller.lost, one.served, two.served) == (0, 5, 3)
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}


def test_a_worker_that_is_gone(nginx: Any, worker: Any, serve: Any, party: Callable[..., Any]) -> None:
    """Its connections are refused: nginx asks the next one, whatever the method."""
    one, two = worker(), worker()
    caller = party()
    with serve(one) as port:
        proxy = nginx(*balanced([f"127.0.0.1:{port}", f"127.0.0.1:{two.port} backup"]))
        for _ in range(4):
            caller.ask(proxy.url)
        assert caller.kinds()[-1] == "ref"
    answers = [caller.ask(proxy.url) for _ in range(3)]
    assert caller.kinds() == ["ref", "full", "ref", "ref"]
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
    assert (caller.lost, two.served) == (0, 3)


def test_an_ingress_with_one_backend_that_knows_nothing(
    nginx: Any, worker: Any, party: Callable[..., Any], clock: Any, tmp_path: Path
) -> None:
    """One origin, two services: the unaware one costs its own path whole frames, and the other nothing."""
    ours, theirs = worker(), worker(aware=False)
    proxy = nginx(f"location /a {{ proxy_pass {ours.url}; }} location /b {{ proxy_pass {theirs.url}; }}")
    caller = party()
    for _ in range(4):
        caller.ask(f"{proxy.url}/a")
    assert caller.kinds() == ["full", "full", "full", "ref"]
    assert [caller.ask(f"{proxy.url}/b").source for _ in range(3)] == ["none"] * 3
    assert (caller.kinds(), caller.lost) == (["ref", "full", "full"], 1)
    assert [("baggage" in lines) for lines in theirs.arrived] == [False, True, True]
    assert [caller.ask(f"{proxy.url}/a").source for _ in range(3)] == ["frame"] * 3
    assert (caller.kinds(), caller.lost) == (["ref"] * 3, 0)
    assert [caller.ask(f"{proxy.url}/a/new").source for _ in range(4)] == ["frame"] * 4
    assert caller.kinds() == ["full", "full", "full", "ref"], "each path by itself"
    for path in ("/a", "/b", "/a/new"):
        caller.mixed(proxy.url + path)
    assert (caller.kinds()[8:16], caller.lost) == (["full"] * 8, 0)
    theirs.aware = True
    theirs.restart()
    assert [caller.ask(f"{proxy.url}/b").source for _ in range(4)] == ["frame"] * 4
    assert caller.kinds()[:3] == ["full"] * 3
    clock.forward(601)
    assert [caller.ask(f"{proxy.url}/{p}").source for p in "abab"] == ["frame"] * 4
    # Two processes that take turns at one address: which paths are whose, the sender does not know.
    assert (caller.kinds(), caller.lost) == (["full"] * 4, 0)


def test_a_server_that_knows_nothing(worker: Any, party: Callable[..., Any]) -> None:
    plain = worker(aware=False)
    caller = party()
    answers = [caller.ask(plain.url) for _ in range(5)] + caller.mixed(plain.url)
    assert (set(caller.kinds()), caller.lost, plain.served) == ({"full"}, 0, len(answers))
    assert all(len(lines["otelctx"]) == len(lines["baggage"]) == 1 for lines in plain.arrived)
