"""While a server runs the signals that end it are its own, and nobody raises them again."""

from __future__ import annotations

import signal

import pytest

from otelctx.sdk.signals import handled


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_servers_and_later_whose_it_was(number: signal.Signals) -> None:
    outer: list[int] = []
    inner: list[int] = []
    before = signal.signal(number, lambda got, _: outer.append(got))
    try:
        with handled(lambda got, _: inner.append(got)):
            signal.raise_signal(number)
        assert (outer, inner) == ([], [number]), "not raised again when the server is down"
        signal.raise_signal(number)
        assert (outer, inner) == ([number], [number])
    finally:
        signal.signal(number, before)
