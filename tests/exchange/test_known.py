"""What is known by heart gives the same answers as what is worked out, and ends with whatever it rests on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from otelctx.context.current import ContextKey, UpKey, session
from otelctx.context.keys import KeyRegistry, KeySpec
from otelctx.context.scope import Scope
from otelctx.context.state import Window
from otelctx.delta.limits import Limits
from otelctx.delta.receiver import Receiver
from otelctx.delta.sender import LinkState, Sender
from otelctx.exchange.client import Verdict
from otelctx.exchange.known import keep
from otelctx.exchange.node import Node
from otelctx.settings import Settings

HOUR_START = 1_800_000_000.0
TIER = ContextKey("known.tier", str)
SPENT = UpKey("known.spent", int, rule="sum")
LATEST = UpKey("known.latest", str, rule="last")


class Work:
    """How often the link was asked for an offer, told of a reply, and a frame read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        for cls, name in ((Sender, "offer"), (Sender, "close"), (Receiver, "read")):
            patch.setattr(cls, name, self._counted(getattr(cls, name), name))

    def _counted(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.done.append(name)
            return method(*args, **kwargs)

        return counted

    def of(self, call: Callable[[], Any]) -> list[str]:
        """What ``call`` made do."""
        self.done.clear()
        call()
        return self.done.copy()


@pytest.fixture
def work(wire: Any, chat: Scope, monkeypatch: pytest.MonkeyPatch) -> Work:
    """After five exchanges of one session."""
    for _ in range(5):
        wire.call()
    assert wire.kinds[3:] == ["ref", "ref"]
    return Work(monkeypatch)


def test_an_unchanged_session_is_known_by_heart_on_both_sides(wire: Any, work: Work) -> None:
    assert work.of(wire.call) == []
    assert (wire.kinds[-1], wire.outcomes[-1]) == ("ref", "accepted")
    assert (wire.client.ack_kind, wire.client.ack_size) == ("ack", len(wire.server.ack("POST", (), wire.unix)))
    assert wire.server.scope.state.session_id == "chat-42"
    assert wire.server.scope is not wire.call().scope


def test_expiry_is_put_off_by_acks_that_are_known_by_heart(wire: Any, work: Work) -> None:
    for _ in range(200):
        wire.now += 0.4
        wire.call()
    assert set(wire.kinds[4:]) == {"ref"}
    wire.now += 60
    wire.call()
    assert wire.kinds[-1] == "full"


def test_a_base_without_acks_expires_though_its_ref_is_known_by_heart(wire: Any, work: Work) -> None:
    for _ in range(7):
        wire.now += 10
        kind = wire.begin().kind
    assert kind == "full"


def test_each_hour_has_its_own_macs(wire: Any, chat: Scope) -> None:
    wire.now = 3590.0
    for _ in range(5):
        wire.call()
    before = wire.begin().headers, wire.server.ack("POST", (), wire.unix)
    wire.now = 3605.0
    wire.call()
    after = wire.client.headers, wire.server.ack("POST", (), wire.unix)
    assert wire.kinds[-1] == "ref"
    assert before[0] != after[0]
    assert before[1] != after[1]
    wire.now = 3590.0  # a clock that is set back
    assert wire.begin().headers == before[0]


def test_new_keys_sign_what_was_known_by_heart(wire: Any, work: Work) -> None:
    before = wire.begin().headers, wire.server.ack("POST", (), wire.unix)
    fresh = Settings(keys="2:" + "QUJD" * 12 + "," + wire.caller.settings.keys)
    wire.caller.reload(fresh)
    wire.callee.reload(fresh)
    assert "read" in work.of(wire.call)
    assert wire.kinds[-1] == "ref"
    assert before[0] != wire.client.headers
    assert before[1] != wire.server.ack("POST", (), wire.unix)
    assert work.of(wire.call) == []


def test_an_ack_of_a_key_that_went_while_it_was_under_way_proves_nothing(wire: Any, work: Work) -> None:
    exchange = wire.begin()
    acks = [wire.open([value for _, value in exchange.headers]).ack("POST", (), wire.unix)]
    wire.caller.reload(Settings(keys="1:" + "QUJD" * 12))
    assert exchange.close(200, acks, wire.now, HOUR_START + wire.now) is Verdict.DONE
    assert exchange.ack_kind is None


def test_an_answer_is_signed_with_the_keys_of_its_moment(wire: Any, work: Work) -> None:
    inbound = wire.open([value for _, value in wire.begin().headers])
    before = inbound.ack("POST", (), wire.unix)
    wire.callee.reload(Settings(keys="1:" + "QUJD" * 12))
    assert inbound.ack("POST", (), wire.unix) != before


def test_a_base_that_is_dropped_takes_its_line_along(wire: Any, work: Work) -> None:
    wire.callee._bases.clear()
    wire.call()
    assert (wire.kinds[-2:], wire.outcomes[-2:]) == (["ref", "full"], ["refuse", "accepted"])
    wire.call()
    assert (wire.kinds[-1], work.of(wire.call)) == ("ref", [])


def test_another_process_gets_what_it_can_read(wire: Any, work: Work, node: Callable[..., Node]) -> None:
    """Its boot id is another, and it holds nothing."""
    wire.callee = node()
    wire.call()
    assert wire.kinds[-2:] == ["ref", "full"]
    wire.call()
    assert work.of(wire.call) == []


def test_what_one_exchange_learns_of_another_process_holds_for_all(wire: Any, work: Work, node: Any) -> None:
    """Also for those that have begun with the old one and know its ack by heart."""
    early = wire.begin()
    acks = [wire.open([value for _, value in early.headers]).ack("POST", (), wire.unix)]
    wire.callee = node()
    wire.call()
    assert work.of(lambda: early.close(200, acks, wire.now, HOUR_START + wire.now)) == ["close"]


def test_a_penalty_ends_what_was_known_by_heart(wire: Any, work: Work) -> None:
    wire.begin().close(431, [], wire.now, HOUR_START + wire.now)
    assert wire.begin().headers == []
    assert wire.caller.links.get(("http", "localhost", 80)).sender.state is LinkState.W3C_ONLY


def test_lost_bases_are_counted_among_all_compact_frames(wire: Any, work: Work) -> None:
    """The second loss within twenty is one too many; after twenty that were known by heart it is the first again."""
    sender = wire.caller.links.get(("http", "localhost", 80)).sender
    for known, state in ((0, LinkState.AWARE), (25, LinkState.AWARE), (5, LinkState.FULL_ONLY)):
        for _ in range(known):
            wire.call()
        wire.callee._bases.clear()
        wire.call()
        assert (wire.kinds[-2:], sender.state) == (["ref", "full"], state)
        wire.call()


def test_an_origin_that_is_no_longer_allowed_gets_nothing(wire: Any, chat: Scope, node: Callable[..., Node]) -> None:
    wire.caller = node(egress_allow=("api.example.com",))
    for _ in range(6):
        wire.call(host="api.example.com")
    assert wire.kinds[-1] == "ref"
    wire.caller.reload(Settings(keys=wire.caller.settings.keys))
    assert wire.begin(host="api.example.com").headers == []


def test_a_key_that_is_declared_local_stays_from_then_on(chat: Scope, wire: Any) -> None:
    registry = KeyRegistry()
    wire.caller = Node(Settings(keys=wire.callee.settings.keys), registry=registry)
    chat.set(KeySpec("known.secret", str), "s3cret")
    for _ in range(6):
        wire.call()
    assert (wire.kinds[-1], wire.server.scope.state["known.secret"]) == ("ref", "s3cret")
    registry.declare(KeySpec("known.secret", str, "local"))
    wire.call()
    assert (wire.kinds[-1], "known.secret" in wire.server.scope.state) == ("full", False)


def test_an_ack_says_nothing_of_a_state_that_it_was_not_for(chat: Scope, wire: Any) -> None:
    """The key was declared local while the request was under way: what was sent is no longer what would be."""
    registry = KeyRegistry()
    wire.caller = Node(Settings(keys=wire.callee.settings.keys), registry=registry)
    chat.set(KeySpec("known.secret", str), "s3cret")
    for _ in range(6):
        wire.call()
    under_way = wire.begin()
    acks = [wire.open([value for _, value in under_way.headers]).ack("POST", (), wire.unix)]
    registry.declare(KeySpec("known.secret", str, "local"))
    wire.now += 2
    assert under_way.close(200, acks, wire.now, HOUR_START + wire.now) is Verdict.DONE
    wire.call()
    assert wire.kinds[6:] == ["full"]  # and no REF before it to something that nobody holds


def test_a_local_key_does_not_keep_a_session_from_being_known_by_heart(wire: Any, chat: Scope, work: Work) -> None:
    ContextKey("known.local", str, "local").set("here")
    for _ in range(2):
        wire.call()
    assert work.of(wire.call) == []
    assert "known.local" not in wire.server.scope.state


def test_an_overlay_is_another_state_while_it_lasts(wire: Any, chat: Scope, work: Work) -> None:
    with TIER.bound("gold"):
        for _ in range(3):
            wire.call()
            assert wire.server.scope.state["known.tier"] == "gold"
        assert work.of(wire.call) == []
        TIER.set("lead")
        wire.call()
        assert wire.server.scope.state["known.tier"] == "lead"
        wire.caller.registry.declare(KeySpec("known.more", str))
        chat.set(KeySpec("known.more", str), "more")
        wire.call()
        assert dict(wire.server.scope.state).items() >= {"known.tier": "lead", "known.more": "more"}.items()
    for _ in range(2):
        wire.call()
        assert "known.tier" not in wire.server.scope.state
    assert work.of(wire.call) == []


def test_a_scope_that_becomes_incomplete_says_so(wire: Any, work: Work) -> None:
    with session("chat-42") as inner:
        inner.set(KeySpec("otelctx.incomplete", bool), True)
        wire.call()
        assert wire.server.scope.incomplete
    wire.call()
    assert not wire.server.scope.incomplete


def test_a_link_that_is_given_up_is_not_used_any_more(wire: Any, chat: Scope) -> None:
    wire.caller = Node(wire.callee.settings, limits=Limits(link_bytes=8000))
    for _ in range(6):
        wire.call()
    assert wire.kinds[-1] == "ref"
    late, given_up = wire.begin(), wire.caller.links.get(("http", "localhost", 80))
    acks = [wire.open([value for _, value in late.headers]).ack("POST", (), wire.unix)]
    for n in range(5):
        wire.begin(host=f"h{n}")
    assert given_up.sender.bytes == Sender(Limits()).bytes + 130 + len("/v1")  # and one path
    late.close(200, acks, wire.now, HOUR_START + wire.now)
    wire.call()
    assert wire.kinds[-1] == "full"
    assert wire.caller.links.get(("http", "localhost", 80)) is not given_up


def test_a_link_in_use_is_not_the_one_to_go(wire: Any, chat: Scope) -> None:
    wire.caller = Node(wire.callee.settings, limits=Limits(link_bytes=14000))
    for n in range(30):
        wire.now += 2
        wire.call()
        wire.begin(host=f"h{n}")
    assert set(wire.kinds[4:]) == {"ref"}


def test_a_base_in_use_is_not_the_one_to_go(wire: Any, chat: Scope) -> None:
    wire.callee = Node(wire.callee.settings, limits=Limits(base_bytes=8000))
    for n in range(30):
        wire.now += 2
        wire.call()
        with session(f"other-{n}"):
            wire.open([value for _, value in wire.begin().headers])
    assert len(wire.callee._bases) < 30
    assert (set(wire.kinds[4:]), set(wire.outcomes)) == ({"ref"}, {"accepted"})


def test_news_are_told_once_whatever_is_known_by_heart(wire: Any, chat: Scope, work: Work) -> None:
    def spend(scope: Scope) -> None:
        scope.record(SPENT.spec, 5)
        scope.record(LATEST.spec, "now")
        scope.report(Window(used=1, limit=9, version=3))

    wire.call(spend)
    assert (SPENT.get(), LATEST.get(), chat.window) == (5, "now", Window(used=1, limit=9, version=3))
    for _ in range(3):
        wire.call()
        assert SPENT.get() == 5
    assert work.of(wire.call) == []
    wire.server.scope.record(SPENT.spec, 7)  # the scope has ended: nobody hears of it
    wire.call()
    assert SPENT.get() == 5


def test_what_came_after_the_head_waits_for_the_next_ack(wire: Any, chat: Scope, work: Work) -> None:
    inbound = wire.open([value for _, value in wire.begin().headers])
    assert inbound.ack("POST", (), wire.unix)
    inbound.scope.record(SPENT.spec, 3)
    inbound.close()
    with session("another"):
        for _ in range(3):
            wire.call()
        assert SPENT.get() == 0
        assert work.of(wire.call) == []  # what waits is somebody else's
    wire.call()
    assert SPENT.get() == 3
    wire.call()
    assert SPENT.get() == 3


@pytest.mark.parametrize("acks", [[], [b":AAAA:"], [b"", b""]])
def test_another_line_than_the_last_is_read(wire: Any, work: Work, acks: list[bytes | str]) -> None:
    exchange = wire.begin()
    assert work.of(lambda: exchange.close(200, acks, wire.now, HOUR_START + wire.now)) == ["close"]
    assert exchange.ack_kind is None


@pytest.mark.parametrize(
    "more",
    [{"method": "GET"}, {"method": "CONNECT"}, {"body": None}, {"body": 10**6}, {"attempt": 1}, {"path": "/other"}],
)
def test_what_differs_is_not_known_by_heart(wire: Any, work: Work, more: dict[str, Any]) -> None:
    assert work.of(lambda: wire.begin(**more)) == ["offer"]


def test_a_long_path_is_not_worth_remembering(wire: Any, work: Work) -> None:
    path = "/" + "x" * 600
    for _ in range(5):
        wire.call(path=path)
    assert wire.kinds[-1] == "ref"
    assert not [errand for errand in wire.caller.era.standing if path in errand]


def test_an_exchange_that_fails_teaches_nothing(wire: Any, work: Work) -> None:
    wire.begin().failed()
    assert work.of(wire.call) == []


def test_a_deadline_goes_along_with_what_is_known_by_heart(wire: Any, chat: Scope, work: Work) -> None:
    chat.deadline = wire.now + 1.5
    exchange = wire.begin()
    assert (work.done, exchange.timeout) == ([], "1500")


def test_what_is_known_by_heart_is_bounded() -> None:
    remembered: dict[int, int] = {}
    for n in range(10_000):
        assert keep(remembered, n, n) == remembered[n] == n
        assert len(remembered) <= 4096


def test_a_line_that_is_padded_is_not_worth_remembering(wire: Any, work: Work) -> None:
    (line,) = (value for _, value in wire.begin().headers)
    padded = line + " " * 3000
    assert wire.open([padded]).outcome == "accepted"
    assert padded not in wire.callee.era.known


def test_states_that_only_lines_keep_alive_are_few(wire: Any, chat: Scope) -> None:
    wire.callee = Node(wire.callee.settings, limits=Limits(base_bytes=40_000))
    most = 0
    for n in range(60):
        with session(f"s{n}"):
            for _ in range(4):
                wire.call()
        costs = [known.base.cost for known in wire.callee.era.known.values()]
        most = max(most, len(costs))
        assert sum(costs) <= 10_000
    assert most > 5


def test_an_ack_says_where_the_state_is_kept_as_it_goes_out(wire: Any, chat: Scope) -> None:
    """It may be confirmed by the shared tier at any moment."""
    tier = SimpleNamespace(confirmed=False, forget=lambda: None)
    tier.shared = lambda domain, root: tier.confirmed
    wire.callee = Node(wire.callee.settings, shared=tier)
    for _ in range(6):
        wire.call()
    before = wire.server.ack("POST", (), wire.unix)
    tier.confirmed = True
    wire.call()
    assert wire.server.ack("POST", (), wire.unix) != before
