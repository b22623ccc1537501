"""The ASGI shell: one SERVER span, metrics and context for any ASGI application, without importing a framework."""
