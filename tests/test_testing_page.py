"""Every example of docs/testing.md is run here, as its reader would run it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from mypy import api

from otelctx import testing
from otelctx.testing.faults import Fault

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = {
    code.splitlines()[0].removeprefix("# "): code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
}
CASES = [(file, name) for file, code in BLOCKS.items() for name in re.findall(r"^def (test_\w+)", code, re.M)]
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Jaeger(BaseHTTPRequestHandler):
    """Knows one trace of one span."""

    def do_GET(self) -> None:
        span = {
            "traceID": TRACE, "spanID": "b7ad6b7169203331", "operationName": "POST /chat", "references": [],
            "startTime": 1, "duration": 1, "tags": [], "logs": [], "processID": "p1",
        }  # fmt: skip
        trace = {"traceID": TRACE, "spans": [span], "processes": {"p1": {"serviceName": "chat", "tags": []}}}
        body = json.dumps({"data": [trace] if TRACE in self.path else ["chat"]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def jaeger_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Jaeger) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def trace_id() -> str:
    return TRACE


@pytest.mark.parametrize(("file", "name"), CASES, ids=[name for _, name in CASES])
def test_an_example_passes(file: str, name: str, request: pytest.FixtureRequest) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(BLOCKS[file], file, "exec"), namespace)
    test = namespace[name]
    test(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(test).parameters})


def test_the_examples_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPY_CONFIG_FILE_DIR", "")  # which mypy sets, and leaves
    for file, code in BLOCKS.items():
        (tmp_path / file).write_text(code)
    files = [str(tmp_path / file) for file in BLOCKS]
    said, wrong, status = api.run(["--strict", "--config-file", str(ROOT / "pyproject.toml"), *files])
    assert status == 0, said + wrong


def test_everything_of_the_package_and_every_fault_is_on_the_page() -> None:
    words = set(re.findall(r"\w+", PAGE))
    shown = {name for name in testing.__all__ if name[0].islower() or not name.startswith(("Seen", "Point", "Attempt"))}
    assert shown - {"Sent"} <= words
    assert set(get_args(Fault)) == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M))))


def test_every_head_is_reached_from_the_top() -> None:
    heads = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^## (.*)$", PAGE, re.M)}
    assert heads == set(re.findall(r"\]\(#([\w-]+)\)", PAGE))
