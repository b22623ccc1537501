"""Load on a real worker with real clients and backends, and what must hold afterwards: ``python -m scripts.soak``."""
