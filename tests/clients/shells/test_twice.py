"""What sends a request again or looks at it on its way, and what many threads do at once, with httpx and httpx2."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from otelctx.context.current import USAGE_OUTPUT, ContextKey, session
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node

TIER = ContextKey("clients.twice.tier", str)

both = pytest.mark.parametrize("driver", ["httpx", "httpx-async", "httpx2", "httpx2-async"], indirect=True)
blocking = pytest.mark.parametrize("driver", ["httpx", "httpx2"], indirect=True)


@both
def test_digest_authentication_takes_two_attempts(
    driver: Any, node: Callable[..., Node], worker: Any, chat: Scope, seen: Any
) -> None:
    client = driver.client(node())
    for _ in range(4):
        driver.post(client, worker.url)

    def handler(request: Any) -> None:
        if not request.values("authorization"):
            request.status = 401
            request.response_headers.append((b"www-authenticate", b'Digest realm="r", nonce="n", qop="auth"'))

    worker.handler = handler
    assert driver.post(client, worker.url, auth=driver.library.DigestAuth("user", "password")).status == 200
    assert worker.kinds()[4:] == ["ref", "full"]
    assert [len(request.values("otelctx")) for request in worker.seen] == [1] * 6
    assert all(len(request.values("traceparent")) == 1 for request in worker.seen)
    assert seen.spans()[-1].attributes["http.request.resend_count"] == 1


@both
def test_a_flow_of_authentication_that_makes_a_request_of_its_own_sends_each_once(
    driver: Any, node: Callable[..., Node], worker: Any, chat: Scope
) -> None:
    """As one that asks for a token first: neither of the two has been sent before."""
    library, url = driver.library, worker.url

    class Token(library.Auth):  # type: ignore[misc]
        requires_response_body = True

        def auth_flow(self, request: Any) -> Any:
            token = yield library.Request("POST", f"{url}/token", content=b"grant")
            request.headers["authorization"] = f"Bearer {token.text}"
            yield request

    client = driver.client(node())
    for _ in range(4):
        assert driver.post(client, f"{url}/ask", auth=Token()).status == 200
    assert [request.path for request in worker.seen] == ["/token", "/ask"] * 4
    assert worker.kinds() == ["full"] * 3 + ["ref"] * 5
    assert {request.exchange.outcome for request in worker.seen} == {"accepted"}


@both
def test_hooks_see_requests_and_responses_as_without_us(
    driver: Any, node: Callable[..., Node], worker: Any, chat: Scope, seen: Any
) -> None:
    looked: list[Any] = []

    def note(message: Any) -> None:
        looked.append([name for name in message.headers if name.startswith("otelctx")])
        if hasattr(message, "status_code"):
            looked.append(message.status_code)
        else:
            message.headers["Otelctx"] = "theirs"

    async def anote(message: Any) -> None:
        note(message)

    hook = anote if driver.asynchronous else note
    client = driver.client(node(), event_hooks={"request": [hook], "response": [hook]})
    assert driver.post(client, worker.url).status == 200
    assert looked == [[], ["otelctx-ack"], 200]
    (request,) = worker.seen
    assert (request.exchange.outcome, len(request.values("otelctx"))) == ("accepted", 1)
    assert len(seen.spans()) == 1


@both
def test_a_hook_that_raises_on_the_response_ends_the_request(
    driver: Any, node: Callable[..., Node], worker: Any, chat: Scope, seen: Any
) -> None:
    def refuse(response: Any) -> None:
        raise RuntimeError("the application does not like it")

    async def arefuse(response: Any) -> None:
        refuse(response)

    client = driver.client(node(), event_hooks={"response": [arefuse if driver.asynchronous else refuse]})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not like"):
            driver.post(client, worker.url)
    assert [span.status.status_code for span in seen.spans()] == [StatusCode.UNSET] * 2


@both
def test_a_transport_that_raises_is_an_error_of_its_request_and_of_no_other(
    driver: Any, node: Callable[..., Node], worker: Any, chat: Scope, seen: Any
) -> None:
    library, broken = driver.library, [False]
    name = "AsyncHTTPTransport" if driver.asynchronous else "HTTPTransport"
    inner: Any = getattr(library, name)

    class Breaking(inner):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            if broken[0]:
                raise library.ReadError("the line went dead", request=request)
            return super().handle_request(request)

        async def handle_async_request(self, request: Any) -> Any:
            if broken[0]:
                raise library.ReadError("the line went dead", request=request)
            return await super().handle_async_request(request)

    client = driver.client(node(), transport=Breaking())
    for _ in range(4):
        driver.post(client, worker.url)
    broken[0] = True
    with pytest.raises(library.ReadError):
        driver.post(client, worker.url)
    broken[0] = False
    driver.post(client, worker.url)
    assert worker.kinds() == ["full"] * 3 + ["ref"] * 2
    errors = [span.attributes.get("error.type") for span in seen.spans()]
    assert [error is not None for error in errors] == [False] * 4 + [True, False]


@blocking
def test_threads_may_share_it_and_each_has_its_own_session(
    driver: Any, node: Callable[..., Node], worker: Any, seen: Any
) -> None:
    worker.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 1)
    client = driver.client(node())

    def talk(number: int) -> int | None:
        with session(f"chat-{number}"), TIER.bound(f"tier-{number}"):
            for turn in range(8):
                client.post(worker.url, content=f"{number}:{turn}".encode())
            return USAGE_OUTPUT.get()

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(copy_context().run, talk, number) for number in range(8)]
        assert [job.result() for job in jobs] == [8] * 8
    for request in worker.seen:
        number = request.body.partition(b":")[0].decode()
        state = request.exchange.scope.state
        assert (state.session_id, state["clients.twice.tier"]) == (f"chat-{number}", f"tier-{number}")
    assert {request.exchange.outcome for request in worker.seen} == {"accepted"}
    assert "ref" in worker.kinds()
    assert len({span.context.span_id for span in seen.spans()}) == 64
