"""The handshake on both sides of a request, without I/O, and what this process remembers between requests."""
