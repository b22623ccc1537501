"""The workers behind the gateway: where each is, whether it may get requests, and which one a request goes to."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from otelctx import semconv
from otelctx.errors import ConfigError
from otelctx.gateway.failures import NoUpstream
from otelctx.gateway.health import Health, Phase, Signal
from otelctx.gateway.pool import Pool
from otelctx.policy.slots import SlotTable, least_loaded, place, slot_of
from otelctx.telemetry.instruments import instruments

__all__ = ["Upstream", "Upstreams"]

_PORTS: Final = {"http": 80, "https": 443}


class Upstream:
    """One worker. ``name`` is its URL; ``active`` the requests that run there now, as far as this gateway knows."""

    def __init__(self, url: str) -> None:
        """Raises :class:`~otelctx.errors.ConfigError` for anything but ``http[s]://host[:port][/path]``."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--upstream {url!r}: {error}") from None
        wrong = parts.query or parts.fragment or parts.username is not None
        if parts.scheme not in _PORTS or not parts.hostname or wrong or not url.isascii() or not url.isprintable():
            raise ConfigError(f"--upstream {url!r} is not http[s]://host[:port][/path]")
        self.scheme: Final = parts.scheme
        self.host: Final = parts.hostname
        self.port: Final = port or _PORTS[parts.scheme]
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.authority: Final = shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"
        self.prefix: Final = parts.path.rstrip("/").encode()
        self.name: Final = f"{self.scheme}://{self.authority}{self.prefix.decode()}"
        self.tls: Final = ssl.create_default_context() if self.scheme == "https" else None
        self.pool: Final = Pool(self.host, self.port, self.tls)
        self.health: Final = Health()
        self.active = 0

    def see(self, signal: Signal, reason: str = "") -> None:
        """Something was learnt of it; ``reason`` is a short stable word for what was bad."""
        if self.health.see(signal, monotonic(), random.random()):
            instruments().gateway_ejections.add(1, {semconv.REASON: reason})

    def attributes(self) -> dict[str, Any]:
        """Those of its metrics."""
        return {semconv.SERVER_ADDRESS: self.host, semconv.SERVER_PORT: self.port}


class Upstreams:
    """``bound`` is how many times the average of the running requests one of them may have before a session's request
    goes to the next one, infinity for never; it is not looked at under ``floor`` requests.
    """

    def __init__(self, urls: Iterable[str], *, bound: float = 1.25, floor: int = 8) -> None:
        if bound < 1:
            raise ConfigError(f"--load-bound {bound} is under 1: not all upstreams can be under their average")
        self.bound: Final = bound
        self._floor = floor
        self._by_name: dict[str, Upstream] = {}
        self.replace(urls)

    def __iter__(self) -> Iterator[Upstream]:
        return iter(list(self._by_name.values()))

    def replace(self, urls: Iterable[str]) -> None:
        """From now on these. Those that stay keep their connections and health; requests on those that go end there.

        Raises :class:`~otelctx.errors.ConfigError`.
        """
        made = [Upstream(url) for url in urls]
        if not made:
            raise ConfigError("--upstream: at least one is needed")
        before = self._by_name
        self._by_name = {upstream.name: before.get(upstream.name, upstream) for upstream in made}
        self._table = SlotTable(self._by_name)
        for name, upstream in before.items():
            if name not in self._by_name:
                upstream.pool.close()

    @property
    def ready(self) -> bool:
        """Whether a request can go anywhere."""
        now = monotonic()
        return any(upstream.health.admits(now) for upstream in self._by_name.values())

    def require(self) -> None:
        """Raises :class:`NoUpstream` unless a request can go somewhere."""
        if not self.ready:
            raise self._none()

    def others(self, tried: Iterable[str]) -> bool:
        """Whether there is one to try that has not been."""
        now = monotonic()
        return any(name not in tried and upstream.health.admits(now) for name, upstream in self._by_name.items())

    def of_session(self, session: str, tried: Iterable[str] = ()) -> Upstream:
        """Where a request of ``session`` goes: to its slot's owner, unless that is down, loaded, or has been
        ``tried``.

        Raises :class:`NoUpstream`.
        """
        order = self._candidates(session, tried)
        chosen = place(order, {name: self._by_name[name].active for name in order}, self.bound, self._floor)
        return self._chosen(chosen)

    def of_owner(self, owner: str, tried: Iterable[str] = ()) -> Upstream:
        """Where a request without a session goes: to the one with the fewest requests. Among equals ``owner`` always
        gets the same, so that the beginnings of its prompts are found in that one's cache.

        Raises :class:`NoUpstream`.
        """
        order = self._candidates(owner, tried)
        return self._chosen(least_loaded(order, {name: self._by_name[name].active for name in order}))

    def home(self, session: str) -> str | None:
        """The name of the upstream to which ``session`` would go if none were loaded."""
        now = monotonic()
        order = self._table.order(slot_of(session))
        return next((name for name in order if self._by_name[name].health.admits(now)), None)

    def observed(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        """Attributes, running requests, and 1 if it is up else 0, of each."""
        for upstream in self:
            yield upstream.attributes(), upstream.active, int(upstream.health.phase is Phase.UP)

    def close(self) -> None:
        for upstream in self:
            upstream.pool.close()

    def _candidates(self, key: str, tried: Iterable[str]) -> list[str]:
        now = monotonic()
        order = self._table.order(slot_of(key))
        return [name for name in order if name not in tried and self._by_name[name].health.admits(now)]

    def _chosen(self, name: str | None) -> Upstream:
        if name is None:
            raise self._none()
        upstream = self._by_name[name]
        upstream.health.chosen(monotonic())
        return upstream

    def _none(self) -> NoUpstream:
        return NoUpstream(f"none of {len(self._by_name)} upstreams can take a request now")
