from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from otelctx.telemetry import sanitize
from otelctx.telemetry.feed import Feed, Item


def test_the_feed_is_bounded_and_gives_the_newest_oldest_first() -> None:
    feed = Feed(3)
    for n in range(5):
        feed.add(Item(n, "e", {}))
    assert [i.time for i in feed.recent()] == [2, 3, 4]
    assert [i.time for i in feed.recent(2)] == [3, 4]
    assert feed.recent(0) == []
    assert len(feed) == 3


@given(st.text(st.characters(), max_size=40) | st.binary(max_size=40), st.integers(1, 40))
@example("\ud800\udc00", 5)
@example("a\ud800", 5)
@example(b"\x00\xff\\x78", 8)
def test_any_text_becomes_bounded_utf8_without_nul(value: str | bytes, limit: int) -> None:
    out = sanitize.text(value, limit)
    assert len(out.encode()) >= len(out) <= limit
    assert "\0" not in out


def test_ordinary_text_is_left_alone_and_a_cut_is_visible() -> None:
    assert sanitize.text("grüße 👋") == "grüße 👋"
    assert sanitize.text("x" * 10, 4) == "xxx…"


@given(st.sampled_from(["token", "access_token", "api_key", "API-KEY", "sig", "X-Goog-Signature", "password", "code"]))
def test_credentials_in_a_query_are_redacted_wherever_they_stand(name: str) -> None:
    for query in (f"{name}=s3cret", f"a=1&{name}=s3cret&b=2", f"a=1;{name}=s3cret"):
        out = sanitize.query(query)
        assert "s3cret" not in out
        assert f"{name}=REDACTED" in out
    assert sanitize.query(f"my{name}=1&b=2") == f"my{name}=1&b=2"


def test_a_credential_cut_by_the_limit_is_redacted_too() -> None:
    assert sanitize.query(b"token=" + b"x" * 5000, 100) == "token=REDACTED"
