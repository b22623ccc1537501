"""What exporters say, and what a person is told to do about it."""

from __future__ import annotations

import pytest

from otelctx.sdk.advice import advise, briefly

# As said by the collector 0.161 and the exporters of 1.40 and 1.45.
SAID = [
    ("grpc", "UNAVAILABLE: failed to connect to all addresses; Connection refused", "start the collector"),
    ("http/protobuf", "NewConnectionError(... [Errno 111] Connection refused)", "start the collector"),
    ("grpc", "Failed parsing HTTP/2 (...) (Trying to connect an http1.x server)", "PROTOCOL=http/protobuf"),
    ("http/protobuf", "('Connection aborted.', ConnectionResetError(104, 'Connection reset'))", "PROTOCOL=grpc"),
    ("grpc", "failed to connect to all addresses; SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "write http://"),
    ("http/protobuf", "SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong version number')", "write http://"),
    ("grpc", "failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", "write https://"),
    ("http/protobuf", "Failed to export spans batch code: 400, reason: Bad Request", "write https://"),
    ("grpc", "SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "OTLP_CERTIFICATE"),
    ("http/protobuf", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "REQUESTS_CA_BUNDLE"),
    ("grpc", "failed to connect to all addresses; Unwrap failed (TSI_DATA_CORRUPTED)", "CLIENT_CERTIFICATE"),
    ("http/protobuf", "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert", "CLIENT_CERTIFICATE"),
    ("grpc", "UNAUTHENTICATED: no token", "OTLP_HEADERS"),
    ("http/protobuf", "Failed to export spans batch code: 401, reason: Unauthorized", "OTLP_HEADERS"),
    ("grpc", "UNIMPLEMENTED: unknown service", "OTEL_METRICS_EXPORTER=none"),
    ("http/protobuf", "Failed to export metrics batch code: 404, reason: Not Found", "OTEL_METRICS_EXPORTER=none"),
    ("grpc", "DEADLINE_EXCEEDED: Deadline Exceeded", "never answers"),
    ("grpc", "RESOURCE_EXHAUSTED: memory", "overloaded"),
    ("grpc", "something new", "collector's log"),
]


@pytest.mark.parametrize(("protocol", "said", "told"), SAID)
def test_each_error_comes_with_what_to_do(protocol: str, said: str, told: str) -> None:
    assert told in advise(said, protocol)


def test_a_long_error_is_one_short_line_without_the_next_attempt() -> None:
    said = "Transient error a\n  b encountered while exporting spans batch, retrying in 1.03s."
    assert briefly(said) == "a b"
    assert len(briefly("x" * 1000)) == 300
