"""How a command's process ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LEAVING", "Leaving"]


class Leaving:
    """A process that held a model ends at once: the interpreter would look through a million objects for garbage, which
    takes it seconds, and native libraries would complain of what it left. Everything that must be done at the end has
    been done by then.
    """

    quick = False

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """The whole command goes inside."""
        try:
            yield
        except SystemExit as leaving:
            if not self.quick:
                raise
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))


LEAVING = Leaving()
