from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import otelctx


def test_every_public_name_is_there_and_is_its_owners() -> None:
    for name, owner in otelctx._OWNERS.items():
        module = importlib.import_module(owner)
        expected = module if owner == f"otelctx.{name}" else getattr(module, name)
        assert getattr(otelctx, name) is expected
    assert sorted({*otelctx._OWNERS, "__version__"}) == sorted(otelctx.__all__) == dir(otelctx)


def test_a_name_that_is_not_there_says_what_is() -> None:
    with pytest.raises(AttributeError, match="ContextMiddleware"):
        _ = otelctx.ContextMidleware  # type: ignore[attr-defined]


def test_what_an_extra_is_missing_for_says_which() -> None:
    code = "import sys; sys.modules['starlette'] = None; import otelctx; otelctx.serving"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("\npip install 'otelctx[serve]'\n")
