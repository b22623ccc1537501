"""``otelctx serve``: one model behind OpenAI's API, in this process."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from otelctx.cli.options import Options
from otelctx.errors import ConfigError
from otelctx.settings import Settings

__all__ = ["run"]

_HINTS: Final = {
    errno.EADDRINUSE: "the port is taken: stop what listens there, or choose another with --port (0 takes a free one)",
    errno.EACCES: "ports below 1024 need privileges: choose another with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose another with --host",
}


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`~otelctx.errors.ConfigError` for what can't be started."""
    # What is quick to check comes first: it would be a pity to learn that the port is taken once the model is loaded.
    settings = Settings.load()
    with listener(options.host, options.port) as bound:
        from otelctx.cli.worker import work

        work(options, settings, bound)


@contextmanager
def listener(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that doesn't listen yet, so that nobody's request waits for the model."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except socket.gaierror as error:
            raise ConfigError(f"--host {host}: {error.strerror}") from None
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, error.strerror or str(error))
            raise ConfigError(f"can't listen on {host}:{port}: {hint}") from None
        yield bound
