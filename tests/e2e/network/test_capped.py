"""A proxy for which our header is too large. The request gets through without it, and the link is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otelctx.context.current import UpKey

pytestmark = pytest.mark.e2e
# A line of 512 characters at most. nginx answers 400, unless it is told to say what it means.
CAP = "client_header_buffer_size 512; large_client_header_buffers 4 512; keepalive_timeout 0;"
ANSWERS = {
    "400": "",
    "431": "error_page 494 =431 /too-large; location = /too-large { return 431; }",
}
NOTE = "n" * 600
REPORTS = [UpKey(f"network.report.{n}", str, rule="last") for n in range(12)]


@pytest.mark.parametrize("answer", list(ANSWERS))
def test_a_cap_on_header_lines(answer: str, nginx: Any, worker: Any, party: Callable[..., Any], clock: Any) -> None:
    origin = worker()
    forward = f"location / {{ proxy_pass {origin.url}; }}"
    proxy = nginx(f"{CAP} {ANSWERS[answer]} {forward}")
    caller = party()
    first, *rest = [caller.ask(proxy.url, note=NOTE) for _ in range(4)]
    assert caller.kinds() == ["full", None, None, None, None], "refused once, repeated without, left alone"
    assert (caller.lost, origin.served) == (0, 4)
    assert {a.source for a in (first, *rest)} == {"none"}
    clock.forward(601)
    caller.ask(proxy.url, note=NOTE)
    assert caller.kinds() == ["full", None], "tried again after ten minutes"
    proxy.reload(f"keepalive_timeout 0; {forward}")
    caller.ask(proxy.url, note=NOTE)
    assert caller.kinds() == [None]
    clock.forward(601)
    assert [caller.ask(proxy.url, note=NOTE).source for _ in range(4)] == ["frame"] * 4
    assert caller.kinds() == ["full", "full", "full", "ref"]


@pytest.mark.parametrize("answer", ["400", "431"])
def test_a_cap_that_our_baggage_exceeds_too(answer: str, nginx: Any, worker: Any, party: Callable[..., Any]) -> None:
    """What goes in place of frames must not be refused either: the request got through before we added to it."""
    origin = worker()
    proxy = nginx(f"{CAP} {ANSWERS[answer]} location / {{ proxy_pass {origin.url}; }}")
    caller = party()
    for _ in range(4):
        caller.ask(proxy.url, tier="t" * 600)
    assert origin.served == 4
    assert caller.kinds() == ["full", None, None, None, None, None], "the baggage alone is refused once, too"


def test_a_header_of_the_applications_own_that_is_too_large_is_its_own_matter(
    nginx: Any, worker: Any, party: Callable[..., Any]
) -> None:
    origin = worker()
    proxy = nginx(f"{CAP} location / {{ proxy_pass {origin.url}; }}")
    caller = party()
    for sent in (["full", None], [None, None], [None]):
        caller.ask(proxy.url, headers={"X-Large": "x" * 600}, status=400)
        assert caller.kinds() == sent
    assert origin.served == 0


def test_a_400_of_the_applications_own_behind_nginx_is_not_repeated(
    nginx: Any, worker: Any, party: Callable[..., Any]
) -> None:
    """Whatever it looks like: of what nginx itself refuses the application has seen nothing, of this it has."""
    origin = worker()
    proxy = nginx(f"location / {{ proxy_pass {origin.url}; }}")
    origin.status = 400
    origin.headers = [(b"content-type", b"text/html")]
    caller = party()
    for _ in range(3):
        caller.ask(proxy.url, status=400)
    assert (caller.kinds(), origin.served) == (["full"] * 3, 3)
    origin.aware = False
    origin.restart()
    for _ in range(3):
        caller.ask(proxy.url, status=400)
    assert origin.served == 6


def test_the_largest_ack_fits_into_the_smallest_buffer_for_response_heads(
    nginx: Any, worker: Any, party: Callable[..., Any]
) -> None:
    """nginx turns a head over ``proxy_buffer_size`` into a 502, after the application has run. What has no room in one
    ack comes with the next."""
    origin = worker()

    def work() -> None:
        for report in REPORTS:
            report.record("r" * 200)

    origin.work = work
    small = "proxy_buffer_size 1k; proxy_buffers 8 1k; proxy_busy_buffers_size 2k;"
    proxy = nginx(f"location / {{ proxy_pass {origin.url}; {small} }}")
    caller = party()
    answers = [caller.ask(proxy.url) for _ in range(5)]
    assert {a.source for a in answers} == {"frame"}
    assert {a.spent for a in answers} == {3}
    sizes = [len(a.response.headers["otelctx-ack"]) for a in answers]
    assert 256 < max(sizes) <= 512
