"""What is set already is used, each signal by itself; what comes later is not hidden."""

from __future__ import annotations

from typing import Any

import pytest

NONE = {f"OTEL_{name}_EXPORTER": "none" for name in ("TRACES", "METRICS", "LOGS")}
SET = {
    "traces": "from opentelemetry.sdk.trace import TracerProvider as P; trace.set_tracer_provider(P())",
    "metrics": "from opentelemetry.sdk.metrics import MeterProvider as P; metrics.set_meter_provider(P())",
    "logs": "from opentelemetry.sdk._logs import LoggerProvider as P; _logs.set_logger_provider(P())",
}


@pytest.mark.parametrize("signal", SET)
def test_one_that_is_set_stays_and_the_other_two_are_made(run: Any, signal: str) -> None:
    out = run(
        f"""
        from opentelemetry import _logs, metrics, trace
        {SET[signal]}
        from otelctx.sdk.configure import configure
        handle = configure("a", logs=False)
        print(sorted(p.signal for p in handle._providers.values() if p.ours))
        """,
        **NONE,
    )
    assert out.strip() == str(sorted({"logs", "metrics", "traces"} - {signal}))


def test_a_provider_that_does_nothing_on_purpose_stays(run: Any) -> None:
    out = run(
        """
        from opentelemetry import trace
        mine = trace.NoOpTracerProvider()
        trace.set_tracer_provider(mine)
        from otelctx.sdk.configure import configure
        handle = configure("a", logs=False)
        assert trace.get_tracer_provider() is mine
        check = handle.check()
        print(check.ok, check.signals[0].state)
        """,
        **NONE,
    )
    assert out.strip() == "False off"


def test_the_one_that_is_set_later_is_refused_by_the_api_and_ours_stays(run: Any) -> None:
    out = run(
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from otelctx.sdk.configure import configure
        configure("a", logs=False)
        ours = trace.get_tracer_provider()
        trace.set_tracer_provider(TracerProvider())
        assert trace.get_tracer_provider() is ours
        """,
        **NONE,
    )
    assert "Overriding of current TracerProvider is not allowed" in out


def test_several_threads_at_once_get_one_handle(run: Any) -> None:
    out = run(
        """
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        from otelctx.sdk.configure import configure
        barrier = Barrier(8)
        def one(_):
            barrier.wait()
            return configure("a", logs=False)
        with ThreadPoolExecutor(8) as pool:
            print(len(set(map(id, pool.map(one, range(8))))))
        """,
        **NONE,
    )
    assert out.strip() == "1", "and no warning of a second provider"


def test_another_name_and_another_life_are_refused_aloud(run: Any) -> None:
    out = run(
        """
        from otelctx.sdk.configure import configure
        handle = configure("a", logs=False)
        assert configure("b") is handle
        handle.shutdown()
        assert configure("a") is handle
        print(handle.check())
        """,
        **NONE,
    )
    assert "configure('b') does nothing: this process is configured as 'a'" in out
    assert "OpenTelemetry takes no second provider in a process" in out
    assert "telemetry has been shut down" in out
