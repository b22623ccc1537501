"""A shared cache in the way: an ack is of one exchange, and never believed by another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
CACHE = "add_header x-cache $upstream_cache_status always; proxy_cache shared; proxy_cache_key $request_method$uri;"
# As some set it up: everything is kept, whatever the response says.
GREEDY = "proxy_cache_methods GET HEAD POST; proxy_cache_valid any 10m; proxy_ignore_headers Cache-Control Vary;"


@pytest.fixture
def cached(nginx: Any, worker: Any, tmp_path: Any) -> Callable[[str], tuple[Any, Any]]:
    def start(rules: str) -> tuple[Any, Any]:
        origin = worker()
        proxy = nginx(
            f"location / {{ proxy_pass {origin.url}; {CACHE} {rules} }} location /fresh {{ proxy_pass {origin.url}; }}",
            f"proxy_cache_path {tmp_path / 'cache'} keys_zone=shared:1m;",
        )
        return proxy, origin

    return start


def hit(answer: Any) -> str:
    return str(answer.response.headers["x-cache"])


def test_a_cached_ack_of_another_session_is_not_believed(cached: Any, party: Callable[..., Any]) -> None:
    proxy, origin = cached(GREEDY)
    caller = party()
    first = caller.ask(f"{proxy.url}/a", chat="chat-1")
    assert (hit(first), first.spent) == ("MISS", 3)
    for chat in ("chat-2", "chat-3", "chat-2"):  # the body is another session's, by the cache's doing and not by ours
        stale = caller.ask(f"{proxy.url}/a", chat=chat, judge=False)
        assert (hit(stale), stale.spent) == ("HIT", 0)
        assert "otelctx-ack" in stale.response.headers
    assert (caller.kinds(), caller.lost, origin.served) == (["full"] * 4, 0, 1), "no ack counts that is another's"
    fresh = [caller.ask(f"{proxy.url}/fresh", chat="chat-2") for _ in range(4)]
    assert caller.kinds() == ["full", "full", "full", "ref"]
    assert {(a.source, a.spent) for a in fresh} == {("frame", 3)}


def test_a_cached_ack_of_the_same_session_adds_nothing(cached: Any, party: Callable[..., Any]) -> None:
    """It names a state that its sender does hold, so as to bases it is true; but what was spent is counted once."""
    proxy, origin = cached(GREEDY)
    caller = party()
    answers = [caller.ask(f"{proxy.url}/a") for _ in range(5)]
    assert [(hit(a), a.spent) for a in answers] == [("MISS", 3)] + [("HIT", 0)] * 4
    assert origin.served == 1
    origin.restart()  # the cache's word is good no longer: the next that gets through is refused, and repeated in full
    caller.kinds()
    assert caller.ask(f"{proxy.url}/fresh").source == "frame"
    assert (caller.kinds(), caller.lost) == (["ref", "full"], 0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_a_shared_cache_may_keep_has_no_ack(cached: Any, party: Callable[..., Any], method: str) -> None:
    proxy, origin = cached("proxy_cache_valid 200 10m;")
    caller = party()
    seen = [
        hit(a) for a in (caller.ask(f"{proxy.url}/a", chat=f"chat-{n}", method=method, judge=False) for n in range(3))
    ]
    assert seen == ["MISS", "HIT", "HIT"]
    origin.headers = [(b"cache-control", b"max-age=60, public")]
    kept = [caller.ask(f"{proxy.url}/b", chat=f"chat-{n}", method=method, judge=False) for n in range(2)]
    assert [hit(a) for a in kept] == ["MISS", "HIT"]
    assert all("otelctx-ack" not in a.response.headers and a.spent == 0 for a in kept)
    assert (set(caller.kinds()), caller.lost) == ({"full"}, 0)


@pytest.mark.parametrize("rule", [b"no-store", b"private, max-age=60"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_no_shared_cache_keeps_has_one(cached: Any, party: Callable[..., Any], rule: bytes, method: str) -> None:
    proxy, origin = cached("proxy_cache_valid 200 10m;")
    origin.headers = [(b"cache-control", rule)]
    caller = party()
    answers = [caller.ask(f"{proxy.url}/a", method=method) for _ in range(4)]
    assert [(hit(a), a.spent) for a in answers] == [("MISS", 3)] * 4
    assert caller.kinds() == ["full", "full", "full", "ref"]


def test_a_cache_that_varies_by_session_is_left_as_it_is(cached: Any, party: Callable[..., Any]) -> None:
    """We add no ``Vary``: our header is hop by hop, and who depends on context says ``private``."""
    proxy, origin = cached("proxy_cache_valid 200 10m;")
    origin.headers = [(b"vary", b"Accept-Language")]
    caller = party()
    answers = [
        caller.ask(f"{proxy.url}/a", method="GET", headers={"Accept-Language": lang}) for lang in ("de", "en", "de")
    ]
    assert [hit(a) for a in answers] == ["MISS", "MISS", "HIT"]
    assert {a.response.headers["vary"] for a in answers} == {"Accept-Language"}
