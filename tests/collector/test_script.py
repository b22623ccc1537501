"""``scripts/backends`` with a stand-in for Go: what it builds, skips, refuses and says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otelctx.settings import Settings

SCRIPT = Path(__file__).parents[2] / "scripts" / "backends"
# Real binaries have this in them, put there by Go; and they are programs that run.
BINARY = r"""#!/bin/sh
# MODULE
exit 0
"""
GO = r"""#!{python}
import os, pathlib, sys
log = pathlib.Path({log!r})
with log.open("a") as file:
    print(*sys.argv[1:2], os.environ["GOTOOLCHAIN"], os.environ.get("CGO_ENABLED"), file=file)
def write(path, text):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
match sys.argv[1]:
    case "version":
        print("go version {version} linux/amd64")
    case "install":
        write(os.environ["GOBIN"] + "/builder", pathlib.Path({builder!r}).read_text())
    case "build":
        if {fail!r}:
            sys.exit("the compiler said no")
        write(sys.argv[sys.argv.index("-o") + 1], {jaeger!r})
"""
BUILDER = r"""#!{python}
import pathlib, re, sys
manifest = next(a for a in sys.argv if a.startswith("--config=")).partition("=")[2]
out = pathlib.Path(re.search("output_path: (.*)", pathlib.Path(manifest).read_text())[1])
out.mkdir()
binary = out / "otelctx-collector"
binary.write_text({collector!r})
binary.chmod(0o755)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            env={"PATH": path, "OTELCTX_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., str]:
    """Puts a ``go`` into a folder and gives the folder, for PATH."""

    def make(
        version: str = "go1.26.8", jaeger: str = "mod\tgithub.com/jaegertracing/jaeger\tv1.76.0", fail: bool = False
    ) -> str:
        collector = BINARY.replace("MODULE", "dep\tgo.opentelemetry.io/collector/receiver/otlpreceiver\tv0.161.0")
        (tmp_path / "builder.py").write_text(BUILDER.format(python=sys.executable, collector=collector))
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        text = GO.format(
            python=sys.executable,
            log=str(tmp_path / "go.log"),
            builder=str(tmp_path / "builder.py"),
            version=version,
            jaeger=BINARY.replace("MODULE", jaeger),
            fail=fail,
        )
        (folder / "go").write_text(text)
        (folder / "go").chmod(0o755)
        return str(folder)

    return make


def calls(tmp_path: Path) -> list[str]:
    log = tmp_path / "go.log"
    return log.read_text().splitlines() if log.exists() else []


def test_both_are_built_once_and_then_found(run: Run, go: Callable[..., str], tmp_path: Path) -> None:
    path = go()
    built = run("build", path=path)
    assert built.returncode == 0, built.stderr
    assert "collector: done in" in built.stdout
    assert "Jaeger: done in" in built.stdout
    assert calls(tmp_path) == ["version local None", "install local 0", "build local 0"]
    assert "are built" in run("build", path=path).stdout
    assert len(calls(tmp_path)) == 3
    status = run("status")
    assert status.returncode == 0
    assert "v0.161.0" in status.stdout
    assert "v1.76.0" in status.stdout
    for name in ("otelctx-collector", "jaeger"):
        binary = Path(run("path", name).stdout.strip())
        assert binary.name == name
        assert os.access(binary, os.X_OK)
    assert {p.name for p in binary.parent.iterdir()} == {".lock", "build.log", "jaeger", "otelctx-collector"}


def test_a_failing_build_shows_the_log_and_leaves_nothing_half_done(run: Run, go: Callable[..., str]) -> None:
    failed = run("build", path=go(fail=True))
    assert failed.returncode == 1
    assert "the compiler said no" in failed.stderr
    assert "build.log" in failed.stderr
    assert run("path", "otelctx-collector").returncode == 0
    assert run("path", "jaeger").returncode == 1
    assert "scripts/backends build" in run("path", "jaeger").stderr
    assert run("build", path=go()).returncode == 0


def test_another_version_than_the_manifests_is_not_put_in_place(run: Run, go: Callable[..., str]) -> None:
    wrong = run("build", path=go(jaeger="mod\tgithub.com/jaegertracing/jaeger\tv1.75.0"))
    assert wrong.returncode == 1
    assert "v1.75.0 instead of v1.76.0" in wrong.stderr
    assert run("path", "jaeger").returncode == 1


def test_a_binary_that_does_not_run_any_more_is_built_anew(run: Run, go: Callable[..., str]) -> None:
    assert run("build", path=go()).returncode == 0
    binary = Path(run("path", "jaeger").stdout.strip())
    binary.write_bytes(b"")
    status = run("status")
    assert status.returncode == 1
    assert "of no version" in status.stdout
    assert run("build", path=go()).returncode == 0
    assert binary.stat().st_size > 0


def test_binaries_of_other_versions_are_named_and_not_used(run: Run, tmp_path: Path) -> None:
    old = tmp_path / "cache" / "backends" / "0123456789abcdef"
    old.mkdir(parents=True)
    (old / "jaeger").write_text("")
    status = run("status")
    assert status.returncode == 1
    assert f"of other versions, safe to remove: {old}" in status.stdout
    assert run("path", "jaeger").returncode == 1


@pytest.mark.parametrize("version", ["go1.25.4", "go1.9", "devel"])
def test_too_old_a_go_is_refused_at_once(run: Run, go: Callable[..., str], version: str, tmp_path: Path) -> None:
    refused = run("build", path=go(version))
    assert refused.returncode == 1
    assert refused.stderr == f"scripts/backends needs Go 1.26 or newer; this is: go version {version} linux/amd64\n"
    assert calls(tmp_path) == ["version local None"]


def test_without_go_it_says_so(run: Run) -> None:
    refused = run("build")
    assert refused.returncode == 1
    assert refused.stderr.startswith("scripts/backends needs Go 1.26 or newer and found none")


def test_anything_else_is_answered_with_the_usage(run: Run) -> None:
    for arguments in ([], ["path", "grafana"], ["build", "jaeger"]):
        answer = run(*arguments)
        assert answer.returncode == 1
        assert "scripts/backends status" in answer.stderr


def test_script_and_settings_agree_about_the_cache(tmp_path: Path) -> None:
    for env in (
        {"OTELCTX_CACHE_DIR": str(tmp_path / "a")},
        {"XDG_CACHE_HOME": str(tmp_path / "b"), "HOME": str(tmp_path)},
        {"HOME": str(tmp_path)},
    ):
        folder = Settings.from_env(env).cache_dir / "backends" / "0"
        folder.mkdir(parents=True)
        out = subprocess.run([sys.executable, str(SCRIPT), "status"], env=env, capture_output=True, text=True).stdout
        assert str(folder) in out
