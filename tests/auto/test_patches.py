from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otelctx.auto.patches import Patches


def doubled(patches: Patches) -> Callable[[Any], Any]:
    return lambda original: lambda value: original(value) * (2 if patches.active else 1)


def library() -> Any:
    class Base:
        def value(self) -> int:
            return 1

    class Derived(Base):
        pass

    return SimpleNamespace(f=lambda value: value, Base=Base, Derived=Derived)


def test_it_is_taken_out_again_and_put_back() -> None:
    made, patches = library(), Patches()
    original = made.f
    for _ in range(2):
        patches.active = True
        patches.put(made, "f", doubled(patches))
        patches.put(made, "f", doubled(patches))
        assert made.f(3) == 6, "once, however often it is asked for"
        patches.stop()
        assert made.f is original


def test_what_a_class_has_from_its_base_it_does_not_keep() -> None:
    made, patches = library(), Patches()
    patches.active = True
    patches.put(made.Derived, "value", lambda original: lambda self: original(self) + 1)
    assert (made.Derived().value(), made.Base().value()) == (2, 1)
    patches.stop()
    assert "value" not in vars(made.Derived)
    patches.active = True
    patches.put(made.Derived, "value", lambda original: lambda self: original(self) + 1)
    assert made.Derived().value() == 2, "a second time, too"
    patches.stop()


def test_under_somebody_elses_patch_it_stays_and_passes_through() -> None:
    made, patches = library(), Patches()
    patches.active = True
    patches.put(made, "f", doubled(patches))
    ours = made.f
    made.f = lambda value: ours(value) + 100
    patches.stop()
    assert made.f(3) == 103
    patches.active = True
    patches.put(made, "f", doubled(patches))
    assert made.f(3) == 106, "and is not put around it a second time"


def test_a_module_is_patched_when_it_is_imported_and_only_while_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"otelctx_auto_{n}" for n in ("before", "during", "after")]
    for name in names:
        (tmp_path / f"{name}.py").write_text("def f(value): return value\n")
    patches = Patches()
    for name in names:
        patches.when_imported(name, lambda module: patches.put(module, "f", doubled(patches)))
    found = {names[0]: import_module(names[0])}
    patches.start()
    found[names[1]] = import_module(names[1])
    assert [found[name].f(3) for name in names[:2]] == [6, 6]
    patches.stop()
    found[names[2]] = import_module(names[2])
    assert [found[name].f(3) for name in names] == [3, 3, 3]
    patches.start()
    assert [found[name].f(3) for name in names] == [6, 6, 6]
    patches.stop()
    for name in names:
        del sys.modules[name]
