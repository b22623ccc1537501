"""Hostile context frames, made from valid ones: a generator for the tests, and a target for coverage-guided fuzzing."""
