"""docs/telemetry.md, made from the table in :mod:`otelctx.semconv`."""
