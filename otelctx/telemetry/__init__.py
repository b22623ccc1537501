"""Instruments, events and attribute hygiene, on the OpenTelemetry API alone."""
