"""What context adds to HPACK-coded heads, where several sessions share one HTTP/2 connection."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hpack import Encoder

from benchmarks._exchange import HOST, METHOD, PATH, Pair, baggage_value, new_state, rounds
from otelctx.semconv import ACK_HEADER, HEADER

__all__ = ["added_bytes"]

Headers = list[tuple[str, str]]


class _Connection:
    """Both directions' encoders, with HPACK's default table of 4096 bytes each."""

    def __init__(self) -> None:
        self._out, self._back = Encoder(), Encoder()
        self.bytes = 0

    def exchange(self, request: Headers, more: Headers, response: Headers, answer: Headers) -> None:
        self.bytes += len(self._out.encode(request + more)) + len(self._back.encode(response + answer))


def _request(rng: random.Random) -> Headers:
    return [
        (":method", METHOD),
        (":scheme", "https"),
        (":authority", HOST),
        (":path", PATH),
        ("accept", "*/*"),
        ("user-agent", "python-httpx/0.28.1"),
        ("content-type", "application/json"),
        ("content-length", str(rng.randrange(200, 4000))),
        ("traceparent", f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-01"),
    ]


def _response(rng: random.Random) -> Headers:
    length = str(rng.randrange(200, 4000))
    return [(":status", "200"), ("content-type", "application/json"), ("content-length", length)]


def added_bytes(sessions: int, count: int, rng: random.Random) -> tuple[int, int]:
    """Bytes that context adds, ours and baggage, over ``count`` rounds of ``sessions`` requests after a first round."""
    pair, ours, theirs, bare = Pair(), _Connection(), _Connection(), _Connection()
    # A link compacts after three acks; that is a matter of the link, and is over here.
    for _ in range(3):
        pair.whole(new_state(rng))
    states = [new_state(rng) for _ in range(sessions)]
    everything: Sequence[_Connection] = (ours, theirs, bare)
    for number, changed in enumerate(rounds(states, count + 1, rng)):
        if number == 1:
            for connection in everything:
                connection.bytes = 0
        for state in changed:
            lines = pair.whole(state)
            request, response = _request(rng), _response(rng)
            ours.exchange(request, [(HEADER, lines.frame)], response, [(ACK_HEADER, lines.ack)])
            theirs.exchange(request, [("baggage", baggage_value(state))], response, [])
            bare.exchange(request, [], response, [])
    return ours.bytes - bare.bytes, theirs.bytes - bare.bytes
