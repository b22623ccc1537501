"""A process that held a model ends at once, with its status and all that it has said."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import atexit, sys
from otelctx.cli.leaving import Leaving
leaving = Leaving()
atexit.register(print, "finalised")
with leaving.at_the_end():
    print("said", end="")
    print("why", end="", file=sys.stderr)
    leaving.quick = {quick}
    sys.exit({code})
"""


@pytest.mark.parametrize(("code", "status"), [("None", 0), ("0", 0), ("1", 1), ("'no model'", 1)])
def test_the_status_and_the_last_words_get_out(code: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(quick=True, code=code)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "said", "why")


def test_any_other_process_ends_as_always() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(quick=False, code=3)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (3, "saidfinalised\n")
