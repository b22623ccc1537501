"""The equality tests notice the mistakes that they are there for.

Each patch in ``mutants/`` puts one into a copy of the package, and the equality tests of one tiny family run against
that copy in a process of their own. There the load gate is off: it notices most of these mistakes first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = sorted((Path(__file__).parent / "mutants").glob("*.patch"))
NEEDED = (
    "pyproject.toml",
    "tests/conftest.py",
    "tests/leftovers.py",
    "tests/inference/conftest.py",
    "tests/inference/test_equality.py",
)

NO_GATE = "from otelctx.inference import runner\nrunner.check = lambda model: None\n"


def equality(directory: Path, patch: Path | None) -> subprocess.CompletedProcess[str]:
    """Run the equality tests on a copy of the package with ``patch`` applied."""
    shutil.copytree(ROOT / "otelctx", directory / "otelctx", ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name)
    if patch is not None:
        # A repository above the directory would make git look for the files there.
        outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(directory.parent)}
        subprocess.run(["git", "apply", str(patch)], cwd=directory, env=outside, check=True)
    (directory / "nogate.py").write_text(NO_GATE)
    # Without the package's own pytest plugin, which these tests have no use for.
    plugins = ["-p", "no:cacheprovider", "-p", "no:otelctx", "-p", "nogate"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-k", "llama", "tests/inference/test_equality.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(directory), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_four_mistakes_are_there() -> None:
    """A patch that got lost would take its proof with it."""
    assert [path.stem for path in PATCHES] == ["lost-column", "lost-rollback", "position-plus-one", "stale-mask"]


def test_an_unchanged_copy_passes(tmp_path: Path) -> None:
    """Or the failures below would prove nothing."""
    done = equality(tmp_path, None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_mistake_is_noticed(patch: Path, tmp_path: Path) -> None:
    """By a comparison that fails, not by a crash."""
    done = equality(tmp_path, patch)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError" in done.stdout
    assert " error" not in done.stdout.splitlines()[-1]
