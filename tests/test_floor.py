"""The oldest versions that are tested are those that pyproject.toml names."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "floor"


@pytest.fixture(scope="module")
def floor() -> ModuleType:
    loader = SourceFileLoader("floor", str(SCRIPT))
    module = module_from_spec(spec_from_loader("floor", loader) or pytest.fail("no such script"))
    loader.exec_module(module)
    return module


def test_extras_include_each_other_and_the_higher_of_two_bounds_counts(floor: ModuleType) -> None:
    project = {
        "name": "mine",
        "dependencies": ["Api>=1.9,<2"],
        "optional-dependencies": {"a": ["mine[b, a]", "x>=0.61b0"], "b": ["api>=1.10; sys_platform != 'win32'"]},
    }
    assert floor.constraints(project, ["a"]) == {"api": "1.10", "x": "0.61b0"}


def test_a_requirement_without_a_lower_bound_is_refused(floor: ModuleType) -> None:
    with pytest.raises(ValueError, match="'x<2' has no lower bound"):
        floor.constraints({"name": "mine", "dependencies": ["x<2"], "optional-dependencies": {}}, [])


def test_it_prints_constraints_for_what_this_project_stands_on() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert {"opentelemetry-api==1.40", "opentelemetry-sdk==1.40", "protobuf==5.29.1"} <= set(lines)
    assert not any(line.startswith(("torch", "transformers")) for line in lines)
