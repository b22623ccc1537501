"""The worker, and what stands in front of it: nginx and otelctx gateway, as child processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.harness import MissingPeer
from otelctx.testing.backends import Backend, Launch, free_ports

__all__ = ["Gateway", "Nginx", "Proxy", "Upstream"]

_NO_EXPORT: Final = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
_KEY: Final = "1:" + "A" * 43 + "="


class Proxy(Backend):
    """Listens on ``port`` of the loopback. ``options`` says what it is."""

    port: int
    options: str

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Upstream(Proxy):
    """The worker itself."""

    def __init__(self, folder: Path) -> None:
        self.options = "python -m benchmarks._sse"
        super().__init__(folder / "worker.log")

    def plan(self) -> Launch:
        (self.port,) = free_ports(1)
        return Launch([sys.executable, "-m", "benchmarks._sse", str(self.port)], self._listens)


class Gateway(Proxy):
    """``otelctx gateway``: spans, metrics and signed frames are made; telemetry is sent nowhere."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self._upstream = upstream
        self.options = "otelctx gateway, one process, keys, spans and metrics without an exporter"
        super().__init__(folder / "gateway.log")

    def plan(self) -> Launch:
        (self.port,) = free_ports(1)
        command = [sys.executable, "-m", "otelctx.cli", "gateway", "--port", str(self.port)]
        command += ["--upstream", f"http://127.0.0.1:{self._upstream}", "--drain", "0"]
        return Launch(command, self._listens, {"OTELCTX_KEYS": _KEY, **_NO_EXPORT})


class Nginx(Proxy):
    """nginx as its documentation has it for streams: no buffering, connections to the worker kept. Raises
    :class:`MissingPeer` if it is not installed.
    """

    def __init__(self, folder: Path, upstream: int) -> None:
        found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if found is None:
            raise MissingPeer("nginx is not installed; try: make services")
        self._binary = found
        self._folder = folder
        self._upstream = upstream
        told = subprocess.run([found, "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]
        self.options = f"nginx {told}, one worker, proxy_buffering off, keepalive 256, no access log"
        super().__init__(folder / "nginx.log")

    def plan(self) -> Launch:
        (self.port,) = free_ports(1)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {self._folder / kind};" for kind in kinds)
        (self._folder / "nginx.conf").write_text(
            f"pid {self._folder / 'nginx.pid'}; error_log stderr; worker_processes 1; daemon off;"
            f"worker_rlimit_nofile {os.sysconf('SC_OPEN_MAX')}; events {{ worker_connections 8192; }}"
            f"http {{ access_log off; keepalive_requests 1000000; {temporary}"
            f"upstream worker {{ server 127.0.0.1:{self._upstream}; keepalive 256; }}"
            f"server {{ listen 127.0.0.1:{self.port} backlog=4096; location / {{ proxy_pass http://worker;"
            f"proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off; }} }} }}"
        )
        command = [self._binary, "-p", str(self._folder), "-c", str(self._folder / "nginx.conf"), "-e", "stderr"]
        return Launch(command, self._listens)
