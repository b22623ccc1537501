"""One baggage header: the application's members to the byte, ours where they may go."""

from __future__ import annotations

import logging
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from otelctx.context.current import REGISTRY, ContextKey
from otelctx.exchange.baggage import baggage_line, readable

ContextKey("exchange.line", str, visibility="public")
OURS = {"exchange.line": "gold"}


@pytest.mark.parametrize(
    ("injected", "present", "ours", "line"),
    [
        (None, [], {}, None),
        ("a=1", [], {}, "a=1"),
        ("a=1;p=2", [], OURS, "a=1;p=2,exchange.line=gold"),
        (None, ["a=1, b=2"], OURS, "a=1,b=2,exchange.line=gold"),
        (None, ["a=1", "b=2"], {}, "a=1,b=2"),
        ("a=2", ["a=1,b=2"], {}, "b=2,a=2"),
        ("exchange.line=lead,a=1", [], {}, "a=1"),
        ("exchange.line=lead", [], OURS, "exchange.line=gold"),
        (None, [" exchange.line = lead "], {}, None),
        (None, ["otelctx.incomplete=true"], {}, None),
        (None, ["exchange%2Eline=lead,a%2E=1"], OURS, "a%2E=1,exchange.line=gold"),
        ("", [",, ,"], {}, None),
    ],
)
def test_members_are_joined(injected: str | None, present: list[str], ours: dict[str, str], line: str | None) -> None:
    assert baggage_line(injected, present, ours, REGISTRY) == line


def test_ours_are_left_out_and_never_the_applications_when_there_is_no_room() -> None:
    theirs = ",".join(f"k{n}=v" for n in range(64))
    assert baggage_line(theirs, [], OURS, REGISTRY) == theirs
    large = "k=" + "v" * 8185
    assert baggage_line(large, [], OURS, REGISTRY) == large


member = st.from_regex(r"[a-z]{1,8}=[!-+\--:<-~]{0,8}(;[a-z]+)?", fullmatch=True)


@given(st.lists(member, max_size=8, unique_by=lambda text: text.partition("=")[0]))
def test_other_peoples_members_are_kept_to_the_byte(members: list[str]) -> None:
    line = baggage_line(None, [",".join(members)] if members else [], OURS, REGISTRY)
    assert line == ",".join([*members, "exchange.line=gold"])


def test_of_a_member_that_was_not_changed_the_properties_stay() -> None:
    """The propagator has no place for them: it makes them part of the value, and writes that out encoded."""
    assert baggage_line("a=v%3Bp%3D1,b=new", ["a=v;p=1, b=old;q"], {}, REGISTRY) == "a=v;p=1,b=new"


# what the propagator reads, and what it writes

SDK = W3CBaggagePropagator()


def read(line: str) -> dict[str, object]:
    """What the application sees of ``line``."""
    found = readable(line)
    return {} if found is None else dict(baggage.get_all(SDK.extract({"baggage": [found]}, Context())))


def written(name: str, value: str) -> str | None:
    carrier: dict[str, str] = {}
    SDK.inject(carrier, baggage.set_baggage(name, value, Context()))
    return baggage_line(carrier.get("baggage"), [], {}, REGISTRY)


@pytest.mark.parametrize(
    ("line", "value", "out"),
    [("k=a+b", "a+b", "k=a%2Bb"), ("k=a%20b", "a b", "k=a%20b"), ("k=a%2Bb", "a+b", "k=a%2Bb"), ("k=1+1%3D2", "1+1=2",
     "k=1%2B1%3D2")],
)  # fmt: skip
def test_a_plus_is_a_plus_and_a_blank_a_blank_through_the_sdk(line: str, value: str, out: str) -> None:
    """It would read the first as a blank, and write the second as a plus sign."""
    assert read(line) == {"k": value}
    assert written("k", value) == out


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).map(str.strip).filter(bool))
@example("+ +")
@example("100%2B")
def test_every_text_goes_through_two_hops_as_it_was(value: str) -> None:
    line = written("k", value)
    assert line is not None
    assert "+" not in line
    assert read(line) == {"k": value}


@pytest.mark.parametrize(
    "member",
    ["s3cret", "s3cret with blanks", "=s3cret", "k=s3cret\"", "k\xe9=s3cret", "k=\xe9s3cret", "k=s3cret s3cret",
     "s3cret" * 1000 + "=v", "k=" + "s3cret" * 700, "k=v;s3cret s3cret", "k=a\\s3cret", "s3cret;=", "\x00=s3cret"],
)  # fmt: skip
def test_what_can_not_be_read_is_left_out_and_not_logged(member: str, caplog: pytest.LogCaptureFixture) -> None:
    """The propagator writes the text of each bad member to the log: a stranger's to choose, and a user's to lose."""
    caplog.set_level(logging.DEBUG)
    assert read(f"a=1,{member},b=2") == {"a": "1", "b": "2"}
    assert caplog.records == []


@given(st.text(st.characters(max_codepoint=255), max_size=200) | st.text("=;, \t+%ab1", max_size=60))
def test_whatever_comes_the_sdk_reads_without_complaint(line: str) -> None:
    class Complaints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage())

    handler, logger = Complaints(), logging.getLogger("opentelemetry.baggage")
    logger.addHandler(handler)
    try:
        read(line)
    finally:
        logger.removeHandler(handler)


def test_blanks_between_members_cost_no_more_than_other_bytes() -> None:
    """Left to the propagator's own pattern, 8 kB of them take the square of that."""
    blanks = "a=1" + " \t" * 4000 + "x,b=2"
    began = process_time()
    for _ in range(20):
        assert read(blanks) == {"b": "2"}
    assert process_time() - began < 1.0


def test_more_members_than_are_read_are_left_out_whole() -> None:
    line = ",".join(f"k{n}=v" for n in range(300))
    assert list(read(line)) == [f"k{n}" for n in range(180)]
    assert readable("k=" + "+" * 4000) is None, "too long once it is coded"
    assert readable("k=v," + "x=" + "v" * 8190) is None
