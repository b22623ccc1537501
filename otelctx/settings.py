"""The only reader of the environment. The OpenTelemetry SDK reads its own ``OTEL_*`` variables itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from otelctx.errors import ConfigError
from otelctx.policy.egress import Egress
from otelctx.policy.trust import Keyring, networks

__all__ = ["VARIABLES", "CaptureContent", "Settings", "given", "read_keys"]

UntrustedTrace = Literal["continue", "link"]
OnUnknownBase = Literal["resync", "proceed"]
BaggageMode = Literal["until_ack", "always", "never"]
Frames = Literal["auto", "never"]
Events = Literal["span", "log", "both"]
CaptureContent = Literal["NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT"]

_MAX_KEYS_FILE: Final = 65536  # bytes; 256 keys take less
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
L = TypeVar("L", bound=str)

# All that is read here.
VARIABLES: Final = frozenset(
    {
        "OTELCTX_KEYS",
        "OTELCTX_KEYS_FILE",
        "OTELCTX_TRUSTED_CLIENTS",
        "OTELCTX_TRUSTED_PROXIES",
        "OTELCTX_EGRESS_ALLOW",
        "OTELCTX_UNTRUSTED_TRACE",
        "OTELCTX_ON_UNKNOWN_BASE",
        "OTELCTX_BAGGAGE",
        "OTELCTX_FRAMES",
        "OTELCTX_EVENTS",
        "OTELCTX_EXCLUDED",
        "OTELCTX_API_KEY",
        "OTELCTX_CACHE_DIR",
        _CAPTURE,
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, checked. Every field has a default; secrets stay out of ``repr``.

    ========================  =====================================================  ===========
    variable                  meaning                                                default
    ========================  =====================================================  ===========
    OTELCTX_KEYS              MAC keys, ``id[@domain]:base64,…``; the first signs    none
    OTELCTX_KEYS_FILE         a file with them instead, read again when it changes   none
    OTELCTX_TRUSTED_CLIENTS   addresses believed without a MAC                       none
    OTELCTX_TRUSTED_PROXIES   proxies whose X-Forwarded-For is read                  none
    OTELCTX_EGRESS_ALLOW      further origins that receive context                   none
    OTELCTX_UNTRUSTED_TRACE   a stranger's trace: ``continue`` or ``link``           continue
    OTELCTX_ON_UNKNOWN_BASE   ``resync`` (412, resent once) or ``proceed``           resync
    OTELCTX_BAGGAGE           our public keys in baggage: until_ack, always, never   until_ack
    OTELCTX_FRAMES            ``never``: only W3C headers go out, no frames           auto
    OTELCTX_EVENTS            events on the ``span``, as a ``log`` record, ``both``  span
    OTELCTX_EXCLUDED          paths without spans, zero-code: ``/health,/static/*``  none
    OTELCTX_API_KEY           whose sessions ``otelctx show window`` looks at        none
    OTELCTX_CACHE_DIR         prepared models and built backends                     XDG cache
    ========================  =====================================================  ===========

    In the file, line breaks stand between keys as commas do. It is looked at once a second, and taken over when it has
    changed and stays as it is for a second; ``otelctx serve`` and ``otelctx gateway`` read it on SIGHUP, too. A file
    without keys or with a wrong one changes nothing and is warned about. ``docs/security.md`` says how to rotate.

    ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` (NO_CONTENT by default) is read here too.
    """

    keys: str = field(default="", repr=False)
    keys_file: Path | None = None
    trusted_clients: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    egress_allow: tuple[str, ...] = ()
    untrusted_trace: UntrustedTrace = "continue"
    on_unknown_base: OnUnknownBase = "resync"
    baggage: BaggageMode = "until_ack"
    frames: Frames = "auto"
    events: Events = "span"
    excluded: tuple[str, ...] = ()
    cache_dir: Path = field(default_factory=lambda: _cache_dir({}))
    capture_content: CaptureContent = "NO_CONTENT"
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def load(cls) -> Settings:
        """From this process's environment. Raises :class:`~otelctx.errors.ConfigError` naming the variable."""
        return cls.from_env(os.environ)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """From ``env``; empty values count as unset. Raises :class:`~otelctx.errors.ConfigError` naming the
        variable.
        """
        keys_file = Path(env["OTELCTX_KEYS_FILE"]) if env.get("OTELCTX_KEYS_FILE") else None
        if keys_file is not None and env.get("OTELCTX_KEYS"):
            raise ConfigError("OTELCTX_KEYS and OTELCTX_KEYS_FILE are both set: leave one of them out")
        settings = cls(
            keys=env.get("OTELCTX_KEYS", "") if keys_file is None else read_keys(keys_file),
            keys_file=keys_file,
            trusted_clients=_list(env, "OTELCTX_TRUSTED_CLIENTS"),
            trusted_proxies=_list(env, "OTELCTX_TRUSTED_PROXIES"),
            egress_allow=_list(env, "OTELCTX_EGRESS_ALLOW"),
            untrusted_trace=_choice(env, "OTELCTX_UNTRUSTED_TRACE", "continue", get_args(UntrustedTrace)),
            on_unknown_base=_choice(env, "OTELCTX_ON_UNKNOWN_BASE", "resync", get_args(OnUnknownBase)),
            baggage=_choice(env, "OTELCTX_BAGGAGE", "until_ack", get_args(BaggageMode)),
            frames=_choice(env, "OTELCTX_FRAMES", "auto", get_args(Frames)),
            events=_choice(env, "OTELCTX_EVENTS", "span", get_args(Events)),
            excluded=_list(env, "OTELCTX_EXCLUDED"),
            cache_dir=_cache_dir(env),
            capture_content=_choice(env, _CAPTURE, "NO_CONTENT", get_args(CaptureContent)),
            api_key=env.get("OTELCTX_API_KEY") or None,
        )
        # Parsed here for their errors, so that a bad value is reported at start and not by the first request.
        Keyring.parse(settings.keys)
        networks(settings.trusted_clients, "OTELCTX_TRUSTED_CLIENTS")
        networks(settings.trusted_proxies, "OTELCTX_TRUSTED_PROXIES")
        Egress(settings.egress_allow)
        wrong = [pattern for pattern in settings.excluded if not pattern.startswith(("/", "*"))]
        if wrong:
            raise ConfigError(
                f"OTELCTX_EXCLUDED: {wrong[0]!r} must start with '/' or '*'; it is matched against the path"
            )
        return settings


def given(env: Mapping[str, str] | None = None) -> list[str]:
    """Names of the variables that are set, by default in this process, and that may be meant for OpenTelemetry or us:
    whatever begins like theirs, in any case.
    """
    return sorted(
        name
        for name, value in (os.environ if env is None else env).items()
        if value and name.upper().startswith("OTEL")
    )


def read_keys(path: Path) -> str:
    """The keys in the file at ``path``, as ``OTELCTX_KEYS`` would have them.

    Raises :class:`~otelctx.errors.ConfigError`, which repeats nothing of it, if it can't be read or has no keys.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEYS_FILE + 1)
    except OSError as error:
        raise ConfigError(f"OTELCTX_KEYS_FILE: {path}: {error.strerror or 'not readable'}") from None
    if len(data) > _MAX_KEYS_FILE or not data.isascii():
        raise ConfigError(f"OTELCTX_KEYS_FILE: {path} is no list of keys: over {_MAX_KEYS_FILE} bytes, or not ASCII")
    keys = ",".join(data.decode("ascii").split())
    if not keys.strip(","):
        raise ConfigError(f"OTELCTX_KEYS_FILE: {path} has no keys; to do without any, leave the variable out")
    return keys


def _list(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(name, "").split(",") if part.strip())


def _choice(env: Mapping[str, str], name: str, default: L, allowed: tuple[L, ...]) -> L:
    value = env.get(name, "").strip()
    if not value:
        return default
    for candidate in allowed:
        if value.lower() == candidate.lower():
            return candidate
    raise ConfigError(f"{name} is {value!r}; it takes {', '.join(allowed)}")


def _cache_dir(env: Mapping[str, str]) -> Path:
    explicit, base = env.get("OTELCTX_CACHE_DIR", ""), Path(env.get("XDG_CACHE_HOME", ""))
    if explicit:
        try:
            return Path(explicit).expanduser()
        except RuntimeError:
            raise ConfigError(f"OTELCTX_CACHE_DIR is {explicit!r}: no such home; write the whole path") from None
    if base.is_absolute():  # the XDG specification says to ignore others
        return base / "otelctx"
    try:
        home = Path(env.get("HOME") or "~").expanduser()
    except RuntimeError:  # a container's user without a name
        return Path(tempfile.gettempdir()) / "otelctx"
    return home / ".cache" / "otelctx"
