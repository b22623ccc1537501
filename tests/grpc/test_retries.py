"""Calls that gRPC itself sends again, with the metadata that they had: whole frames are read, others refused."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
RETRIES = [("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": POLICY}]}))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("style", ["sync", "aio"])
def test_each_kind_of_call_arrives_whole_however_often_it_is_sent(
    serve: Any, connect: Any, chat: Any, style: str, kind: str
) -> None:
    """The server is another process at each attempt, as behind a balancer that gRPC does not see."""
    ours: list[Any] = []
    server = serve("sync", chain=lambda chain: ours.extend(chain) or chain)
    process = ours[0]._party.node
    client = connect(server.target, style, options=RETRIES)
    for _ in range(4):
        client.call("unary_unary", b"a")
    failed: list[bytes] = []

    def fail_twice(request: bytes, context: Any) -> None:
        process._forget()
        if len(failed) < 2:
            failed.append(request)
            context.abort(grpc.StatusCode.UNAVAILABLE, "try again")

    server.act = fail_twice
    before = len(server.seen.tiers())
    assert client.call(kind, b"b")
    assert failed == [b"b", b"b"]
    assert set(server.seen.tiers()[before:]) == {"gold"}
    # Of the unary call the first repetition was a reference that nobody knew, and then a whole frame was sent.
    assert server.seen.metadata[-1]["grpc-previous-rpc-attempts"] == ("1" if kind == "unary_unary" else "2")
