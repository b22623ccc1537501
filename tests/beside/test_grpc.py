"""One CLIENT and one SERVER span for a gRPC call, with contrib's interceptors and instrumentors around or inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc import aio

from otelctx.context.current import session
from otelctx.grpc import interceptors
from otelctx.grpc.client import instrument

OURS, THEIRS = "otelctx", "opentelemetry.instrumentation.grpc"
CALL = "/test.Echo/Say"


def echo(request: bytes, context: Any) -> bytes:
    return request


async def aecho(request: bytes, context: Any) -> bytes:
    return request


def handlers(function: Any) -> Any:
    return grpc.method_handlers_generic_handler("test.Echo", {"Say": grpc.unary_unary_rpc_method_handler(function)})


@pytest.fixture
def serve(world: Any) -> Iterator[Callable[..., str]]:
    with ExitStack() as stack:

        def start(*around: Any, ours: bool = True) -> str:
            chain = [*around, *(interceptors(**world.ours) if ours else ())]
            pool = stack.enter_context(ThreadPoolExecutor(2))
            server = grpc.server(pool, (handlers(echo),), interceptors=chain)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(lambda: server.stop(0).wait())
            return f"127.0.0.1:{port}"

        yield start


def by(world: Any, kind: str) -> str:
    return str(world.one(kind).instrumentation_scope.name)


def check(world: Any, client: str, server: str) -> None:
    assert by(world, "CLIENT").startswith(client)
    assert by(world, "SERVER").startswith(server)
    assert world.one("SERVER").parent.span_id == world.one("CLIENT").context.span_id
    assert world.one("CLIENT").attributes["session.id"] == "s-1"


@pytest.mark.parametrize(("instrumented_first", "client"), [("theirs", OURS), ("ours", THEIRS)])
def test_a_channel_that_both_have_wrapped(
    world: Any, contrib: Callable[[str, str], Any], serve: Callable[..., str], instrumented_first: str, client: str
) -> None:
    target = serve()
    theirs = contrib("grpc", "client_interceptor")(tracer_provider=world.tracers)
    wrap = contrib("grpc.grpcext", "intercept_channel")
    with grpc.insecure_channel(target) as plain, session("s-1"):
        if instrumented_first == "theirs":
            channel = instrument(wrap(plain, theirs), target=target, **world.ours)
        else:
            channel = wrap(instrument(plain, **world.ours), theirs)
        assert channel.unary_unary(CALL)(b"x") == b"x"
    check(world, client, OURS)


def test_a_server_with_both_interceptors(
    world: Any, contrib: Callable[[str, str], Any], serve: Callable[..., str]
) -> None:
    target = serve(contrib("grpc", "server_interceptor")(tracer_provider=world.tracers))
    with grpc.insecure_channel(target) as plain, session("s-1"):
        assert instrument(plain, **world.ours).unary_unary(CALL)(b"x") == b"x"
    check(world, OURS, THEIRS)


def test_with_the_global_instrumentors_of_client_and_server(
    world: Any, instrumented: Any, serve: Callable[..., str]
) -> None:
    with (
        instrumented("grpc", "GrpcInstrumentorClient"),
        instrumented("grpc", "GrpcInstrumentorServer"),
        grpc.insecure_channel(target := serve()) as channel,
        session("s-1"),
    ):
        assert instrument(channel, target=target, **world.ours).unary_unary(CALL)(b"x") == b"x"
    check(world, OURS, THEIRS)


@pytest.mark.parametrize(("first", "client"), [("theirs", THEIRS), ("ours", OURS)])
async def test_an_aio_channel_with_both_interceptors(
    world: Any, contrib: Callable[[str, str], Any], first: str, client: str
) -> None:
    server = aio.server(interceptors=interceptors(**world.ours))
    server.add_generic_rpc_handlers((handlers(aecho),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = f"127.0.0.1:{port}"
    both = [contrib("grpc", "aio_client_interceptors")(tracer_provider=world.tracers), interceptors(**world.ours)]
    chain = [i for some in (both if first == "theirs" else reversed(both)) for i in some]
    async with aio.insecure_channel(target, interceptors=chain) as channel:
        with session("s-1"):
            assert await channel.unary_unary(CALL)(b"x") == b"x"
    await server.stop(0)
    check(world, client, OURS)
