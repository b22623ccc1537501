"""Typed session context: keys, immutable state with a root, and the scope of a request."""
