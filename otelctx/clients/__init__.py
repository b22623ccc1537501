"""Shells around HTTP clients: a span for each attempt, and context of ours to those who may have it."""
