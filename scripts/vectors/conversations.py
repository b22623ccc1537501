"""``conversations.json``: sequences of exchanges between one sender and the workers behind an origin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otelctx.context.state import Window, entry
from scripts.vectors.forms import key_form
from scripts.vectors.parties import Conversation, Step, Worker
from scripts.vectors.samples import BOOT_A, BOOT_B, KEYS, NOW, STATES

__all__ = ["record"]

_S: Final = STATES
_CHAT, _OTHER, _BARE = _S["chat"], _S["chat, other tier"], _S["chat without tier"]


def _warm(conversation: Conversation, at: float = 0, worker: str = "A") -> None:
    """Three exchanges, after which the link is AWARE."""
    for second in range(3):
        conversation.run(Step(at + second, _CHAT, worker))


def _alone(mode: str = "resync") -> Conversation:
    return Conversation({"A": Worker(BOOT_A, mode)})


def _usual() -> Conversation:
    found = _alone()
    turn, spent = entry("session.turn", 1), entry("usage.tokens.output", 16)
    found.run(Step(0, _CHAT, ups=(turn, spent), event=0xA1, window=Window(120, 2048, version=1)))
    found.run(Step(1, _CHAT, ups=(entry("session.turn", 2), spent), event=0xA2, window=Window(240, 2048, version=2)))
    found.run(Step(2, _CHAT))
    found.run(Step(3, _CHAT, ups=(entry("session.turn", 3), spent), event=0xA3, window=Window(360, 2048, version=3)))
    found.run(Step(4, _OTHER))
    found.run(Step(5, _BARE))
    found.run(Step(6, _CHAT))
    thirteen = _S["thirteen keys of the table"]
    found.run(Step(7, thirteen))
    found.run(Step(8, _S["thirteen, one changed"]))
    found.run(Step(9, _S["one"]))
    found.run(Step(10, _S["no session"]))
    return found


def _restart() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _CHAT))
    found.workers["A"] = Worker(BOOT_B)
    found.run(Step(4, _CHAT))
    found.run(Step(5, _CHAT))
    return found


def _restart_without_replay() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _CHAT, body=False))
    found.workers["A"] = Worker(BOOT_B)
    found.run(Step(4, _CHAT, body=False))
    return found


def _balancer() -> Conversation:
    found = Conversation({"A": Worker(BOOT_A), "B": Worker(BOOT_B)})
    for second, worker in enumerate("ABABABAA"):
        found.run(Step(second, _CHAT, worker))
    return found


def _shared() -> Conversation:
    store: dict[bytes, Any] = {}
    found = Conversation({"A": Worker(BOOT_A, shared=store), "B": Worker(BOOT_B, shared=store)})
    for second, worker in enumerate("ABABAB"):
        found.run(Step(second, _CHAT, worker))
    found.run(Step(6, _OTHER, "A"))
    found.run(Step(7, _CHAT, "B"))
    return found


def _unaware() -> Conversation:
    found = _alone()
    for second in range(4):
        found.run(Step(second, _CHAT, ""))
    return found


def _mixed() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _CHAT))
    found.run(Step(4, _CHAT, "", path="/legacy"))
    found.run(Step(5, _CHAT, "", path="/legacy"))
    found.run(Step(6, _CHAT))
    for second in range(7, 10):
        found.run(Step(second, _CHAT, path="/legacy"))
    found.run(Step(10, _CHAT, path="/legacy"))
    found.run(Step(700, _CHAT))
    return found


def _no_evidence() -> Conversation:
    found = _alone()
    _warm(found)
    for second, status in enumerate((502, 429, 304, 302, 500, 404), 3):
        found.run(Step(second, _CHAT, "", status=status))
    found.run(Step(9, _CHAT))
    return found


def _bare_412() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _CHAT, "", status=412))
    found.run(Step(4, _CHAT, "", status=412, idempotent=True))
    return found


def _lost_again() -> Conversation:
    found = _alone()
    _warm(found)
    for second in range(3, 6):
        found.workers["A"] = Worker(BOOT_A)  # the same process, which dropped its bases
        found.run(Step(second, _CHAT))
    found.run(Step(6, _CHAT))
    found.run(Step(700, _CHAT))
    return found


def _header_refused() -> Conversation:
    found = _alone()
    found.run(Step(0, _CHAT, "", status=431))
    found.run(Step(1, _CHAT))
    found.run(Step(599, _CHAT))
    found.run(Step(601, _CHAT))
    return found


def _proceed() -> Conversation:
    found = _alone("proceed")
    _warm(found)
    found.workers["A"] = Worker(BOOT_B, "proceed")
    found.run(Step(3, _CHAT))
    found.run(Step(4, _CHAT))
    found.run(Step(5, _CHAT))
    return found


def _expiry() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(61, _CHAT))
    found.run(Step(122, _CHAT))
    found.run(Step(123, _CHAT))
    return found


def _gets() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _CHAT, method="GET", path="/history"))
    found.run(Step(4, _CHAT, method="GET", path="/history"))
    found.run(Step(5, _CHAT, "", method="GET", path="/static"))
    found.run(Step(6, _CHAT, "", method="GET", path="/static"))
    return found


def _cached() -> Conversation:
    found = _alone()
    _warm(found)
    found.run(Step(3, _OTHER, again=True))
    return found


_CONVERSATIONS: Final[dict[str, tuple[str, Callable[[], Conversation]]]] = {
    "the usual one": ("three FULL, then REF and DELTA; up values and windows in the acks", _usual),
    "a worker restarts": ("412 and NACK before the application; FULL once; another boot id", _restart),
    "a worker restarts, bodies are streams": ("what can't be sent again goes as FULL", _restart_without_replay),
    "a balancer": ("an earlier boot id comes back: bases of one process are of no use", _balancer),
    "a balancer before workers with a shared store": ("bases that are SHARED outlive the change of worker", _shared),
    "an origin that knows nothing": ("FULL and baggage, for ever", _unaware),
    "one path that knows nothing": ("MIXED: that path costs itself alone; ten minutes later AWARE", _mixed),
    "replies that say nothing": ("502, 429, 304, 302, 500 and 404 without ack change nothing", _no_evidence),
    "412 without ack": ("the application's own; but not with an Idempotency-Key", _bare_412),
    "bases lost again and again": ("the second within twenty compact frames: FULL_ONLY for ten minutes", _lost_again),
    "a header too large for something": ("431: once more without it; W3C_ONLY for ten minutes", _header_refused),
    "a worker that proceeds": ("NACK on the application's own response: nothing is sent again", _proceed),
    "a base expires": ("sixty seconds after its last ack", _expiry),
    "GET": ("FULL until that path has acked one", _gets),
    "an ack of another exchange": ("its root is not this frame's: it counts for nothing", _cached),
}


def record() -> dict[str, Any]:
    return {
        "about": (
            "at: seconds after time. link: the sender's state before and after; sends: the kind of frame; frame and "
            "ack: header values; worker null: somebody who knows nothing of otelctx; then: what the sender does "
            "next. Workers change only between exchanges, and boot ids in acks tell which one it was"
        ),
        "keys": [key_form(key) for key in KEYS],
        "time": NOW,
        "conversations": [
            {"name": name, "about": about, "exchanges": make().exchanges}
            for name, (about, make) in _CONVERSATIONS.items()
        ],
    }
