"""A proxy that takes our header out of requests, or our ack out of responses: from the start, or from one day on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
CLIENT = "10.9.8.7"  # by the proxy's word, so that baggage is believed
FAULTS = {"request": 'proxy_set_header otelctx "";', "response": "proxy_hide_header otelctx-ack;"}


@pytest.fixture(params=list(FAULTS))
def stripping(request: pytest.FixtureRequest, nginx: Any, worker: Any, tmp_path: Path) -> tuple[Any, Any, Path, str]:
    """nginx in front of a worker; while the file is there, it strips."""
    flag = tmp_path / "fault"
    origin = worker(trusted_proxies=("127.0.0.1",), trusted_clients=(CLIENT,))
    forward = f"proxy_pass {origin.url}; proxy_set_header X-Forwarded-For {CLIENT};"
    proxy = nginx(
        f"error_page 418 = @faulty; location / {{ if (-f {flag}) {{ return 418; }} {forward} }}"
        f"location @faulty {{ {forward} {FAULTS[request.param]} }}"
    )
    return proxy, origin, flag, request.param


def test_from_the_start(stripping: Any, party: Callable[..., Any]) -> None:
    """Nobody acks, so each request carries a whole frame and the baggage; when acks come, the link is as any other."""
    proxy, _, flag, which = stripping
    flag.touch()
    caller = party()
    answers = [caller.ask(proxy.url) for _ in range(5)]
    assert (caller.kinds(), caller.lost) == (["full"] * 5, 0)
    assert {a.source for a in answers} == {"baggage" if which == "request" else "frame"}
    assert {a.seen["state"]["network.tier"] for a in answers} == {"gold"}
    assert {a.spent for a in answers} == {0}
    caller.mixed(proxy.url)
    assert (set(caller.kinds()), caller.lost) == ({"full"}, 0)
    flag.unlink()
    answers = [caller.ask(proxy.url) for _ in range(5)]
    assert (caller.kinds(), caller.lost) == (["full", "full", "full", "ref", "ref"], 0)
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}


def test_from_one_day_on(stripping: Any, party: Callable[..., Any], clock: Any) -> None:
    """One request may be sent in vain, which is said; after that whole frames go there, until acks come again."""
    proxy, _, flag, which = stripping
    caller = party()
    for _ in range(4):
        caller.ask(proxy.url)
    assert caller.kinds() == ["full", "full", "full", "ref"]
    flag.touch()
    first, *rest = [caller.ask(proxy.url) for _ in range(4)]
    assert (caller.kinds(), caller.lost) == (["ref", "full", "full", "full"], 1)
    assert first.source == ("none" if which == "request" else "frame")
    assert {a.source for a in rest} == {"baggage" if which == "request" else "frame"}
    caller.mixed(proxy.url)
    assert (set(caller.kinds()), caller.lost) == ({"full"}, 0)
    flag.unlink()
    answers = [caller.ask(proxy.url) for _ in range(4)]
    assert (caller.kinds(), caller.lost) == (["full", "full", "full", "ref"], 0)
    assert {(a.source, a.spent) for a in answers} == {("frame", 3)}
    clock.forward(601)
    assert [caller.ask(proxy.url).source for _ in range(3)] == ["frame"] * 3
    assert caller.kinds() == ["full", "ref", "ref"], "the incident is forgotten; bases expire after a minute"


@pytest.mark.parametrize("stripping", ["response"], indirect=True)
def test_a_restart_behind_a_proxy_that_strips_acks(stripping: Any, party: Callable[..., Any]) -> None:
    """The refusal comes without its NACK. It is repeated where that is safe; what can't be told from the
    application's own 412 is the application's to answer for."""
    proxy, origin, flag, _ = stripping
    caller = party()
    for _ in range(4):
        caller.ask(proxy.url)
    caller.kinds()
    flag.touch()
    origin.restart()
    served = origin.served
    assert caller.ask(proxy.url, headers={"Idempotency-Key": "k1"}).source == "frame"
    assert (caller.kinds(), origin.served - served) == (["ref", "full"], 1)
    assert caller.ask(proxy.url).source == "frame"
    assert caller.kinds() == ["full"]
