"""Nothing that a caller chooses can become a time series."""

from __future__ import annotations

import pytest

from otelctx import semconv
from otelctx.asgi.capture import MAX_KEYS

# Of the conventions, and bounded by them or by the deployment.
BOUNDED = {semconv.GEN_AI_REQUEST_MODEL}
UNBOUNDED = (".id", "_id", ".session", "client.address", "url.full", "url.path", "url.query", "user_agent.original")


@pytest.mark.parametrize("name", semconv.METRICS)
def test_no_context_key_and_no_id_is_an_attribute_of_a_metric(name: str) -> None:
    """Ids of users and sessions as labels have filled disks; a label that a client writes fills memory."""
    attributes = set(semconv.METRICS[name].attributes)
    assert not attributes & (set(semconv.STATIC_TABLE.values()) - BOUNDED)
    assert not [
        a for a in attributes if a.endswith((".id", "_id", ".session", "url.path", "url.full", "client.address"))
    ]


@pytest.mark.parametrize("kind", semconv.SPANS)
def test_no_span_has_a_hundred_attributes_whatever_is_recorded(kind: str) -> None:
    """The SDK lets the oldest go at 128, and an application has some of its own. Of a template, as of headers, there
    are as many as are ever captured."""
    rows = [semconv.ATTRIBUTES[key] for key in semconv.SPANS[kind].attributes]
    assert sum(MAX_KEYS if row.template else 1 for row in rows) < 100
