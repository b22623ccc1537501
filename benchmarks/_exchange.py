"""Two processes' worth of context exchange in one, and the states that go through it."""

from __future__ import annotations

import base64
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic, time
from typing import Final

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from otelctx.context.current import with_scope
from otelctx.context.keys import Value
from otelctx.context.scope import Scope
from otelctx.context.state import State, entry
from otelctx.exchange import client, server
from otelctx.exchange.client import ClientExchange, Verdict
from otelctx.exchange.node import Node
from otelctx.exchange.server import ServerExchange
from otelctx.settings import Settings

__all__ = ["HOST", "METHOD", "PATH", "Lines", "Pair", "baggage_context", "baggage_value", "new_state", "rounds"]

HOST: Final = "127.0.0.1"
METHOD: Final = "POST"
PATH: Final = "/v1/chat/completions"
CHANGED: Final = 0.3

_W3C: Final = W3CBaggagePropagator()


def new_state(rng: random.Random) -> State:
    """Thirteen keys as an LLM service has them, those of a session with values of its own."""
    values: dict[str, Value] = {
        "session.id": f"{rng.getrandbits(128):032x}",
        "tenant.id": "acme",
        "user.id": f"u-{rng.randrange(10**8)}",
        "gen_ai.conversation.id": f"conv-{rng.getrandbits(24):06x}",
        "gen_ai.request.model": "SmolLM2-135M-Instruct",
        "gen_ai.agent.id": "planner-2",
        "deployment.environment.name": "production",
        "cloud.region": "eu-central-1",
        "service.origin": "web",
        "client.locale": "de-CH",
        "user.tier": "pro",
        "request.priority": 0,
        "limit.tokens.total": 8000,
    }
    return State({name: entry(name, value) for name, value in values.items()})


def _change(state: State, rng: random.Random) -> State:
    if rng.random() < 0.5:
        return state.put("gen_ai.agent.id", f"agent-{rng.randrange(10**4)}")
    return state.put("limit.tokens.total", rng.randrange(8000))


def rounds(states: list[State], count: int, rng: random.Random) -> Iterator[list[State]]:
    """``states``, and then ``count - 1`` times again, 30 % of them with one changed value each time."""
    yield states
    for _ in range(count - 1):
        states = [_change(state, rng) if rng.random() < CHANGED else state for state in states]
        yield states


def baggage_context(state: State, context: Context | None = None) -> Context:
    """``context`` with the entries of ``state`` as OpenTelemetry baggage."""
    for name, item in state.items():
        context = baggage.set_baggage(name, str(item), context)
    return context or Context()


def baggage_value(state: State) -> str:
    """The ``baggage`` header that OpenTelemetry makes of ``state``."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, baggage_context(state))
    return carrier["baggage"]


@dataclass(slots=True)
class Lines:
    """The two header values of one exchange, and what kind of frame the first one is."""

    kind: str
    frame: str
    ack: str


class Pair:
    """A calling and a serving process, as far as context goes, that share one fresh MAC key.

    Each exchange begins ``step`` seconds later than it does, after all those before it.
    """

    def __init__(self, step: float = 0.0) -> None:
        self._step = step
        self._ahead = 0.0
        settings = Settings(keys=f"1:{base64.b64encode(secrets.token_bytes(32)).decode()}")
        self.caller = Node(settings)
        self.callee = Node(settings)

    def begin(self, state: State, port: int = 80) -> ClientExchange:
        return self.send(with_scope(Scope(state, source="frame")), port)

    def send(self, context: Context, port: int = 80) -> ClientExchange:
        self._ahead += self._step
        return client.begin(
            self.caller,
            scheme="http",
            host=HOST,
            port=port,
            method=METHOD,
            path=PATH,
            body=0,
            context=context,
            now=monotonic() + self._ahead,
            unix=time() + self._ahead,
        )

    def open(self, lines: list[str]) -> ServerExchange:
        return server.open(
            self.callee, lines=lines, baggage=None, client=HOST, forwarded=None, now=time() + self._ahead
        )

    def ack(self, exchange: ServerExchange) -> bytes | None:
        return exchange.ack(METHOD, (), time() + self._ahead)

    def close(self, exchange: ClientExchange, status: int, acks: list[bytes]) -> Verdict:
        return exchange.close(status, acks, monotonic() + self._ahead, time() + self._ahead)

    def whole(self, state: State) -> Lines:
        """One exchange from the caller's scope to the ack that it reads."""
        outgoing = self.begin(state)
        frame = outgoing.headers[0][1]
        incoming = self.open([frame])
        ack = self.ack(incoming)
        incoming.close()
        if ack is None or self.close(outgoing, 200, [ack]) is not Verdict.DONE:
            raise RuntimeError(f"a {outgoing.kind} frame between two working nodes came to {incoming.outcome}")
        return Lines(outgoing.kind or "", frame, ack.decode())
