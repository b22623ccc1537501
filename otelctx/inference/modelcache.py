"""Directories that cost much to make and are made once: whole or absent, for any number of processes at a time.

An entry is built in a directory beside it and renamed when it is complete. A manifest with sizes and checksums tells a
complete entry from a damaged one, which is built again.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

__all__ = ["cached", "intact"]

_MANIFEST: Final = "otelctx-manifest.json"
_BLOCK: Final = 1 << 20


def _checksum(path: Path) -> int:
    """CRC-32: finds damage, not malice, at 3 GB/s."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def _describe(entry: Path) -> dict[str, list[int]]:
    """``{name: [bytes, checksum]}`` of each file of ``entry``, the manifest left out."""
    files = sorted(path for path in entry.iterdir() if path.name != _MANIFEST)
    return {path.name: [path.stat().st_size, _checksum(path)] for path in files}


def intact(entry: Path) -> bool:
    """Whether ``entry`` holds exactly what was put there."""
    try:
        expected = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        return bool(expected == _describe(entry))
    except (OSError, ValueError):
        return False


def cached(root: Path, key: str, build: Callable[[Path], None], *, waiting: Callable[[], None]) -> Path:
    """The directory ``root/key``, filled by ``build(directory)`` if it is missing or damaged.

    Of several processes one builds; ``waiting()`` is called where another one does. What ``build`` raises is raised,
    and nothing is left behind.

    Raises:
        OSError: the cache can't be written.
    """
    entry = root / key
    if intact(entry):
        return entry
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / f".{key}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        if not intact(entry):
            _replace(entry, build)
    finally:
        lock.release()
    return entry


def _replace(entry: Path, build: Callable[[Path], None]) -> None:
    # The lock is held, so whatever lies about was left by a process that died.
    for stale in entry.parent.glob(f".{entry.name}.*.part"):
        shutil.rmtree(stale)
    part = entry.parent / f".{entry.name}.{os.getpid()}.part"
    damaged = entry.parent / f".{entry.name}.damaged.part"
    part.mkdir()
    try:
        build(part)
        manifest = part / _MANIFEST
        manifest.write_text(json.dumps(_describe(part)), encoding="utf-8")
        for file in part.iterdir():
            # safetensors makes its files private whatever the umask says; a cache may be shared.
            file.chmod(manifest.stat().st_mode)
        if entry.exists():
            entry.rename(damaged)
        part.rename(entry)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(damaged, ignore_errors=True)
