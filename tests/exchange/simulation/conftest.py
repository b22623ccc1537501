"""A small world of senders and workers under their real nodes, and everything a network does to what they send.

What is simulated is only what stands around the protocol: clocks, balancers, proxies, caches and applications. Each
exchange goes through :mod:`otelctx.exchange` on both sides, as header lines.
"""

from __future__ import annotations

import base64
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.context import Context

from otelctx.context.current import with_scope
from otelctx.context.keys import KeyRegistry, KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import EMPTY, State
from otelctx.delta.codec import decode_ack, from_header, split_mac
from otelctx.delta.messages import AckKind, Held
from otelctx.delta.sender import LinkState
from otelctx.exchange import client, server
from otelctx.exchange.client import ClientExchange, Verdict
from otelctx.exchange.node import Node
from otelctx.exchange.server import ServerExchange
from otelctx.settings import Settings

KEYS = "1:" + base64.b64encode(bytes(range(32))).decode()
UNIX = 1_800_000_000.0
TIER = KeySpec("sim.tier", str, visibility="public")
PLAN = KeySpec("sim.plan", str)
LIMIT = KeySpec("limit.tokens.total", int)
RUNS = KeySpec("sim.runs", int, "up", "internal", "sum")
FILL = [KeySpec(f"sim.fill{n}", str) for n in range(6)]
FAULTS = (
    "request lost", "reply lost", "reply late", "duplicated", "frame stripped", "ack stripped", "both stripped",
    "too large", "502", "304", "412",
)  # fmt: skip
Lines = list[bytes | str]


class Tier:
    """A shared tier that answers at once, or has forgotten. Its coroutines never wait, so no event loop is needed."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, bytes], State] = {}
        self.forget = lambda: None

    async def load(self, domain: str, root: bytes) -> State | None:
        found = self.states.get((domain, root[:8]))
        return found if found is not None and found.root.startswith(root) else None

    def share(self, domain: str, state: State) -> None:
        self.states[domain, state.root[:8]] = state

    def shared(self, domain: str, root: bytes) -> bool:
        return (domain, root[:8]) in self.states


@dataclass
class Origin:
    """Workers behind one name. ``None`` in their place is one that has never heard of otelctx."""

    name: str
    workers: list[Node | None]
    balance: str = "first"  # first, turn, random, sticky
    tier: Tier | None = None
    proceed: bool = False
    cap: int = 4096  # longer header lines are answered 431
    unaware: frozenset[str] = frozenset()  # paths that somebody else serves
    turn: int = 0


@dataclass
class Call:
    """One exchange of a sender's application, its repetition included, and what came of it."""

    sender: int
    origin: Origin
    scope: Scope
    meant: State
    method: str
    path: str
    fate: str
    exchange: ClientExchange
    kinds: list[str | None]
    eligible: bool
    runs: int = 0
    refused: int = 0
    flagged: bool = False
    copies: int = 1
    status: int = 0
    acks: Lines = field(default_factory=list)


class World:
    """``complaints`` is empty as long as the protocol keeps its word; see :meth:`complain` for what can be said."""

    def __init__(self, origins: list[dict[str, Any]], senders: int = 2, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.boots = 0
        self.registry = KeyRegistry()
        for spec in (TIER, PLAN, LIMIT, RUNS, *FILL):
            self.registry.declare(spec)
        self.senders = [self.process() for _ in range(senders)]
        self.origins = [self._origin(n, **options) for n, options in enumerate(origins)]
        self.scopes: dict[tuple[int, str], Scope] = {}
        self.calls: list[Call] = []
        self.late: list[Call] = []
        self.cache: dict[tuple[str, str], tuple[int, Lines]] = {}
        self.complaints: list[str] = []
        self.acked: dict[tuple[int, str], set[bytes]] = defaultdict(set)
        self.recorded: Counter[str] = Counter()
        # what has happened since the last fault on a link; see eligible()
        self.since: Counter[tuple[object, ...]] = Counter()
        self.heard: dict[tuple[object, ...], float] = {}

    def _origin(self, n: int, workers: int = 1, strangers: int = 0, tier: bool = False, **options: Any) -> Origin:
        origin = Origin(f"o{n}", [None] * strangers, tier=Tier() if tier else None, **options)
        origin.workers = [self.process(origin) for _ in range(workers)] + origin.workers
        return origin

    def process(self, of: Origin | None = None) -> Node:
        """A new process of an origin, or of a sender."""
        settings = Settings(keys=KEYS, on_unknown_base="proceed" if of and of.proceed else "resync")
        node = Node(settings, registry=self.registry, shared=of.tier if of else None)
        self.boots += 1
        node._boot_id = self.boots
        return node

    def complain(self, what: str, call: Call) -> None:
        """``silent``: an application saw another state and was not told; ``twice``: it ran again for one request;
        ``unacked``: a compact frame refers to what nobody has acknowledged; ``overcounted``: a sum came up too large.
        """
        self.complaints.append(f"{what}: {call.kinds} {call.fate} {call.method} {call.path} at {self.now:.1f}")

    def scope(self, sender: int, session: str) -> Scope:
        key = (sender, session)
        if key not in self.scopes:
            scope = self.scopes[key] = Scope(EMPTY.put("session.id", session))
            for n, spec in enumerate(FILL):
                scope.set(spec, f"value {n} of {session}")
            scope.set(TIER, "gold")
        return self.scopes[key]

    def call(
        self, sender: int, session: str, origin: int = 0, *, method: str = "POST", path: str = "/", fate: str = "ok",
        change: tuple[KeySpec, object] | None = None, wait: float = 0.5, cacheable: bool = False,
    ) -> Call:  # fmt: skip
        """One exchange from its beginning to its end, unless its ``fate`` is that its reply comes late."""
        self.now += wait
        scope, to = self.scope(sender, session), self.origins[origin]
        if change is not None:
            scope.set(*change)
        meant = scope.state
        eligible = fate == "ok" and self.eligible(sender, to, session, path, method)
        exchange = client.begin(
            self.senders[sender], scheme="http", host=to.name, port=80, method=method, path=path, body=10,
            context=with_scope(scope, Context()), idempotent=method == "GET", now=self.now, unix=UNIX + self.now,
        )  # fmt: skip
        call = Call(sender, to, scope, meant, method, path, fate, exchange, [], eligible)
        self.calls.append(call)
        self._sent(call)
        if fate == "request lost":
            exchange.failed()
        else:
            self._carry(call, cacheable)
            if fate == "reply lost":
                exchange.failed()
            elif fate == "reply late":
                self.late.append(call)
            else:
                self._close(call, cacheable)
        self._note(call, session)
        return call

    def _sent(self, call: Call) -> None:
        call.kinds.append(call.exchange.kind)
        frame = call.exchange._frame
        if frame is None or frame.kind.name == "FULL":
            return
        base = frame.base if frame.kind.name == "DELTA" else frame.root
        if not any(root.startswith(base) for root in self.acked[call.sender, call.origin.name]):
            self.complain("unacked", call)

    def arrive(self) -> None:
        """The oldest of the replies that are under way."""
        if self.late:
            self._close(self.late.pop(0), False)

    # the network between

    def _carry(self, call: Call, cacheable: bool) -> None:
        """The request goes to a worker, or as far as it gets."""
        headers: Lines = [value for _, value in call.exchange.headers]
        key = (call.origin.name, call.path)
        if call.method == "GET" and key in self.cache:
            call.status, call.acks = self.cache[key]
            return
        cap = 20 if call.fate == "too large" else call.origin.cap
        if any(len(line) > cap for line in headers):
            call.status, call.acks = 431, []
            return
        if call.fate in ("frame stripped", "both stripped"):
            headers = []
        call.copies += call.fate == "duplicated"
        for _ in range(2 if call.fate == "duplicated" else 1):
            call.status, call.acks = self._serve(call, headers, cacheable)
        if call.fate in ("ack stripped", "both stripped"):
            call.acks = []
        if call.fate in ("502", "304", "412"):
            call.status, call.acks = int(call.fate), []
        if call.method == "GET" and cacheable and call.status == 200:
            self.cache[key] = (call.status, call.acks)

    def _close(self, call: Call, cacheable: bool) -> None:
        while True:
            self._learn(call)
            verdict = call.exchange.close(call.status, call.acks, self.now, UNIX + self.now)
            if verdict is Verdict.DONE:
                break
            self.now += 0.01
            self._sent(call)
            call.fate = "ok" if call.fate != "too large" else call.fate
            self._carry(call, cacheable)
        session = call.meant.session_id
        shown = sum(int(s.up(RUNS.name) or 0) for (_, name), s in self.scopes.items() if name == session)
        if shown > self.recorded[session or ""]:
            self.complain("overcounted", call)

    def _learn(self, call: Call) -> None:
        """What may be referred to from now on, by an ack that really came back. Not what the sender makes of it."""
        frame = call.exchange._frame
        for line in call.acks if frame is not None else ():
            ack = decode_ack(split_mac(from_header(line))[0])
            if (ack.kind, ack.root) == (AckKind.ACK, frame.root[:8]) and ack.held is not Held.NONE:
                self.acked[call.sender, call.origin.name].add(frame.root)

    def _pick(self, call: Call) -> int:
        to = call.origin
        to.turn = {
            "first": 0,
            "turn": to.turn + 1,
            "random": self.rng.randrange(12),
            "sticky": sum((call.meant.session_id or "").encode()),
        }[to.balance]
        return to.turn % len(to.workers)

    def _serve(self, call: Call, headers: Lines, cacheable: bool) -> tuple[int, Lines]:
        node = None if call.path in call.origin.unaware else call.origin.workers[self._pick(call)]
        if node is None:
            return 200, []
        inbound = server.open(
            node, lines=headers, baggage=None, client="10.0.0.1", forwarded=None, now=UNIX + self.now, may_wait=True
        )
        with pytest.raises(StopIteration):
            inbound.settle().send(None)
        if inbound.outcome == "refuse":
            call.refused += 1
            status, head, _ = inbound.refusal(UNIX + self.now)
            return status, [value for name, value in head if name == b"otelctx-ack"]
        return 200, self._run(call, inbound, cacheable)

    def _run(self, call: Call, inbound: ServerExchange, cacheable: bool) -> Lines:
        """The application."""
        scope, meant = inbound.scope, call.meant
        call.runs += 1
        if call.runs > call.copies and call.method != "GET":
            self.complain("twice", call)
        if scope.source == "frame" and not scope.incomplete:
            if [e.leaf for e in scope.state.entries()] != [e.leaf for e in meant.entries()]:
                self.complain("silent", call)
        else:
            call.flagged = True
        scope.record(RUNS, 1)
        if inbound.outcome == "accepted":
            self.recorded[meant.session_id or ""] += 1
        caching = [(b"cache-control", b"max-age=60" if cacheable else b"no-store")]
        ack = inbound.ack(call.method, caching, UNIX + self.now)
        inbound.close()
        return [] if ack is None else [ack]

    # what is promised, and when

    def eligible(self, sender: int, to: Origin, session: str, path: str, method: str) -> bool:
        """Whether a compact frame is promised: not in the first three exchanges since the last fault (on each path,
        where that left the link in doubt about paths), the session's first, a path's first GET, after a minute of
        silence, or while a penalty runs."""
        link = self.senders[sender].links.get(("http", to.name, 80)).sender
        key = (sender, to.name)
        mixed = link.state is LinkState.MIXED
        settled = self.since[(*key, "path", path) if mixed else key] >= 3 and self.since[(*key, "session", session)] > 0
        awake = to.tier is not None or self.now - self.heard.get((*key, session), -1e9) < 59
        balanced = to.tier is None and link._boots.balanced(self.now)
        penalty = link.state in (LinkState.FULL_ONLY, LinkState.W3C_ONLY)
        hopeless = path in to.unaware or None in to.workers
        first = method == "GET" and not self.since[(*key, "get", path)]
        return settled and awake and not (balanced or penalty or hopeless or first)

    def _note(self, call: Call, session: str) -> None:
        key = (call.sender, call.origin.name)
        if call.fate != "ok" or call.refused or call.flagged:
            self.fault(*key)
            return
        if not call.acks:  # as in a period without frames: nothing has been learned
            return
        self.since[key] += 1
        self.since[(*key, "path", call.path)] += 1
        self.since[(*key, "session", session)] += 1
        self.since[(*key, "get", call.path)] += 1
        self.heard[(*key, session)] = self.now

    def fault(self, sender: int, origin: str) -> None:
        """From here on the link and all its sessions begin anew."""
        for key in [key for key in self.since if key[:2] == (sender, origin)]:
            del self.since[key]

    def restart(self, origin: int, worker: int = 0) -> None:
        """A worker is replaced by a new process."""
        to = self.origins[origin]
        if to.workers[worker] is not None:
            to.workers[worker] = self.process(to)
        self.everyone(to)

    def forget(self, origin: int) -> None:
        """The workers have needed their memory for something else, and the tier has been flushed."""
        to = self.origins[origin]
        for worker in to.workers:
            if worker is not None:
                worker._bases.clear()
        if to.tier is not None:
            to.tier.states.clear()
        self.everyone(to)

    def everyone(self, to: Origin) -> None:
        """A fault of ``to`` itself."""
        for sender in range(len(self.senders)):
            self.fault(sender, to.name)

    def compact_share(self) -> tuple[int, float]:
        """Of the exchanges for which it is promised: how many there are, and the share with REF or DELTA accepted."""
        calls = [call for call in self.calls if call.eligible]
        good = [c for c in calls if c.kinds[0] in ("ref", "delta") and not c.refused]
        return len(calls), len(good) / max(1, len(calls))


def chatter(
    world: World, steps: int, *, faults: float = 0.0, sessions: int = 4, seed: int = 1, common: bool = True,
    cacheable: float = 0.0,
) -> World:  # fmt: skip
    """Random traffic: mostly unchanged states, some changes, some GETs; each step a fault with that probability.

    ``common``: all senders speak for the same sessions, each with a state of its own; ``cacheable``: how many of the
    answers to GETs a shared cache keeps.
    """
    rng = random.Random(seed)
    for _ in range(steps):
        sender, origin = rng.randrange(len(world.senders)), rng.randrange(len(world.origins))
        session = f"s{rng.randrange(sessions)}" + ("" if common else f"-{sender}")
        if rng.random() < faults:
            disturb(world, rng, sender, session, origin)
            continue
        method, path = rng.choice(["POST"] * 9 + ["GET"]), rng.choice(["/", "/", "/v1"])
        kept = cacheable > 0 and method == "GET" and rng.random() < cacheable
        if kept:
            path = f"/cached/{rng.randrange(20)}"
        world.call(sender, session, origin, change=_change(rng), method=method, path=path, cacheable=kept)
    return world


def disturb(world: World, rng: random.Random, sender: int, session: str, origin: int) -> None:
    what = rng.choice([*FAULTS, "restart", "forget", "arrive", "minute", "ten minutes"])
    if what == "restart":
        world.restart(origin, rng.randrange(len(world.origins[origin].workers)))
    elif what == "forget":
        world.forget(origin)
    elif what == "arrive":
        world.arrive()
        world.everyone(world.origins[origin])
    elif what in ("minute", "ten minutes"):
        world.now += 61.0 if what == "minute" else 601.0
    else:
        world.call(sender, session, origin, change=_change(rng), fate=what)


def _change(rng: random.Random) -> tuple[KeySpec, object] | None:
    if rng.random() < 0.7:
        return None
    tier, limit, plan = f"tier{rng.randrange(3)}", rng.randrange(10**6), "p" * rng.randrange(9)
    return rng.choice([(TIER, tier), (LIMIT, limit), (PLAN, plan)])


@pytest.fixture(scope="session")
def sim() -> SimpleNamespace:
    return SimpleNamespace(world=World, chatter=chatter, keys={"tier": TIER, "plan": PLAN, "limit": LIMIT})
