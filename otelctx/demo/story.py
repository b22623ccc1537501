"""The demo, told: each step is taken, shown as a trace, and checked."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from rich.console import Console

from otelctx.context.current import session
from otelctx.demo import check
from otelctx.demo.backstage import ENDPOINT, Backstage, embedded, external, own_jaeger
from otelctx.demo.client import Client, Reply
from otelctx.demo.figures import Hop, Tokens, hop, tokens
from otelctx.demo.frames import Follower
from otelctx.demo.ledger import Ledger
from otelctx.demo.script import AFTER, GONE, KEYS, SESSION, SPENT, TIER, TOO_LONG, TURNS, WINDOW, Turn
from otelctx.demo.sources import wait
from otelctx.demo.stage import MODEL, Stage, environment, staged
from otelctx.demo.tables import Row, token_table, wire_table
from otelctx.demo.tree import draw
from otelctx.sdk.configure import configure
from otelctx.semconv import EVENT_TRUNCATION
from otelctx.testing.spans import SeenSpan

__all__ = ["run"]

_NO_PAGE: Final = "Built from Go modules it has no page to look at: otelctx show trace ADDRESS draws a trace."
_PIECES: Final = 5  # of text that the vanishing client reads
_WIDTH: Final = 160  # columns where nobody looks at a terminal
_STOPPED: Final = (0, -15)  # uvicorn's own command ends by the signal that stopped it


def run(
    *, jaeger: bool = False, jaeger_url: str, keep: bool = False, as_json: bool = False, tamper: str | None = None
) -> int:
    """Tell the story. Returns the exit status: 1 if a step did not do what it should or two figures disagree.

    ``as_json``: the story goes to standard error, and all figures to standard output as one JSON object.
    """
    terminal = os.isatty(2 if as_json else 1)
    console = Console(highlight=False, soft_wrap=True, width=None if terminal else _WIDTH, stderr=as_json)
    ledger = Ledger(tamper)
    status = asyncio.run(_run(console, _backstage(jaeger, jaeger_url), keep and jaeger, ledger))
    if as_json:
        print(json.dumps(ledger.document(), indent=2))
    return status


def _backstage(jaeger: bool, jaeger_url: str) -> AbstractAsyncContextManager[Backstage]:
    if jaeger:
        return own_jaeger()
    return external(jaeger_url) if os.environ.get(ENDPOINT) else embedded()


async def _run(console: Console, place: AbstractAsyncContextManager[Backstage], keep: bool, ledger: Ledger) -> int:
    async with place as backstage:
        env = environment(backstage.environment, inherit=backstage.inherit)
        for name in [n for n in os.environ if n not in env]:
            del os.environ[name]
        os.environ.update(env | {"OTEL_SERVICE_NAME": check.SERVICES[0]})
        telemetry = configure(logs=False)
        async with staged(env, lambda line: console.print(f"  {line}", style="dim", markup=False)) as stage:
            story = _Story(console, backstage, stage, ledger)
            await story.tell()
        await asyncio.to_thread(telemetry.shutdown)
        story.close()
        status = _verdict(console, ledger)
        if keep:
            console.print(f"\nJaeger stays until you press Ctrl-C. {_NO_PAGE}")
            await _interrupted()
        elif backstage.link is not None and not backstage.inherit:
            console.print("\nThis Jaeger ends now, with its traces: otelctx demo --jaeger --keep leaves it running.")
    return status


class _Story:
    """Takes the steps one by one, keeps their rows for the end."""

    def __init__(self, console: Console, backstage: Backstage, stage: Stage, ledger: Ledger) -> None:
        self._console = console
        self._backstage = backstage
        self._stage = stage
        self._ledger = ledger
        self._client = Client(stage.outer.url, MODEL)
        self._followers = (Follower(), Follower())
        self._rows: list[Row] = []

    async def tell(self) -> None:
        self._console.rule(f"[bold]one session, {len(TURNS)} turns, a window of {WINDOW} tokens")
        with session(SESSION):
            for key, value in KEYS:
                key.set(value)
            truncated = False
            for turn in TURNS:
                tokens, reply = await self._turn(turn)
                truncated |= any(e.name == EVENT_TRUNCATION for e in tokens.events)
            self._ledger.require("the session", "the oldest turns dropped once the window was full", truncated)
            version = (reply.extension.get("window") or {}).get("version", 0)
            await self._too_long()
            await self._gone()
            _, reply = await self._turn(AFTER)
            after = (reply.extension.get("window") or {}).get("version", 0)
            self._ledger.compare(AFTER.name, "versions since the vanished turn, which left none", after - version, 1)
            await self._client.close()
            rows = [row.tokens for row in self._rows]
            check.spent(self._ledger, SPENT.get() or 0, rows, [row.hops for row in self._rows])
            self._summary(SPENT.get() or 0)

    async def _turn(self, turn: Turn) -> tuple[Tokens, Reply]:
        if turn.tier is not None:
            TIER.set(turn.tier)
        reply = await self._client.say(turn)
        _, tokens = await self._show(turn, reply)
        check.answered(self._ledger, turn, reply, tokens)
        return tokens, reply

    async def _too_long(self) -> None:
        reply = await self._client.say(TOO_LONG)
        _, tokens = await self._show(TOO_LONG, reply)
        check.refused(self._ledger, TOO_LONG, reply, tokens)

    async def _gone(self) -> None:
        reply = await self._client.vanish(GONE, _PIECES)
        spans, tokens = await self._show(GONE, reply)
        check.gone(self._ledger, GONE, spans, tokens, self._stage.outer.resets)

    async def _show(self, turn: Turn, reply: Reply) -> tuple[list[SeenSpan], Tokens]:
        """Wait for the step's trace, print it, and check what every step has in common."""
        spans = await wait(self._backstage.source, reply.trace_id, check.complete, self._backstage.within)
        figures = tokens(spans)
        hops = self._hops(reply.trace_id)
        check.whole_trace(self._ledger, turn.name, spans)
        check.on_the_wire(self._ledger, turn, hops, figures)
        self._rows.append(Row(turn.name, turn.via, hops, figures))
        said = reply.text or reply.error.get("message", "")
        self._console.print(f"\n[bold]{turn.name}[/] ({turn.via})", f"“{turn.text[:90]}”", style="blue")
        if said:
            self._console.print(f"  → {' '.join(said.split())[:110]}", markup=False)
        for tree in draw(spans):
            self._console.print(tree, soft_wrap=False)
        if self._backstage.link is not None:
            self._console.print(f"  {self._backstage.link(reply.trace_id)}")
        return spans, figures

    def _hops(self, trace_id: str) -> tuple[Hop, ...]:
        taps = (self._stage.outer, self._stage.inner)
        return tuple(
            hop(exchange, follower)
            for tap, follower in zip(taps, self._followers, strict=True)
            for exchange in tap.of(trace_id)
        )

    def _summary(self, spent: int) -> None:
        self._console.print()
        self._console.print(wire_table(self._rows))
        self._console.print(token_table(self._rows))
        self._console.print(f"Output tokens that came up through both hops to the client: {spent}")

    def close(self) -> None:
        """What can be said only when everything has ended: the last of the telemetry is out."""
        for process in (self._stage.frontend, self._stage.worker):
            self._ledger.require(
                "the end", f"{process.name} ended by itself{process.output()}", process.status in _STOPPED
            )
        receiver = self._backstage.receiver
        if receiver is None:
            return
        taps = (self._stage.outer, self._stage.inner)
        check.frame_bytes(self._ledger, receiver.metrics("otelctx.context.frame.bytes"), taps)
        path = receiver.write_json(Path(tempfile.mkdtemp(prefix="otelctx-demo-")) / "traces.json")
        self._console.print(f"All spans as OTLP/JSON, which Jaeger's upload takes: {path}")


async def _interrupted() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


def _verdict(console: Console, ledger: Ledger) -> int:
    wrong = ledger.verdict()
    if not wrong:
        console.print(f"[green]All {len(ledger.entries)} figures agree with what the processes counted.[/]")
        return 0
    for line in wrong:
        console.print(f"✗ {line}", style="red", markup=False)
    return 1
