"""A cache entry is whole or absent, and made once however many ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from otelctx.inference.modelcache import cached, intact


class Builder:
    """Counts how often an entry is built."""

    def __init__(self, content: str = "weights") -> None:
        self.content = content
        self.calls = 0

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        (directory / "model.safetensors").write_text(self.content)
        (directory / "config.json").write_text("{}")


def unexpected() -> None:
    raise AssertionError("nobody else builds")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    """In a directory that didn't exist either."""
    build = Builder()
    root = tmp_path / "a" / "b"
    entries = [cached(root, "key", build, waiting=unexpected) for _ in range(3)]
    assert entries == [root / "key"] * 3
    assert build.calls == 1
    assert intact(root / "key")


def _truncate(entry: Path) -> None:
    (entry / "model.safetensors").write_text("weigh")


def _flip(entry: Path) -> None:
    (entry / "model.safetensors").write_text("weighty")


def _lose(entry: Path) -> None:
    (entry / "config.json").unlink()


def _add(entry: Path) -> None:
    (entry / "adapter_config.json").write_text("{}")


def _lose_manifest(entry: Path) -> None:
    (entry / "otelctx-manifest.json").unlink()


def _spoil_manifest(entry: Path) -> None:
    (entry / "otelctx-manifest.json").write_bytes(b"\xff{")


@pytest.mark.parametrize("damage", [_truncate, _flip, _lose, _add, _lose_manifest, _spoil_manifest])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Same length or not; and nothing is left beside it."""
    build = Builder()
    entry = cached(tmp_path, "key", build, waiting=unexpected)
    damage(entry)
    assert not intact(entry)
    assert cached(tmp_path, "key", build, waiting=unexpected) == entry
    assert build.calls == 2
    assert intact(entry)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["key"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """The error is the caller's; the next one builds."""

    def fail(directory: Path) -> None:
        Builder()(directory)
        raise ValueError("no space left")

    with pytest.raises(ValueError, match="no space left"):
        cached(tmp_path, "key", fail, waiting=unexpected)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
    build = Builder()
    cached(tmp_path, "key", build, waiting=unexpected)
    assert build.calls == 1


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    """Half a gigabyte for each time that somebody lost patience."""
    left = tmp_path / ".key.4711.part"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    cached(tmp_path, "key", Builder(), waiting=unexpected)
    assert not left.exists()


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    """It is told so, and then finds the entry; nothing is built twice."""
    started, waited = Event(), Event()
    build, second = Builder(), Builder()

    def slow(directory: Path) -> None:
        started.set()
        assert waited.wait(60)
        build(directory)

    first = Thread(target=lambda: cached(tmp_path, "key", slow, waiting=unexpected))
    first.start()
    assert started.wait(60)
    entry = cached(tmp_path, "key", second, waiting=waited.set)
    first.join(60)
    assert (build.calls, second.calls) == (1, 0)
    assert intact(entry)


def test_files_are_as_public_as_the_umask_says(tmp_path: Path) -> None:
    """A cache that was filled as one user may be read as another."""

    def private(directory: Path) -> None:
        Builder()(directory)
        (directory / "model.safetensors").chmod(0o600)

    entry = cached(tmp_path, "key", private, waiting=unexpected)
    plain = tmp_path / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in entry.iterdir()} == {plain.stat().st_mode}
