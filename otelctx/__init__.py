"""otelctx: trace and session context for LLM services, and every context-window event over OTLP."""

__version__ = "0.1.0"
