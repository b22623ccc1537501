"""Who is believed, and who receives."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from opentelemetry.trace import SpanKind

import otelctx.grpc
from otelctx.clients.dispatch import instrument as facade
from otelctx.errors import ConfigError
from otelctx.exchange.node import Node
from otelctx.grpc.handling import peer_of
from otelctx.grpc.target import NOBODY, parse
from otelctx.policy.egress import Egress
from otelctx.settings import Settings


@pytest.mark.parametrize(
    ("target", "address", "port", "hosts"),
    [
        ("dns:///chat.internal:50051", "chat.internal", 50051, [("chat.internal", 50051)]),
        ("dns://8.8.8.8/chat:50051", "chat", 50051, [("chat", 50051)]),
        ("dns:chat", "chat", 443, [("chat", 443)]),
        ("chat.example:50051", "chat.example", 50051, [("chat.example", 50051)]),
        ("localhost", "localhost", 443, [("localhost", 443)]),
        ("ipv4:10.0.0.1:1,10.0.0.2:2", "10.0.0.1", 1, [("10.0.0.1", 1), ("10.0.0.2", 2)]),
        ("ipv6:[::1]:50051", "::1", 50051, [("::1", 50051)]),
        ("ipv6:%5B::1%5D:50051", "::1", 50051, [("::1", 50051)]),
        ("[::1]:50051", "::1", 50051, [("::1", 50051)]),
        ("::1", "::1", 443, [("::1", 443)]),
        ("unix:///run/chat.sock", "/run/chat.sock", None, [NOBODY]),
        ("unix:chat.sock", "chat.sock", None, [NOBODY]),
        ("unix-abstract:chat", "chat", None, [NOBODY]),
        ("xds:///chat:50051", "chat", 50051, [("chat", 50051)]),
        ("", "", 443, [("", 443)]),
    ],
)
def test_a_target_is_read_as_grpc_reads_it(target: str, address: str, port: int | None, hosts: Any) -> None:
    found = parse(target)
    assert (found.address, found.port, list(found.hosts)) == (address, port, hosts)


@pytest.mark.parametrize(
    ("target", "allow", "allowed"),
    [
        ("dns:///chat:1", (), True),
        ("127.0.0.1:1", (), True),
        ("chat.example.com:1", (), False),
        ("chat.example.com:1", ("chat.example.com",), True),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", (), True),
        ("ipv4:10.0.0.1:1,8.8.8.8:1", (), False),
        ("metadata.google.internal:80", (), False),
        ("unix:///run/chat.sock", (), False),
        ("xds:///chat:1", (), False),
        ("xds:///chat:1", ("chat",), True),
        ("xds:///chat:1", ("chat:2",), False),
        ("xds:///metadata", ("metadata",), False),
        ("xds:///10.1.2.3:1", ("10.0.0.0/8",), True),
        ("xds:///10.1.2.3:1", (), False),
    ],
)
def test_context_goes_where_every_address_of_the_target_is_allowed(target: str, allow: Any, allowed: bool) -> None:
    egress = Egress(allow)
    assert egress.allows(*parse(target).destination(egress)) is allowed


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("ipv4:10.0.0.1:1234", ("10.0.0.1", 1234)),
        ("ipv6:%5B::1%5D:1234", ("::1", 1234)),
        ("ipv6:[fe80::1%25eth0]:1", ("fe80::1", 1)),
        ("unix:/run/a.sock", (None, None)),
        ("unix:", (None, None)),
        ("", (None, None)),
        ("ipv4:", (None, None)),
    ],
)
def test_a_peer_is_an_address_and_a_port_or_nobody(peer: str, found: Any) -> None:
    assert peer_of(peer) == found


@pytest.fixture(params=["sync", "aio"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_stranger_is_not_believed_and_learns_nothing(
    serve: Any, connect: Any, style: str, chat: Any, there: Any
) -> None:
    server = serve(style, settings={"untrusted_trace": "link"})
    stranger = connect(server.target, style, own=Node(Settings(keys="9:" + "QUJD" * 8)))
    stranger.call("unary_unary", b"a", metadata=(("baggage", "grpc.tier=gold,theirs=1"),))
    (call,) = server.seen.calls
    assert (call["tier"], call["source"]) == (None, "none")
    assert chat.up("grpc.spent") is None
    span = there.span(SpanKind.SERVER)
    assert span.parent is None
    assert len(span.links) == 1
    assert span.events[0].attributes["otelctx.reason"] == "mac"


def test_an_address_can_be_believed_without_keys(serve: Any, connect: Any, style: str, chat: Any) -> None:
    server = serve(style, settings={"keys": "", "trusted_clients": ("127.0.0.1",)})
    connect(server.target, style, own=Node(Settings())).call("unary_unary", b"a")
    assert server.seen.tiers() == ["gold"]
    assert chat.up("grpc.spent") == 1


def test_a_unix_socket_gets_trace_context_alone_unless_a_target_is_given(
    serve: Any, node: Any, chat: Any, tmp_path: Any, here: Any
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    server = serve("sync")
    path = f"unix:{tmp_path}/s"
    with ThreadPoolExecutor(2) as pool:
        local = grpc.server(pool, server._handlers(False), server.chain())
        local.add_insecure_port(path)
        local.start()
        for target, tier in ((None, None), ("localhost:1", "gold")):
            with grpc.insecure_channel(path) as bare:
                facade(bare, node=node(), target=target, **here.options).unary_unary("/test.Echo/unary_unary")(b"a")
            assert server.seen.tiers()[-1] == tier
        local.stop(0).wait()
    assert here.spans()[0].attributes["server.address"] == f"{tmp_path}/s"
    assert here.spans()[0].context.trace_id == server.seen.calls[0]["trace"]


HOSTILE = [
    [("otelctx-bin", b"")],
    [("otelctx-bin", b"\x00" * 40)],
    [("otelctx-bin", b"\xff" * 3060)],
    [("otelctx-bin", b"\xff" * 3061)],
    [("otelctx-bin", b"a"), ("otelctx-bin", b"b")],
    [("otelctx", ":AAAA:")],
    [("traceparent", "00-zz"), ("baggage", "=;,%%%"), ("tracestate", "=" * 600)],
    [("otelctx-ack-bin", b"x"), ("x-forwarded-for", "not an address")],
]


@pytest.mark.parametrize("metadata", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_comes_in_the_call_is_served(serve: Any, style: str, metadata: Any) -> None:
    server = serve(style)
    with grpc.insecure_channel(server.target) as channel:
        stub = channel.unary_unary("/test.Echo/unary_unary")
        answer, call = stub.with_call(b"a", metadata=metadata)
    assert answer == b"a"
    assert not [key for key, _ in (*call.initial_metadata(), *call.trailing_metadata()) if key.startswith("otelctx")]
    assert server.seen.calls[0]["source"] == "none"


@pytest.mark.parametrize("answer", [[b""], [b"\xff" * 400], [b"a", b"b"], [b"x" * 4000]])
def test_whatever_comes_back_the_call_has_its_answer(
    serve: Any, connect: Any, style: str, chat: Any, answer: list[bytes]
) -> None:
    plain = serve("sync", chain=lambda ours: [])
    plain.act = lambda request, context: context.set_trailing_metadata([("otelctx-ack-bin", a) for a in answer])
    client = connect(plain.target, style)
    assert client.call("unary_unary", b"a") == b"a"
    assert client.call("unary_stream", b"a") == [b"0:none", b"1:none", b"2:none"]


async def test_a_channel_of_aio_says_how_it_is_done() -> None:
    channel = grpc.aio.insecure_channel("localhost:1")
    with pytest.raises(ConfigError, match=r"otelctx\.grpc\.interceptors\(\)"):
        facade(channel)
    await channel.close()
    assert otelctx.grpc.__all__ == ["interceptors"]


def test_something_else_is_refused() -> None:
    from otelctx.grpc.client import instrument

    with pytest.raises(ConfigError, match="not a channel"):
        instrument(object())
