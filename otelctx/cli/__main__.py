"""``python -m otelctx.cli``, for where the command itself is not on the path."""

from otelctx.cli import main

if __name__ == "__main__":
    main()
