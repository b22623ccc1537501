"""``python -m scripts.vectors``: write the vectors and the worked example. ``--check`` only compares."""

from __future__ import annotations

import sys

from scripts.vectors.record import differing, write


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.vectors [--check]", file=sys.stderr)
        return 2
    changed = differing()
    if arguments:
        print("\n".join(f"differs: {path}" for path in changed) or "all are as recorded")
        return 1 if changed else 0
    for path in write():
        print(f"wrote {path}")
    return 0


sys.exit(main(sys.argv[1:]))
