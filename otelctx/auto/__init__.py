"""Zero code: what ``opentelemetry-instrument`` loads, so that an application that knows nothing of otelctx has it."""
