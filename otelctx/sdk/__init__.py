"""Setting up the OpenTelemetry SDK by the SDK's own configurator, and taking it down in bounded time."""
