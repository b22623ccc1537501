"""One sender, several workers behind its origin, and what each of them says in each exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from otelctx.context.state import Entry, State, Window
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, encode_ack, encode_frame, from_header, split_mac
from otelctx.delta.limits import BASE_BYTES, Limits
from otelctx.delta.messages import Ack, AckKind, Held
from otelctx.delta.receiver import Accepted, Ignored, NeedBase, Receiver, Refuse
from otelctx.delta.sender import Reply, Sender, Verdict
from otelctx.policy.trust import FRAME
from scripts.vectors.forms import state_form
from scripts.vectors.outcomes import outcome_form
from scripts.vectors.samples import NOW, RING, seal_ack, seal_frame

__all__ = ["Conversation", "Step", "Worker"]

_SAFE: Final = ("GET", "HEAD")


class Worker:
    """A process that answers acks. ``shared``: states it accepts are kept where every worker finds them."""

    def __init__(self, boot_id: int, mode: Any = "resync", shared: dict[bytes, State] | None = None) -> None:
        self.boot_id = boot_id
        self.shared = shared
        self.receiver = Receiver(BaseCache(Limits()), on_unknown_base=mode)

    def answer(self, line: str, step: Step, now: float) -> tuple[dict[str, Any], int, list[str]]:
        """What it makes of ``line``, its status and its ``otelctx-ack`` lines."""
        outcome = self.receiver.open(
            [line], client="192.0.2.1", trusted=False, verify=lambda body, mac: RING.verify(FRAME, body, mac, now)
        )
        if isinstance(outcome, NeedBase):
            found = [s for root, s in (self.shared or {}).items() if root.startswith(outcome.root)]
            if found:
                outcome = self.receiver.resume(outcome, found[0], client="192.0.2.1")
            else:
                outcome = self.receiver.give_up(outcome)
        if isinstance(outcome, Accepted):
            held = outcome.held
            if self.shared is not None:
                self.shared[outcome.state.root] = outcome.state
                held = Held.SHARED
            ack = Ack(
                AckKind.ACK, outcome.state.root[:BASE_BYTES], held, self.boot_id, event=step.event, ups=tuple(step.ups),
                window=step.window,
            )  # fmt: skip
            lines = [seal_ack(encode_ack(ack, signed=True), now=now)]
            return {**outcome_form(outcome), "held": held.name}, step.status, lines
        if isinstance(outcome, Ignored | NeedBase):
            return outcome_form(outcome), step.status, []
        ack = Ack(AckKind.NACK, outcome.root[:BASE_BYTES], boot_id=self.boot_id, reason=outcome.reason, final=True)
        status = 412 if isinstance(outcome, Refuse) else step.status
        return outcome_form(outcome), status, [seal_ack(encode_ack(ack, signed=True), now=now)]


@dataclass(frozen=True)
class Step:
    """One request. ``worker``: who answers, or ``""`` for somebody who knows nothing of otelctx. ``again``: its ack is
    replaced by that of the exchange before, as a cache would."""

    at: float
    state: State
    worker: str = "A"
    method: str = "POST"
    path: str = "/chat"
    status: int = 200
    body: bool = True
    idempotent: bool = False
    ups: Sequence[Entry] = ()
    event: int = 0
    window: Window | None = None
    again: bool = False


@dataclass
class Conversation:
    """Runs steps, and writes down what goes over the wire."""

    workers: dict[str, Worker]
    sender: Sender = field(default_factory=lambda: Sender(Limits()))
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    _acks: list[str] = field(default_factory=list)

    def run(self, step: Step) -> None:
        verdict = self._exchange(step, resend=False)
        if verdict is Verdict.RESEND_FULL:
            self._exchange(step, resend=True)
        elif verdict is Verdict.RESEND_PLAIN:
            self._plain(step)

    def _exchange(self, step: Step, *, resend: bool) -> Verdict:
        safe = step.method in _SAFE
        full = resend or not step.body
        offer = self.sender.offer(step.state, path=step.path, safe=safe, must_be_full=full, now=step.at)
        before = self.sender.state.name  # of now: a time that is over ends with the offer
        line = None if offer.frame is None else seal_frame(encode_frame(offer.frame), now=NOW + step.at)
        outcome, status, lines = None, step.status, list[str]()
        if line is not None and step.worker:
            outcome, status, lines = self.workers[step.worker].answer(line, step, NOW + step.at)
        self._acks, lines = lines, self._acks if step.again else lines
        ack = decode_ack(split_mac(from_header(lines[0]))[0]) if lines else None
        idempotent = safe or step.idempotent
        reply = Reply(status, ack, step.body and not resend, safe, idempotent)
        verdict, lost = self.sender.close(offer, reply, step.at)
        self.exchanges.append(
            {
                "at": step.at,
                "resend": resend,
                "method": step.method,
                "path": step.path,
                "replayable": step.body,
                "idempotent": idempotent,
                "state": state_form(step.state),
                "link": before,
                "sends": "none" if offer.frame is None else offer.frame.kind.name,
                "baggage": offer.baggage,
                "frame": line,
                "worker": step.worker or None,
                "outcome": outcome,
                "status": status,
                "ack": lines[0] if lines else None,
                "lost": lost,
                "then": verdict.name,
                "link_after": self.sender.state.name,
            }
        )
        return verdict

    def _plain(self, step: Step) -> None:
        """The repetition without any header of ours teaches nothing."""
        last = self.exchanges[-1]
        self.exchanges.append(
            {
                **last, "resend": True, "link": last["link_after"], "sends": "none", "baggage": False, "frame": None,
                "outcome": None, "status": 200, "ack": None, "lost": False, "then": Verdict.DONE.name,
            }
        )  # fmt: skip
