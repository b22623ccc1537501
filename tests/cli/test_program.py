"""The command line as a person meets it: help, doctor, and errors without tracebacks."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otelctx.cli import doctor

COMMANDS = ("serve", "demo", "show", "doctor")


def otelctx(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "otelctx.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )


def test_help_names_every_command_and_loads_no_model_library() -> None:
    code = "import sys\nsys.argv = ['otelctx', '--help']\nimport otelctx.cli\ntry:\n  otelctx.cli.main()\nfinally:\n"
    code += "  print([m for m in ('torch', 'transformers', 'starlette') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in result.stdout for command in COMMANDS)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "no/such/model"), ("no model 'no/such/model'", "SmolLM2-135M-Instruct")),
        (("serve", "smollm2", "--host", "no-such-host.invalid"), ("--host no-such-host.invalid",)),
        (("serve", "smollm2", "--host", "203.0.113.7"), ("can't listen on 203.0.113.7:8000", "--host")),
        (("show", "header", "junk"), ("not an otelctx",)),
        (("show", "trace", "junk"), ("no trace id", "traceparent")),
        (("show", "trace", "a" * 32, "--jaeger-url", "http://127.0.0.1:9"), ("Jaeger does not answer",)),
        (("show", "trace", "a" * 32, "--jaeger-url", "http://[::1"), ("no URL of a Jaeger", "http://localhost:16686")),
        (("show", "trace", "a" * 32, "--jaeger-url", "http://127.0.0.1:99999"), ("Jaeger does not answer",)),
        (("show", "window", "s", "--url", "http://127.0.0.1:9"), ("no worker answers", "--url")),
    ],
    ids=["model", "name", "address", "header", "trace", "jaeger", "jaeger-url", "jaeger-port", "window"],
)
def test_what_can_not_be_done_is_one_line_with_what_to_do(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = otelctx(*arguments)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("otelctx: ")
    assert all(word in line for word in words)


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = otelctx("serve", "no/such/model", "--port", str(port))
    assert result.returncode == 1
    assert result.stderr.strip().startswith(f"otelctx: can't listen on 127.0.0.1:{port}: the port is taken")


@pytest.mark.parametrize("arguments", [("serve",), ("serve", "m", "--port", "70000"), ("serve", "m", "--window", "1")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = otelctx(*arguments)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)


def test_a_setting_that_is_wrong_names_its_variable() -> None:
    result = otelctx("serve", "smollm2", "--port", "0", env={"OTELCTX_KEYS": "nonsense"})
    assert result.returncode == 1
    assert "OTELCTX_KEYS" in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_exits_with_1_and_says_so_if_the_collector_is_not_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    key = base64.b64encode(b"k" * 32).decode()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTELCTX_KEYS": f"3:{key}"}
    result = otelctx("doctor", env=environment)
    assert result.returncode == 1
    lines = {line.split()[1]: line.split()[0] for line in result.stdout.splitlines() if line}
    assert (lines["collector"], lines["Python"], lines["core"]) == ("problem", "ok", "ok")
    assert "3 signs" in result.stdout
    assert key not in result.stdout
    assert "Traceback" not in result.stderr


def test_doctor_says_the_same_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [doctor.Finding("a", "ok", "fine"), doctor.Finding("b", "problem", "[red]not[/] fine")]
    monkeypatch.setattr(doctor, "findings", lambda: iter(found))
    assert doctor.run(as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"what": "a", "verdict": "ok", "detail": "fine"},
        {"what": "b", "verdict": "problem", "detail": "[red]not[/] fine"},
    ]
    doctor.run()
    assert "[red]not[/] fine" in capsys.readouterr().out


def test_doctor_stops_at_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTELCTX_BAGGAGE", "sometimes")
    *_, last = doctor.findings()
    assert (last.what, last.verdict) == ("settings", "problem")
    assert "OTELCTX_BAGGAGE" in last.detail


def test_doctor_lists_what_is_in_the_model_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTELCTX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(doctor, "_collector", lambda: iter([doctor.Finding("collector", "ok", "")]))
    assert "empty" in _finding("model cache").detail
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "w").write_bytes(b"x" * 2**20)
    assert "m (1 MiB)" in _finding("model cache").detail


def test_doctor_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_collector", lambda: iter([doctor.Finding("collector", "ok", "")]))
    real = doctor.version

    def version(package: str) -> str:
        if package == "fastapi":
            raise doctor.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(doctor, "version", version)
    found = _finding("demo")
    assert found.verdict == "note"
    assert "lacks fastapi" in found.detail


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_its_extra_the_command_says_so_in_one_line(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from otelctx.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"otelctx: {module} is not installed: pip install 'otelctx[cli]'\n"


def _finding(what: str) -> Any:
    (found,) = (f for f in doctor.findings() if f.what == what)
    return found
