"""Functions put in the place of other libraries' functions, once those are imported, and taken out again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from wrapt import register_post_import_hook

__all__ = ["Patches"]

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
_MISSING: Final = object()


class Patches:
    """While ``active`` is false, what is still in its place must do nothing of its own."""

    def __init__(self) -> None:
        self.active = False
        self._made: list[tuple[Any, str, object, object]] = []
        self._hooks: list[tuple[str, Callable[[ModuleType], None]]] = []

    def when_imported(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        """Call ``patch(module)`` when ``module`` is imported, or now if it is: from :meth:`start` on."""
        self._hooks.append((module, patch))

    def start(self) -> None:
        """A second time, too, after :meth:`stop`."""
        self.active = True
        for module, patch in self._hooks:
            register_post_import_hook(self._while_active(patch), module)

    def stop(self) -> None:
        self.active = False
        for owner, name, original, replacement in reversed(self._made):
            # Somebody else may have put a function of his own around ours by now: then it stays, and passes through.
            if vars(owner).get(name) is replacement:
                if original is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
        self._made = [made for made in self._made if vars(made[0]).get(made[1], _MISSING) is not made[2]]

    def put(self, owner: Any, name: str, make: Make) -> None:
        """``make(original)`` in the place of ``owner.name``; nothing if ours is there already, or further in."""
        if any(made[0] is owner and made[1] == name for made in self._made):
            return
        found = vars(owner).get(name, _MISSING)  # a class may have it from a base, and must not keep it after that
        replacement = make(getattr(owner, name))
        setattr(owner, name, replacement)
        self._made.append((owner, name, found, replacement))

    def _while_active(self, patch: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def run(module: ModuleType) -> None:
            if self.active:
                patch(module)

        return run
