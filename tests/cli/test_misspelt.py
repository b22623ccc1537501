"""A variable that nobody reads is said, with the one that was meant; what others read is nobody's slip."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otelctx.cli import doctor
from otelctx.cli.misspelt import misspelt, of_opentelemetry
from otelctx.settings import VARIABLES, Settings, given

ROOT = Path(__file__).parents[2]


class Asked(Mapping[str, str]):
    """An empty environment that remembers which names it was asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_what_is_known_is_what_is_read() -> None:
    asked = Asked()
    Settings.from_env(asked)
    assert asked.names - {"HOME", "XDG_CACHE_HOME"} == VARIABLES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OTELCTX_KEY", "OTELCTX_KEYS"),
        ("OTELCTX_KEY_FILE", "OTELCTX_KEYS_FILE"),
        ("OTELCTX_TRUSTED_CLIENT", "OTELCTX_TRUSTED_CLIENTS"),
        ("OTELCTX_TRUSTED_PROXY", "OTELCTX_TRUSTED_PROXIES"),
        ("OTELCTX_EGRES_ALLOW", "OTELCTX_EGRESS_ALLOW"),
        ("OTELCTX_EXCLUDE", "OTELCTX_EXCLUDED"),
        ("OTELCTX_EVENT", "OTELCTX_EVENTS"),
        ("otelctx_keys", "OTELCTX_KEYS"),
        ("OTEL_CTX_KEYS", "OTELCTX_KEYS"),
        ("OTELCTXKEYS", "OTELCTX_KEYS"),
        ("OTELCTX_JAEGER_BIND", None),
        ("OTEL_EXPORTER_OLTP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("OTEL_METRICS_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_INTERVAL"),
        ("OTEL_TRACE_EXPORTER", "OTEL_TRACES_EXPORTER"),
        ("OTEL_TRACES_SAMPLER_ARGS", "OTEL_TRACES_SAMPLER_ARG"),
        ("OTEL_SERVICENAME", "OTEL_SERVICE_NAME"),
        ("otel_service_name", "OTEL_SERVICE_NAME"),
        (
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGES_CONTENT",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        ),
    ],
)
def test_the_name_that_was_meant(name: str, meant: str | None) -> None:
    assert list(misspelt([name], of_opentelemetry())) == [(name, meant)]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(VARIABLES),
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT",
        "OTEL_PROPAGATORS",
        "OTEL_PYTHON_FASTAPI_EXCLUDED_URLS",
        "OTEL_PYTHON_LOG_CORRELATION",
        "OTEL_PYTHON_LOG_LEVEL",
        "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS",
        "OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT",
        "OTEL_EXPORTER_JAEGER_ENDPOINT",
        "OTEL_EXPORTER_OTLP_SPAN_INSECURE",
        "OTEL_JAVAAGENT_DEBUG",
        "OTEL_LOGS_SAMPLER",
        "OTELCOL_CONFIG",
    ],
)
def test_what_somebody_reads_is_no_slip(name: str) -> None:
    assert list(misspelt([name], of_opentelemetry())) == []


def test_variables_of_what_is_shipped_beside_the_package_are_like_none_of_its_own() -> None:
    """Those of the collector's files and of the tests may stand in the same shell."""
    text = "".join(path.read_text() for path in (ROOT / "collector").rglob("*.y*ml"))
    names = {*re.findall(r"OTELCTX_[A-Z_]+", text), "OTELCTX_E2E"} - VARIABLES
    assert len(names) > 5
    assert {meant for _, meant in misspelt(sorted(names), ())} == {None}


def test_an_empty_variable_counts_as_unset() -> None:
    assert given({"OTELCTX_KEY": "", "OTELCTX_EVENT": "span", "HOME": "/"}) == ["OTELCTX_EVENT"]


def test_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_collector", lambda: iter(()))
    monkeypatch.setenv("OTELCTX_KEY", "1:secret")
    monkeypatch.setenv("OTELCTX_BIND", "127.0.0.1")
    found = {f.what: (f.verdict, f.detail) for f in doctor.findings()}
    assert found["OTELCTX_KEY"] == ("problem", "nobody reads it: is OTELCTX_KEYS meant?")
    assert found["OTELCTX_BIND"] == ("note", "nothing in this package reads it")
    assert "secret" not in str(found)
