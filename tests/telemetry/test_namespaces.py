"""Whose metric is whose: a worker counts its tokens under names of its own."""

from __future__ import annotations

from otelctx import semconv


def test_a_server_records_nothing_under_a_clients_name() -> None:
    """Else the tokens of one answer are counted by whoever asked and by whoever answered, and the sum is twice them."""
    names = set(semconv.METRICS)
    assert {"gen_ai.server.request.duration", "gen_ai.server.time_to_first_token"} <= names
    assert [name for name in names if name.startswith("gen_ai.client.")] == []
    ours = {name for name in names if name.partition(".")[0] not in ("http", "rpc", "gen_ai")}
    assert [name for name in ours if not name.startswith("otelctx.")] == []
