"""A client that was seen to leave before the response has started: nobody has received what is answered then."""

from __future__ import annotations

from typing import Any

import pytest

GONE = "otelctx.client.disconnected"


@pytest.mark.parametrize("status", [200, 204, 404])
async def test_an_answer_to_a_client_that_has_left_is_recorded_and_marked(rig: Any, ok: Any, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await ok(send, status)

    r = rig(app)
    await r.request()
    assert r.span.attributes[GONE] is True
    assert (r.point()["http.response.status_code"], r.span.status.status_code.name) == (status, "UNSET")
    assert "error.type" not in r.span.attributes


@pytest.mark.parametrize("comes_out", [True, False])
async def test_a_500_that_a_framework_makes_of_a_client_that_has_left_is_no_error(
    rig: Any, ok: Any, comes_out: bool
) -> None:
    """Starlette's ``request.body()`` raises ``ClientDisconnect``: its outermost layer answers 500 and raises it again;
    Litestar only answers."""

    class ClientDisconnect(Exception):
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await ok(send, 500)
        if comes_out:
            raise ClientDisconnect

    r = rig(app)
    if comes_out:
        with pytest.raises(ClientDisconnect):
            await r.request()
    else:
        await r.request()
    assert r.span.attributes[GONE] is True
    assert (r.span.status.status_code.name, r.span.events) == ("UNSET", ())
    assert not {"error.type", "http.response.status_code"} & (r.point().keys() | r.span.attributes.keys())


async def test_an_exception_of_another_kind_is_an_error_though_the_client_has_left(rig: Any, ok: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await ok(send, 500)
        raise KeyError("x")

    r = rig(app)
    with pytest.raises(KeyError):
        await r.request()
    assert r.point()["error.type"] == r.span.attributes["error.type"] == "KeyError"
    assert r.span.attributes["http.response.status_code"] == 500


@pytest.mark.parametrize(
    ("port", "known"), [("4711", 4711), (4711, 4711), ("", None), ("9" * 30, None), ("http", None), (None, None)]
)
async def test_a_peers_port_is_a_number_or_nothing(rig: Any, ok: Any, port: Any, known: int | None) -> None:
    """Granian has it as text."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(send)

    r = rig(app)
    await r.request(client=("10.0.0.1", port))
    assert r.span.attributes.get("network.peer.port") == known
