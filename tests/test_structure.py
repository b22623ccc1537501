"""The house rules that keep the package small, layered and cheap to import."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "otelctx"
GENERATED = PACKAGE / "delta" / "v1"
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if GENERATED not in p.parents)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]

# What a decision core may import beside otelctx itself. No clock, no randomness, no environment, no thread, no I/O.
CORE_IMPORTS = {
    "__future__", "base64", "bisect", "binascii", "collections", "dataclasses", "enum", "functools", "google",
    "hashlib", "heapq", "hmac", "ipaddress", "itertools", "math", "numpy", "operator", "re", "struct", "types",
    "typing", "urllib",
}  # fmt: skip

HEAVY = (
    "torch", "transformers", "redis", "grpc", "httpx", "httpx2", "aiohttp", "requests", "starlette", "fastapi", "numpy",
    "opentelemetry.sdk", "typer", "asgiref", "django", "litestar", "quart",
)  # fmt: skip


def core_files() -> list[Path]:
    (core,) = (c for c in CONTRACTS if c["name"].startswith("Decision cores"))
    files: list[Path] = []
    for module in core["source_modules"]:
        path = ROOT / module.replace(".", "/")
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [f for f in files if GENERATED not in f.parents]


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", core_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_decision_core_imports_only_what_cannot_act(path: Path) -> None:
    tree = ast.parse(path.read_text())
    outside = {name for name in imported(tree) if not name.startswith("otelctx.")}
    assert {name.split(".")[0] for name in outside} <= CORE_IMPORTS
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not called & {"open", "input", "print", "exec", "eval", "__import__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_everything_below_the_sdk_layer_speaks_to_the_api_only(path: Path) -> None:
    """import-linter can't tell parts of a namespace package apart, so this rule is a test."""
    if path.relative_to(PACKAGE).parts[0] not in {"sdk", "auto", "testing", "demo", "cli"}:
        names = imported(ast.parse(path.read_text()))
        assert not any(
            n.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.inst")) for n in names
        )


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_inside_imports_the_facade(path: Path) -> None:
    """``from otelctx import semconv`` names a module and is fine; ``from otelctx import session`` would not be."""
    if path in (PACKAGE / "__init__.py", PACKAGE / "demo" / "frontend.py"):  # the facade; a user's application
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name != "otelctx" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "otelctx":
            for alias in node.names:
                assert (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file(), alias.name


def test_files_and_functions_stay_small() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in SOURCES}
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > 400} == {}
    assert statistics.median(n for n in lengths.values() if n > 10) <= 150
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                length = (node.end_lineno or 0) - node.lineno + 1 - len(docstring.splitlines())
                if length > 50:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = length
    assert long == {}


def test_the_layers_have_no_exceptions() -> None:
    assert not any("ignore_imports" in contract for contract in CONTRACTS)
    (layers,) = (c for c in CONTRACTS if c["type"] == "layers")
    assert layers["exhaustive"] is True


@pytest.mark.parametrize("statement", ["import otelctx", "import otelctx; otelctx.ContextKey", "import otelctx.errors"])
def test_importing_otelctx_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_help_of_the_command_line_does_not_load_torch() -> None:
    code = "import sys, otelctx.cli\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
