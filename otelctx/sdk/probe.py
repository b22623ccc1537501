"""One exporter asked by an empty request through its own connection."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricsData

from otelctx.sdk.advice import advise, briefly
from otelctx.sdk.pipeline import Pipeline
from otelctx.sdk.report import SignalCheck, State

__all__ = ["Probe"]

# Further than an exporter's own time-out, so that it is the exporter who says that there was no answer.
_GRACE: Final = 0.5


class Probe:
    """An empty export request, on its way in a thread of its own from the start."""

    def __init__(self, pipeline: Pipeline, timeout: float) -> None:
        self._pipeline = pipeline
        self._timeout = timeout
        self._done = Event()
        self._error: str | None = None
        if pipeline.protocol is None:
            self._done.set()
            return
        Thread(target=self._run, name=f"otelctx-check-{pipeline.signal}", daemon=True).start()

    def result(self, timeout: float) -> SignalCheck:
        """Waits at most ``timeout`` seconds."""
        pipeline = self._pipeline
        error = self._error if self._done.wait(timeout + _GRACE) else f"no answer within {self._timeout:g} s"
        if error is not None:
            return self._answer("failed", briefly(error), advise(error, pipeline.protocol))
        return self._answer("ok", "accepted" if pipeline.protocol else "not asked, it does not speak OTLP")

    def _answer(self, state: State, detail: str, advice: str = "") -> SignalCheck:
        pipeline = self._pipeline
        return SignalCheck(
            pipeline.signal,
            state,
            detail,
            exporter=pipeline.name,
            endpoint=pipeline.endpoint,
            advice=advice,
            last_error=pipeline.last_error and briefly(pipeline.last_error),
            dropped=dict(pipeline.dropped),
        )

    def _run(self) -> None:
        empty: Any = MetricsData([]) if self._pipeline.signal == "metrics" else []
        try:
            if self._pipeline.protocol == "grpc" and self._by_grpc(empty):
                return
            if not self._pipeline.send(empty, self._fail):
                self._fail("the exporter failed")
        except Exception as error:  # whatever an exporter raises is the answer
            self._fail(_words(error))
        finally:
            self._done.set()

    def _by_grpc(self, empty: Any) -> bool:
        """By the exporter's stub, once: an exporter repeats itself for seconds, and older ones tell only the code."""
        exporter = self._pipeline.exporter
        call = getattr(getattr(exporter, "_client", None), "Export", None)
        translate = getattr(exporter, "_translate_data", None)
        if call is None or translate is None:
            return False
        call(translate(empty), metadata=getattr(exporter, "_headers", None), timeout=self._timeout)
        return True

    def _fail(self, error: str) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()


def _words(error: Exception) -> str:
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        return f"{getattr(code(), 'name', code())}: {details()}"
    return f"{type(error).__name__}: {error}"
