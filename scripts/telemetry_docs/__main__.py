"""``python -m scripts.telemetry_docs``: write docs/telemetry.md. ``--check`` only compares."""

from __future__ import annotations

import sys

from scripts.telemetry_docs.page import PATH, page


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.telemetry_docs [--check]", file=sys.stderr)
        return 2
    same = PATH.exists() and PATH.read_text() == page()
    if arguments:
        print(f"{PATH.name} {'is' if same else 'is not'} what the table says")
        return 0 if same else 1
    PATH.write_text(page())
    print(f"wrote {PATH}")
    return 0


sys.exit(main(sys.argv[1:]))
