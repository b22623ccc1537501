"""Lines that a long-running command prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from otelctx.cli.saying import Progress, Say


def test_people_get_a_line_and_programs_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    Say()("ready", "ready: here", url="http://h")
    Say(as_json=True)("ready", "ready: here", url="http://h")
    line, document = capsys.readouterr().out.splitlines()
    assert line == "otelctx: ready: here"
    assert json.loads(document) == {"event": "ready", "message": "ready: here", "url": "http://h"}


def test_a_command_goes_on_when_nobody_listens_any_more() -> None:
    code = (
        "import sys\nfrom otelctx.cli.saying import Say\nsys.stdin.read()\n"
        "for n in range(3): Say()('progress', str(n))\nprint('to its end', file=sys.stderr)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == "to its end\n"
        assert process.wait(60) == 0


def test_progress_is_told_once_and_then_by_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Say())
    for share in (None, 0.0, 0.1, 0.24, 0.26, 0.3, 0.9, 1.0, 1.0):
        progress("Unpacking", share)
    assert capsys.readouterr().out.splitlines() == [
        "otelctx: Unpacking",
        *(f"otelctx: Unpacking: {percent} %" for percent in (0, 25, 75, 100)),
    ]
    progress = Progress(Say(as_json=True))
    progress("Loading", None)
    progress("Loading", 0.5)
    assert [json.loads(line).get("share") for line in capsys.readouterr().out.splitlines()] == [None, 0.5]
