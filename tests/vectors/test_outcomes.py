"""What a receiver makes of header lines, and whole conversations, step by step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from otelctx.context.state import State
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, decode_frame, from_header, split_mac
from otelctx.delta.limits import Limits
from otelctx.delta.messages import AckKind
from otelctx.delta.receiver import NeedBase, Receiver
from otelctx.delta.sender import Reply, Sender
from otelctx.policy.trust import ACK, FRAME, Keyring
from scripts.vectors.forms import read_entry
from scripts.vectors.outcomes import outcome_form

Load = Callable[[str], dict[str, Any]]
Ring = Callable[[dict[str, Any]], Keyring]


def _state(forms: list[dict[str, Any]]) -> State:
    return State({form["key"]: read_entry(form) for form in forms})


def test_every_case_has_its_outcome(vectors: Load, ring: Ring) -> None:
    recording = vectors("outcomes")
    keys, now = ring(recording), recording["time"]
    for case in recording["cases"]:
        bases = BaseCache(Limits())
        for base in recording["held"]:
            bases.put(base["domain"], _state(base["state"]), "192.0.2.1")
        receiver = Receiver(bases, on_unknown_base=case["on_unknown_base"])
        outcome = receiver.open(
            case["lines"],
            client="192.0.2.1",
            trusted=case["trusted"],
            verify=lambda body, mac: keys.verify(FRAME, body, mac, now),
        )
        if isinstance(outcome, NeedBase):
            outcome = receiver.give_up(outcome)
        form = outcome_form(outcome)
        assert form == {name: case[name] for name in form}, case["name"]


def test_every_row_of_the_receivers_table_is_recorded(vectors: Load) -> None:
    seen = {(case["outcome"], case.get("reason")) for case in vectors("outcomes")["cases"]}
    assert seen == {
        ("accepted", None),
        *(("ignored", reason) for reason in ("malformed", "oversized", "repeated", "mac", "untrusted")),
        *(("run", reason) for reason in ("LIMIT", "TABLE", "ROOT", "UNKNOWN_BASE")),
        ("refuse", "UNKNOWN_BASE"),
        ("refuse", "ROOT"),
    }


def test_a_sender_that_hears_the_recorded_acks_says_what_was_recorded(vectors: Load, ring: Ring) -> None:
    recording = vectors("conversations")
    keys = ring(recording)
    for conversation in recording["conversations"]:
        sender = Sender(Limits())
        for step in conversation["exchanges"]:
            where = (conversation["name"], step["at"])
            if step["sends"] == "none" and step["resend"]:  # the repetition without our headers is nobody's business
                continue
            state, safe = _state(step["state"]), step["method"] in ("GET", "HEAD")
            full = step["resend"] or not step["replayable"]
            offer = sender.offer(state, path=step["path"], safe=safe, must_be_full=full, now=step["at"])
            assert sender.state.name == step["link"], where
            assert offer.baggage is step["baggage"], where
            assert (offer.frame.kind.name if offer.frame else "none") == step["sends"], where
            if offer.frame is not None:
                body, mac = split_mac(from_header(step["frame"]))
                assert decode_frame(body) == offer.frame, where
                assert mac is not None
                assert keys.verify(FRAME, body, mac, recording["time"] + step["at"]) == "default"
            ack = None
            if step["ack"] is not None:
                body, mac = split_mac(from_header(step["ack"]))
                assert mac is not None
                assert keys.verify(ACK, body, mac, recording["time"] + step["at"]) == "default", where
                ack = decode_ack(body)
            reply = Reply(step["status"], ack, step["replayable"] and not step["resend"], safe, step["idempotent"])
            verdict, lost = sender.close(offer, reply, step["at"])
            assert (verdict.name, lost, sender.state.name) == (step["then"], step["lost"], step["link_after"]), where


def test_a_refused_frame_is_followed_by_the_same_state_as_a_full_that_is_accepted(vectors: Load) -> None:
    refused = 0
    for conversation in vectors("conversations")["conversations"]:
        exchanges = conversation["exchanges"]
        for step, following in pairwise(exchanges):
            if step["outcome"] is None or step["outcome"]["outcome"] != "refuse":
                continue
            refused += 1
            assert (step["status"], step["then"]) == (412, "RESEND_FULL")
            body, _ = split_mac(from_header(step["ack"]))
            assert decode_ack(body).kind is AckKind.NACK
            assert (following["resend"], following["sends"]) == (True, "FULL")
            assert following["state"] == step["state"]
            assert following["outcome"]["outcome"] == "accepted"
    assert refused >= 3
