"""Whatever comes in, what goes out can be encoded by the SDK's own OTLP encoder, is bounded and tells no credential."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otelctx.telemetry import sanitize

ANY_TEXT = st.text(st.characters(), max_size=60) | st.binary(max_size=60)


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no")


SCALARS = st.booleans() | st.integers() | st.integers(2**62, 2**70) | st.floats() | ANY_TEXT | st.none()
ANYTHING = st.recursive(
    SCALARS | st.builds(Unsayable) | st.builds(object),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def encoded(attributes: Any) -> dict[str, Any]:
    """Through the SDK and the protobuf encoder that exporters use, and back."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.get_tracer("t").start_span("s", attributes=attributes).end()
    request = encode_spans(exporter.get_finished_spans())
    assert request.SerializeToString()
    (span,) = request.resource_spans[0].scope_spans[0].spans
    return {a.key: a.value for a in span.attributes}


@given(ANY_TEXT, st.integers(1, 80))
@example("\ud800\udc00", 5)
@example("a\ud800", 5)
@example(b"\x00\xff\\x78", 8)
@example("😀😀", 2)
def test_any_text_becomes_a_bounded_attribute(value: str | bytes, limit: int) -> None:
    for clean in (sanitize.text, sanitize.path, sanitize.query):
        out = clean(value, limit)
        assert "\0" not in out
        assert encoded({"a": out})["a"].string_value == out
    assert len(sanitize.text(value, limit)) <= limit


@given(st.dictionaries(st.text(st.characters(), max_size=300), ANYTHING, max_size=6))
@example({"a": 2**64, "b": [2**64, 1], "c": ["x", 1], "d": "\ud800", "\udfff": 1, "e": float("nan")})
def test_any_attributes_of_somebody_else_are_encodable(given: dict[str, Any]) -> None:
    clean = sanitize.attributes(given)
    assert set(encoded(clean)) == set(clean)
    for key, value in clean.items():
        assert len(key) <= 256
        assert not isinstance(value, str) or len(value) <= 1024


@given(st.dictionaries(st.text("abc.", min_size=1), st.booleans() | st.floats() | st.integers(-(2**63), 2**63 - 1)))
def test_what_can_be_carried_is_left_as_it_is(given: dict[str, Any]) -> None:
    assert repr(sanitize.attributes(given)) == repr(given)


def test_of_long_lists_the_beginning_is_kept_and_mixed_ones_become_text() -> None:
    clean = sanitize.attributes({"long": list(range(100)), "mixed": [1, "a", None], "none": None, "": 1})
    assert clean == {"long": list(range(32)), "mixed": ["1", "a", "None"]}


# credentials

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/path",
        f"https://{SECRET}@host",
        f"/fetch/https://user:{SECRET}@host/path",
        f"next=https://user:{SECRET}@host&b=2",
        f"ftp://u:{SECRET}@h/",
        f"redis://:{SECRET}@cache:6379/0",
    ],
)
def test_who_stands_before_a_host_is_not_told(url: str) -> None:
    for clean in (sanitize.path, sanitize.query):
        out = clean(url)
        assert SECRET not in out
        assert "://REDACTED:REDACTED@" in out


@given(st.integers(1, 60))
def test_nor_where_the_limit_cuts_before_the_at_sign(limit: int) -> None:
    url = f"/go/https://user:{SECRET * 3}@host/path"
    assert SECRET[:4] not in sanitize.path(url, limit)


def test_an_at_sign_elsewhere_is_nothing() -> None:
    for ordinary in ("/users/@me", "/a@b/c", "mail=a@b.c", "https://host/@me"):
        assert sanitize.path(ordinary) == ordinary


@given(st.integers())
def test_integers_have_64_bits(value: int) -> None:
    assert encoded({"n": sanitize.integer(value)})["n"].int_value == max(-(2**63), min(value, 2**63 - 1))


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("%74oken=abc&x=1", "%74oken=REDACTED&x=1"),
        ("a=%20b&p%61ssword=2;x=3", "a=%20b&p%61ssword=REDACTED;x=3"),
        ("%2574oken=4&%=1&%zz=3", "%2574oken=4&%=1&%zz=3"),  # decoded once, as servers do
    ],
)
def test_a_credential_whose_name_is_percent_encoded_is_redacted_too(sent: str, kept: str) -> None:
    assert sanitize.query(sent) == kept
