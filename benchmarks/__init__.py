"""Comparisons with other people's software, each in one process: ``python -m benchmarks NAME``."""
