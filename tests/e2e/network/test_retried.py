"""Libraries that repeat requests by themselves: a repetition may reach anybody, so it carries the whole state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from otelctx.delta.codec import decode_frame, from_header, split_mac

pytestmark = pytest.mark.e2e


def kinds(origin: Any) -> list[str]:
    """Of the frames that have reached the worker."""
    return [decode_frame(split_mac(from_header(lines["otelctx"][0]))[0]).kind.name for lines in origin.arrived]


@pytest.mark.parametrize("client", ["requests"], indirect=True)
def test_urllib3_repeats_the_same_bytes_so_they_are_always_whole(
    nginx: Any, worker: Any, party: Callable[..., Any]
) -> None:
    origin = worker()
    proxy = nginx(f"location / {{ proxy_pass {origin.url}; }}")
    caller = party()
    retry = Retry(total=3, status_forcelist=[503], allowed_methods=None, backoff_factor=0)
    caller.client.session.mount("http://", HTTPAdapter(max_retries=retry))
    for _ in range(4):
        caller.ask(proxy.url)
    origin.statuses = [503, 503]
    answer = caller.ask(proxy.url)
    assert (answer.source, origin.served) == ("frame", 7)
    assert (caller.kinds(), caller.lost) == (["full"] * 5, 0)
    assert kinds(origin) == ["FULL"] * 7


@pytest.mark.parametrize("client", ["aiohttp"], indirect=True)
def test_aiohttp_repeats_a_get_whose_connection_has_been_cut(
    nginx: Any, worker: Any, relay: Any, party: Callable[..., Any]
) -> None:
    origin = worker()
    origin.headers = [(b"cache-control", b"no-store")]
    way = relay(origin.port)
    caller = party()
    url = f"http://127.0.0.1:{way.port}/"
    for _ in range(4):
        caller.ask(url, method="GET")
    assert caller.kinds() == ["full", "full", "full", "ref"]
    way.crash = 1
    assert caller.ask(url, method="GET").source == "frame"
    assert (caller.kinds(), kinds(origin)[-1], caller.lost) == (["ref", "full"], "FULL", 0)
    assert caller.ask(url, method="GET").source == "frame"
    assert caller.kinds() == ["ref"]


def test_a_repetition_by_the_application_is_a_request_of_its_own(
    nginx: Any, worker: Any, party: Callable[..., Any]
) -> None:
    """Errors on the way are no evidence of anything: neither 502 nor 503 without an ack changes what is sent."""
    origin = worker()
    broken = "error_page 418 = @broken; location @broken { return 502; }"
    proxy = nginx(f"{broken} location / {{ if ($http_x_break) {{ return 418; }} proxy_pass {origin.url}; }}")
    caller = party()
    for _ in range(4):
        caller.ask(proxy.url)
    caller.kinds()
    for _ in range(3):
        caller.ask(proxy.url, headers={"X-Break": "1"}, status=502)
    assert caller.ask(proxy.url).source == "frame"
    assert (caller.kinds(), caller.lost, origin.served) == (["ref"] * 4, 0, 5)
