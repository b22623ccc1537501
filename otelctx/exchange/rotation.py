"""Keys that change while the process runs: a file that is looked at once a second, by a thread and never by a request.

A secret that Kubernetes mounts changes by a new link, one that an editor saves is written piece by piece. So a change
is taken over once the file is the same at two looks in a row; keys cut short in the middle would be other keys. What
can't be read leaves the keys from before in use, with a warning: a process must not begin to send unsigned frames
because somebody has moved a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Final
from weakref import ReferenceType, WeakMethod, ref

from otelctx.errors import ConfigError
from otelctx.settings import read_keys

__all__ = ["KeyFile"]

_log = logging.getLogger(__name__)

_EVERY: Final = 1.0  # seconds

# Modification time, size, inode and device.
_Signature = tuple[int, int, int, int]


class KeyFile:
    """The file at ``path``, whose text goes to ``take``, a bound method of an object that this one does not keep alive.

    :meth:`start` looks at it from a daemon thread as long as the object lives.
    """

    __slots__ = ("__weakref__", "_asked", "_path", "_seen", "_take", "_taken")

    def __init__(self, path: Path, take: Callable[[str], None]) -> None:
        self._path = path
        self._take = WeakMethod(take)
        self._asked = False
        self._seen: _Signature | None = None
        # Nothing, though somebody has read it before: it may have changed since.
        self._taken: _Signature | None = None

    def start(self) -> None:
        """Look at it once a second from now on."""
        Thread(target=_watch, args=(ref(self),), name="otelctx-keys", daemon=True).start()

    def ask(self) -> None:
        """Have it read at the next look, changed or not. Takes no lock, so that a signal handler may call it."""
        self._asked = True

    def look(self) -> None:
        """Take over what has changed. Never raises."""
        found = self._signature()
        asked, self._asked = self._asked, False
        settled = found == self._seen
        self._seen = found
        if asked or (settled and found != self._taken):
            self._taken = found
            self._read()

    def _read(self) -> None:
        take = self._take()
        if take is None:
            return
        try:
            take(read_keys(self._path))
        except ConfigError as error:
            _log.warning("%s; the keys from before stay in use", error)

    def _signature(self) -> _Signature | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _watch(file: ReferenceType[KeyFile]) -> None:
    while True:
        sleep(_EVERY)
        alive = file()
        if alive is None:
            return
        alive.look()
        del alive
