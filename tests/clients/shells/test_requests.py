"""What only requests has: adapters, repetitions inside them, prepared requests, sessions that are copied."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.auth import HTTPDigestAuth

from otelctx.clients.dispatch import instrument
from otelctx.context.current import USAGE_OUTPUT
from otelctx.context.scope import Scope
from otelctx.exchange.node import Node


@pytest.fixture
def session(node: Callable[..., Node], seen: Any) -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield instrument(made, node=node(), tracer_provider=seen.tracers, meter_provider=seen.meters)


class Dropping:
    """In front of ``url``: closes the first ``times`` connections once the request is there. Notes the heads."""

    def __init__(self, url: str) -> None:
        self.times = 0
        self.heads: list[bytes] = []
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            with client:
                head = client.recv(65536)
                if not head:
                    return
                while not head.endswith(b"\r\n\r\nx"):
                    head += client.recv(65536)
                self.heads.append(head)
                if self.times:
                    self.times -= 1
                    continue
                with socket.create_connection(self._target) as server:
                    server.sendall(head.replace(b"keep-alive", b"close"))
                    while chunk := server.recv(65536):
                        client.sendall(chunk)

    def close(self) -> None:
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def dropping(worker: Any) -> Iterator[Dropping]:
    made = Dropping(worker.url)
    yield made
    made.close()


# repetitions


def test_an_adapter_that_repeats_by_itself_sends_whole_frames_only(
    session: requests.Session, worker: Any, chat: Scope, dropping: Dropping, seen: Any
) -> None:
    """urllib3 sends the same bytes again. A REF that is repeated would be one after the first attempt."""
    session.mount("http://", HTTPAdapter(max_retries=urllib3.Retry(2, allowed_methods=None)))
    for _ in range(4):
        assert session.post(dropping.url, data=b"x").status_code == 200
    dropping.times = 2
    assert session.post(dropping.url, data=b"x").status_code == 200
    assert worker.kinds() == ["full"] * 5
    assert len({head[head.index(b"otelctx:") :] for head in dropping.heads[4:]}) == 1
    assert len(dropping.heads) == 7
    assert [span.attributes.get("http.request.resend_count") for span in seen.spans()] == [None] * 4 + [2]


def test_an_adapter_that_does_not_repeat_sends_references(
    session: requests.Session, worker: Any, chat: Scope, dropping: Dropping, seen: Any
) -> None:
    for _ in range(4):
        session.post(dropping.url, data=b"x")
    assert worker.kinds() == ["full", "full", "full", "ref"]
    dropping.times = 1
    with pytest.raises(requests.ConnectionError):
        session.post(dropping.url, data=b"x")
    assert seen.spans()[-1].attributes["error.type"] == "requests.exceptions.ConnectionError"


@pytest.mark.parametrize(
    ("retries", "kind"),
    [
        (0, "ref"),
        (3, "full"),
        (urllib3.Retry(0, read=False), "ref"),
        (urllib3.Retry(False), "ref"),
        (urllib3.Retry(None, connect=0), "full"),
        (None, "full"),
    ],
)
def test_whether_an_adapter_may_repeat(
    session: requests.Session, worker: Any, chat: Scope, retries: Any, kind: str
) -> None:
    adapter = session.get_adapter("http://")
    adapter.max_retries = retries  # as on the adapter itself
    assert session.adapters["http://"].max_retries is retries
    for _ in range(4):
        session.post(worker.url)
    assert worker.kinds()[-1] == kind


def test_repetitions_that_are_used_up_are_an_error_of_one_attempt(
    session: requests.Session, worker: Any, seen: Any
) -> None:
    worker.handler = lambda request: setattr(request, "status", 503)
    session.mount("http://", HTTPAdapter(max_retries=urllib3.Retry(2, status_forcelist=[503], allowed_methods=None)))
    with pytest.raises(requests.exceptions.RetryError):
        session.post(worker.url)
    assert len(worker.seen) == 3
    assert seen.span().attributes["error.type"] == "requests.exceptions.RetryError"


def test_digest_authentication_takes_two_attempts(
    session: requests.Session, worker: Any, chat: Scope, seen: Any
) -> None:
    """The second one is sent through the first one's response, and made from its request."""
    for _ in range(3):
        session.post(worker.url)

    def handler(request: Any) -> None:
        if not request.values("authorization"):
            request.status = 401
            request.response_headers.append((b"www-authenticate", b'Digest realm="r", nonce="n", qop="auth"'))

    worker.handler = handler
    response = session.post(worker.url, data=b"x", auth=HTTPDigestAuth("user", "password"))
    assert (response.status_code, [r.status_code for r in response.history]) == (200, [401])
    assert worker.kinds()[3:] == ["ref", "full"]
    assert all(len(request.values("traceparent")) == 1 for request in worker.seen)
    assert seen.spans()[-1].attributes["http.request.resend_count"] == 1
    assert seen.spans()[-1].context.span_id != seen.spans()[-2].context.span_id


def test_a_redirect_that_the_application_follows_itself_is_counted_too(
    session: requests.Session, worker: Any, chat: Scope, seen: Any
) -> None:
    def handler(request: Any) -> None:
        if request.path == "/":
            request.status = 307
            request.response_headers.append((b"location", b"/to"))

    worker.handler = handler
    response = session.post(worker.url, data=b"x", allow_redirects=False)
    assert response.next is not None
    assert session.send(response.next).status_code == 200
    assert [span.attributes.get("http.request.resend_count") for span in seen.spans()] == [None, 1]


@pytest.mark.parametrize(
    ("body", "arrives"),
    [
        ({}, b""),
        ({"data": b"abc"}, b"abc"),
        ({"data": "é"}, "é".encode()),
        ({"data": {"form": "1"}}, b"form=1"),
        ({"json": [1]}, b"[1]"),
        ({"files": {"f": ("n", b"in a form")}}, b"in a form"),
    ],
    ids=["none", "bytes", "text", "form", "json", "multipart"],
)
def test_which_bodies_are_sent_again_after_a_restart(
    session: requests.Session,
    worker: Any,
    node: Callable[..., Node],
    chat: Scope,
    body: dict[str, Any],
    arrives: bytes,
) -> None:
    for _ in range(3):
        session.post(worker.url)
    worker.node = node()
    assert session.post(worker.url, **body).status_code == 200
    assert (worker.refused, worker.kinds()[-1]) == (1, "full")
    assert arrives in worker.seen[-1].body


def test_a_file_is_sent_once_and_in_full(
    session: requests.Session, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    for _ in range(3):
        session.post(worker.url)
    worker.node = node()
    assert session.post(worker.url, data=io.BytesIO(b"abc")).status_code == 200
    assert (worker.kinds()[-1], worker.refused, worker.seen[-1].body) == ("full", 0, b"abc")


# the session


def test_it_stays_what_it_is_and_twice_is_once(session: requests.Session, node: Callable[..., Node]) -> None:
    kind = type(session)
    assert isinstance(session, requests.Session)
    assert (kind.__name__, kind.__module__, kind.__doc__) == (
        "Session",
        "requests.sessions",
        requests.Session.__doc__,
    )
    assert instrument(session, node=node()) is session
    assert type(session) is kind
    assert type(session.adapters["http://"]) is HTTPAdapter
    adapter = session.get_adapter("http://a")
    assert isinstance(adapter, BaseAdapter)
    assert adapter.poolmanager is session.adapters["http://"].poolmanager
    with pytest.raises(AttributeError):
        _ = adapter.no_such_thing


def test_a_subclass_keeps_its_own_methods(worker: Any, node: Callable[..., Node], seen: Any, chat: Scope) -> None:
    called: list[str] = []

    class Own(requests.Session):
        def send(self, request: Any, **kwargs: Any) -> Any:
            called.append("send")
            return super().send(request, **kwargs)

        def get_adapter(self, url: str) -> Any:
            called.append("get_adapter")
            return super().get_adapter(url)

    with instrument(Own(), node=node(), tracer_provider=seen.tracers) as session:
        session.post(worker.url)
    assert called == ["send", "get_adapter"]
    assert (worker.kinds(), len(seen.spans())) == (["full"], 1)


def test_adapters_that_are_mounted_later_are_seen(
    session: requests.Session, worker: Any, chat: Scope, seen: Any
) -> None:
    adapter = HTTPAdapter()
    session.mount(worker.url, adapter)
    session.post(worker.url)
    assert session.adapters[worker.url] is adapter
    assert (worker.kinds(), len(seen.spans())) == (["full"], 1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_it_is_a_plain_session(session: requests.Session, worker: Any, protocol: int) -> None:
    session.headers["X-Own"] = "1"
    other = pickle.loads(pickle.dumps(session, protocol))
    assert type(other) is requests.Session
    other.post(worker.url)
    assert (worker.seen[0].values("x-own"), worker.seen[0].values("traceparent")) == (["1"], [])
    other.close()


def test_a_copy_of_it_is_a_plain_session_that_can_be_instrumented(
    session: requests.Session, worker: Any, node: Callable[..., Node], chat: Scope
) -> None:
    other = copy.copy(session)
    assert type(other) is requests.Session
    instrument(other, node=node()).post(worker.url)
    session.post(worker.url)
    assert worker.kinds() == ["full", "full"]
    assert type(copy.deepcopy(session)) is requests.Session


def test_threads_may_share_it(session: requests.Session, worker: Any, chat: Scope, seen: Any) -> None:
    worker.handler = lambda request: request.scope.record(USAGE_OUTPUT.spec, 1)

    def ask(number: int) -> bytes:
        return session.post(worker.url, data=str(number)).content

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(copy_context().run, ask, number) for number in range(64)]
        assert {job.result() for job in jobs} == {b"ok"}
    assert sorted(int(request.body) for request in worker.seen) == list(range(64))
    assert {request.exchange.outcome for request in worker.seen} == {"accepted"}
    assert (USAGE_OUTPUT.get(), len({span.context.span_id for span in seen.spans()})) == (64, 64)


def test_the_prepared_request_is_left_alone(session: requests.Session, worker: Any, chat: Scope) -> None:
    request = session.prepare_request(requests.Request("POST", worker.url, data=b"x", headers={"Otelctx": "mine"}))
    before = dict(request.headers)
    response = session.send(request)
    assert dict(request.headers) == before
    assert response.request is request
    assert pickle.loads(pickle.dumps(response)).content == b"ok"


def test_header_values_of_any_kind_arrive_as_they_would(session: requests.Session, worker: Any, chat: Scope) -> None:
    session.post(worker.url, headers={"X-Bytes": "é".encode(), "X-Text": "é", "User-Agent": "own"})
    (request,) = worker.seen
    assert [request.values(name) for name in ("x-bytes", "x-text", "user-agent")] == [["Ã©"], ["é"], ["own"]]


def test_what_http_client_can_not_write_is_its_error_with_a_span(session: requests.Session, seen: Any) -> None:
    with pytest.raises(UnicodeEncodeError):
        session.post("http://localhost/", headers={"X-Text": "語"})
    assert seen.span().attributes["error.type"] == "UnicodeEncodeError"


# bodies


def test_each_way_to_read_a_stream_to_its_end_ends_the_span(session: requests.Session, worker: Any, seen: Any) -> None:
    ways: list[Callable[[requests.Response], object]] = [
        lambda r: r.content,
        lambda r: list(r.iter_content(3)),
        lambda r: list(r.iter_lines()),
        lambda r: r.raw.read(),
        lambda r: list(r.raw.stream(2)),
        lambda r: shutil.copyfileobj(r.raw, io.BytesIO()),
        lambda r: list(r),
    ]
    for chunks in ([b"a\nb\n", b"c"], [b"a\nb\nc"]):
        for read in ways:
            sized = [(b"content-length", b"5")] if len(chunks) == 1 else []

            def handler(request: Any, chunks: list[bytes] = chunks, sized: Any = sized) -> None:
                request.chunks, request.response_headers = list(chunks), list(sized)

            worker.handler = handler
            seen.exporter.clear()
            response = session.post(worker.url, stream=True)
            assert seen.spans() == []
            read(response)
            assert len(seen.spans()) == 1
            response.close()
            assert len(seen.spans()) == 1


class Whole(BaseAdapter):
    """An adapter without a network, as caches and mocks are."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url = 200, request.url
        response.raw = io.BytesIO(b"cached")
        return response

    def close(self) -> None:
        pass


def test_a_response_that_came_whole_ends_at_once(session: requests.Session, seen: Any) -> None:
    session.mount("http://cached", Whole())
    response = session.get("http://cached/", stream=True)
    assert len(seen.spans()) == len(seen.durations()) == 1
    assert response.content == b"cached"


def test_what_is_no_http_is_let_through(session: requests.Session, seen: Any) -> None:
    session.mount("file://", Whole())
    assert session.get("file:///etc/motd").content == b"cached"
    assert seen.spans() == []
