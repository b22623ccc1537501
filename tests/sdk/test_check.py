"""What is said of several signals that go to one collector."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otelctx.sdk.advice import START, advise
from otelctx.sdk.check import more_telling
from otelctx.sdk.pipeline import Signal
from otelctx.sdk.report import SignalCheck

REFUSED = "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv6:[::1]:4318: Connection refused"
HTTP = "UNAVAILABLE: ipv4:127.0.0.1:4318: Failed parsing HTTP/2 (Trying to connect an http1.x server)"


def failed(signal: Signal, said: str, endpoint: str = "localhost:4318") -> SignalCheck:
    return SignalCheck(signal, "failed", said, "grpc", endpoint, advise(said, "grpc"))


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_where_one_signal_was_told_more_the_other_says_it_too(order: int) -> None:
    asked = [failed("traces", REFUSED), failed("metrics", HTTP)][::order]
    found = {s.signal: s for s in more_telling(asked)}
    assert [s.signal for s in more_telling(asked)] == [s.signal for s in asked]
    assert {s.detail for s in found.values()} == {HTTP}
    assert all("OTEL_EXPORTER_OTLP_PROTOCOL=" in s.advice for s in found.values())


def test_a_refused_connection_stays_one_where_nobody_was_told_more() -> None:
    refused = failed("traces", REFUSED)
    fine = replace(failed("metrics", HTTP), state="ok", advice="")
    for other in (failed("metrics", REFUSED), failed("metrics", HTTP, "elsewhere:4317"), fine):
        assert more_telling([refused, other]) == [refused, other]
    assert refused.advice == START
