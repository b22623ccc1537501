from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelctx.context.keys import KeyRegistry, KeySpec, Value
from otelctx.context.state import EMPTY
from otelctx.delta.baggage import members, parse


@pytest.fixture(scope="module")
def registry() -> KeyRegistry:
    registry = KeyRegistry()
    for name, kind in (("t", str), ("i", int), ("b", bool), ("f", float), ("y", bytes)):
        registry.declare(KeySpec(name, kind, visibility="public"))
    registry.declare(KeySpec("secret", str))
    return registry


def test_only_public_keys_go_into_baggage(registry: KeyRegistry) -> None:
    state = EMPTY.put("t", "gold").put("secret", "x").put("unknown", "y").put("otelctx.incomplete", True)
    assert members(state, registry) == {"t": "gold", "otelctx.incomplete": "true"}


def test_values_from_outside_are_read_by_type_and_private_keys_stay_foreign(registry: KeyRegistry) -> None:
    found = parse(["t=go%20ld, i=-5", "b=true,f=1.5,y=%ff%00;p=1,secret=x,other=a+b;q=2"], registry)
    assert dict(found.ours) == {"t": "go ld", "i": -5, "b": True, "f": 1.5, "y": b"\xff\x00"}
    assert found.foreign == "secret=x,other=a+b;q=2"


@pytest.mark.parametrize(
    "member",
    ["i=x", "i=1.0", "i=", "b=1", "b=True", "f=nan", "t=%ff", "i=" + "9" * 30, "i=" + "9" * 5000, "t=" + "x" * 1025,
     "i=1_000", "f=1_0.0", "i=%D9%A1", "i=%201", "f=%0A1.5", "b=%20true"],
)  # fmt: skip
def test_what_does_not_parse_to_its_type_is_absent(registry: KeyRegistry, member: str) -> None:
    assert parse([member], registry).ours == {}


def test_a_plus_is_a_plus(registry: KeyRegistry) -> None:
    assert parse(["t=a+b"], registry).ours == {"t": "a+b"}


def test_too_much_baggage_is_not_looked_into(registry: KeyRegistry) -> None:
    many = ",".join(f"k{n}=v" for n in range(64))
    large = "k=" + "x" * 8192
    for rest in (many, large):
        found = parse([f"t=gold,{rest}"], registry)
        assert (found.ours, found.foreign) == ({}, rest)  # passed on, ours would be believed by the next hop


def test_the_mark_of_incompleteness_is_read_and_never_foreign(registry: KeyRegistry) -> None:
    found = parse(["p=1,otelctx.incomplete=true,q=2"], registry)
    assert (dict(found.ours), found.foreign) == ({"otelctx.incomplete": True}, "p=1,q=2")


@pytest.mark.parametrize("member", ["%74=gold", "t%20=gold", "+t=gold", "%20t+=gold;p=1", "otelctx%2Eincomplete=true"])
def test_ours_in_another_spelling_are_neither_believed_nor_passed_on(registry: KeyRegistry, member: str) -> None:
    """Some propagators decode names, and write them out in clear."""
    found = parse([f"p=1,{member},%71=2,%2574=3"], registry)
    assert (dict(found.ours), found.foreign) == ({}, "p=1,%71=2,%2574=3")


@given(st.lists(st.binary(max_size=100), max_size=4))
def test_any_bytes_are_survived(lines: list[bytes]) -> None:
    registry = KeyRegistry()
    registry.declare(KeySpec("t", str, visibility="public"))
    parse(lines, registry)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.binary(max_size=60)
    | st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False).map(lambda x: x + 0.0)
)
@example(1e22)
@example(float("-inf"))
def test_values_round_trip_in_characters_that_every_baggage_parser_reads_alike(value: Value) -> None:
    """A plus sign would come out of form decoding as a space, and comma, semicolon and blank end a value."""
    registry = KeyRegistry()
    registry.declare(KeySpec("k", type(value), visibility="public"))
    (text,) = members(EMPTY.put("k", value), registry).values()
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%")
    found = parse([f"k={text}"], registry).ours["k"]
    assert (found, type(found)) == (value, type(value))


def test_raw_bytes_are_read_as_utf8_though_they_should_have_been_encoded(registry: KeyRegistry) -> None:
    assert parse(["t=gr\u00fc\u00df".encode()], registry).ours == {"t": "gr\u00fc\u00df"}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("t=gold" + "," * 63, True),  # 64 members, most of them empty
        ("t=gold" + "," * 64, False),
        ("t=gold" + ",=" * 63, True),
        ("t=gold" + ",=" * 64, False),  # members that are none count as well
        ("t=gold,k=" + "x" * (8192 - 9), True),
        ("t=gold,k=" + "x" * (8192 - 8), False),
        ("t=gold," + " " * (8192 - 7), True),
        ("t=gold," + " " * (8192 - 6), False),
    ],
)
def test_separators_blanks_and_members_that_are_none_count(registry: KeyRegistry, line: str, read: bool) -> None:
    assert parse([line], registry).ours == ({"t": "gold"} if read else {})


def test_lines_are_counted_together_and_in_bytes(registry: KeyRegistry) -> None:
    """Several lines are one list, with commas between them."""
    line = b"t=gold,k=" + "\u00fc".encode() * 2043
    assert len(line) == 4095
    assert parse([line, b"x" * 4096], registry).ours == {"t": "gold"}
    assert parse([line, b"x" * 4097], registry).ours == {}


@pytest.mark.parametrize(
    ("member", "value"),
    [("t=%0d%0aX-Evil:%201", "\r\nX-Evil: 1"), ("t=%00", "\0"), ("t=a%2Cb%3Bc%3Dd", "a,b;c=d"), ("t=%25", "%")],
)
def test_control_characters_that_came_encoded_go_out_encoded(registry: KeyRegistry, member: str, value: str) -> None:
    """A decoded line break that is written raw splits a header, or makes every call of a strict client fail."""
    found = parse([member], registry)
    assert found.ours == {"t": value}
    (text,) = members(EMPTY.put("t", found.ours["t"]), registry).values()
    assert not set(text) & set("\r\n\0,; =")
    assert parse([f"t={text}"], registry).ours == {"t": value}


@pytest.mark.parametrize("member", ["t=%ff", "t=%C3%28", "t=%ED%A0%80", "t=\xff"])
def test_what_is_no_utf8_never_becomes_a_text(registry: KeyRegistry, member: str) -> None:
    assert parse([member], registry).ours == {}


def test_of_a_name_that_comes_twice_the_first_counts(registry: KeyRegistry) -> None:
    assert parse([",, t=gold,", "t=lead,,"], registry).ours == {"t": "gold"}
