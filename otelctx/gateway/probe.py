"""Active checks: each upstream is asked now and then whether it is ready, not all of them at once."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from otelctx.gateway.failures import ConnectFailed, ConnectTimeout, UpstreamFailure
from otelctx.gateway.health import Signal
from otelctx.gateway.options import Options
from otelctx.gateway.outbound import encode
from otelctx.gateway.upstreams import Upstream, Upstreams

__all__ = ["check", "watch"]

_LONGEST: Final = 2.0  # seconds for one check


async def watch(upstreams: Upstreams, options: Options) -> None:
    """Check all of them, again and again, until cancelled. Those that come later are checked too."""
    if not options.health_path:
        return
    while True:
        await asyncio.gather(*(check(upstream, options) for upstream in upstreams))
        await asyncio.sleep(options.health_interval * (0.75 + random.random() / 2))


async def check(upstream: Upstream, options: Options) -> None:
    """Ask once, for two seconds at most. Any status under 500 is a yes: who has no such path is there all the same."""
    try:
        async with asyncio.timeout(min(_LONGEST, options.health_interval)):
            status = await _ask(upstream, options.health_path)
    except ConnectFailed as error:
        gone = not isinstance(error, ConnectTimeout)
        upstream.see(Signal.GONE if gone else Signal.FAILED, error.reason)
    except (UpstreamFailure, TimeoutError):
        upstream.see(Signal.FAILED, "check")
    else:
        if status < 500:
            upstream.see(Signal.OK)
        else:
            upstream.see(Signal.GONE, "not_ready")


async def _ask(upstream: Upstream, path: str) -> int:
    connection = await upstream.pool.connect(None)
    try:
        connection.begin("GET")
        lines = [(b"host", upstream.authority.encode()), (b"user-agent", b"otelctx-gateway"), (b"connection", b"close")]
        connection.write(encode("GET", path.encode("ascii", "replace"), lines), last=True)
        return (await connection.head(None)).status
    finally:
        connection.abort()
