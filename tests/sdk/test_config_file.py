"""``OTEL_CONFIG_FILE``, by opentelemetry-configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otelctx.testing.receiver import OtlpReceiver

pytest.importorskip("opentelemetry.configuration", reason="SDKs before 1.44 have no configuration files")

FILE = """
file_format: "1.0"
resource:
  attributes:
    - {name: service.name, value: from-the-file}
tracer_provider:
  processors:
    - batch: {exporter: {otlp_grpc: {endpoint: "${RECEIVER}"}}}
  sampler: {always_on: {}}
meter_provider:
  readers:
    - periodic: {exporter: {otlp_grpc: {endpoint: "${RECEIVER}"}}}
"""
WORK = """
    from opentelemetry import metrics, trace
    from otelctx.errors import ConfigError
    from otelctx.sdk.configure import configure
    try:
        handle = configure("by-code", logs=False)
    except ConfigError as error:
        print("refused:", error)
        raise SystemExit
    trace.get_tracer("app").start_span("work").end()
    metrics.get_meter("app").create_counter("app.count").add(1)
    print(handle.check())
    handle.shutdown()
    print(handle.dropped())
"""


def test_a_file_says_it_all_and_is_watched_like_anything_else(run: Any, tmp_path: Path) -> None:
    (tmp_path / "otel.yaml").write_text(FILE)
    with OtlpReceiver() as receiver:
        out = run(WORK, OTEL_CONFIG_FILE=str(tmp_path / "otel.yaml"), RECEIVER=receiver.endpoint)
        assert {(s.service, s.name) for s in receiver.spans()} == {
            ("from-the-file", "work"),
            ("from-the-file", "otelctx.check"),
        }
        assert [p.value for p in receiver.metrics("app.count")] == [1]
    lines = out.splitlines()
    assert lines[0].startswith("a test span was delivered")
    assert [line.split()[:2] for line in lines[1:4]] == [["traces", "ok"], ["metrics", "ok"], ["logs", "off"]]
    assert lines[-1] == "{}"


def test_losses_behind_a_file_are_counted(run: Any, tmp_path: Path) -> None:
    (tmp_path / "otel.yaml").write_text(FILE)
    out = run(WORK, OTEL_CONFIG_FILE=str(tmp_path / "otel.yaml"), RECEIVER="http://127.0.0.1:1")
    assert out.startswith("traces do not arrive: UNAVAILABLE")
    assert "'traces': {'shutdown': 2}" in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "nowhere.yaml"),
        ("file_format: [", "YAML"),
        ('file_format: "1.0"\ntracer_provider: 3\n', "tracer_provider"),
        (
            'file_format: "1.0"\ntracer_provider: {processors: [{batch: {exporter: {carrier_pigeon: {}}}}]}',
            "carrier_pigeon",
        ),
    ],
)
def test_a_wrong_file_is_said_plainly(run: Any, tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / ("nowhere.yaml" if text is None else "otel.yaml")
    if text is not None:
        path.write_text(text)
    out = run(WORK, OTEL_CONFIG_FILE=str(path))
    assert "refused: the OpenTelemetry SDK can't be set up: " in out
    assert told in out[out.index("refused") :]
