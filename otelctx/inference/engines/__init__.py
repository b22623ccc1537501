"""Engines: what answers a turn."""
