"""Trace context in metadata that come more than once."""

from __future__ import annotations

import pytest
from opentelemetry import baggage, trace

from otelctx.grpc.metadata import Inbound, extract

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("second", [PARENT, PARENT.replace("0a", "0b", 1), "", "rubbish"])
def test_of_two_parents_none_is_believed(second: str) -> None:
    one = extract(Inbound([("traceparent", PARENT)]))
    assert trace.get_current_span(one).get_span_context().is_valid
    for values in ((PARENT, second), (second, PARENT)):
        both = extract(Inbound([("traceparent", value) for value in values]))
        assert not trace.get_current_span(both).get_span_context().is_valid


def test_of_several_baggage_entries_none_is_lost() -> None:
    """Implementations that take the last one, or the first, lose the rest."""
    found = extract(Inbound([("baggage", "a=1"), ("Baggage", "b=2+2,, "), ("baggage", "")]))
    assert dict(baggage.get_all(found)) == {"a": "1", "b": "2+2"}
