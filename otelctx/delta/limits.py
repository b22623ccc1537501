"""Every limit of the wire format, by name. What exceeds one is refused whole; nothing is ever trimmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otelctx.context.state import MAC_BYTES, MAX_ENTRIES

__all__ = ["BASE_BYTES", "MAC_BYTES", "MAX_ENTRIES", "MAX_FRAME_BYTES", "MAX_HEADER_CHARS", "ROOT_BYTES", "Limits"]

# nginx, gunicorn and Node refuse header lines of 8 kB and more; half of that leaves room for the name and for
# surprises.
MAX_HEADER_CHARS: Final = 4096
# 4096 characters less two colons hold 3069 bytes of base64; the rest is slack.
MAX_FRAME_BYTES: Final = 3060
# A response head of 4 kB becomes a 502 behind a default nginx (proxy_buffer_size is one page).
MAX_ACK_CHARS: Final = 512
ROOT_BYTES: Final = 16
BASE_BYTES: Final = 8
# W3C Baggage guarantees 64 members and 8192 bytes.
MAX_BAGGAGE_BYTES: Final = 8192
MAX_BAGGAGE_MEMBERS: Final = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process spends on links and bases. Sizes in bytes, times in seconds, the rest are counts."""

    base_bytes: int = 64 * 2**20
    bases_per_session: int = 4
    # Bases that the sender remembers: 32 MiB an origin are some twenty thousand sessions of thirteen keys, each with
    # the four states that it returns to; 64 MiB all origins together, so that no single one pushes out the rest.
    held_bytes: int = 32 * 2**20
    link_bytes: int = 64 * 2**20
    # Paths per origin whose behaviour is remembered, and the memory that they take at most.
    paths: int = 1024
    path_bytes: int = 2**20
    acks_until_aware: int = 3
    base_ttl: float = 60.0
    penalty: float = 600.0
    table_window: float = 600.0  # for so long a revision of the static table counts that was seen behind an origin
    nacks: int = 2  # NACKs to compact frames, within nack_window of them, until the origin gets FULL only
    nack_window: int = 20
    boot_ids: int = 3  # different boot ids within boot_window seconds mean a balancer
    boot_window: float = 60.0
    # The shared tier: for how long a request waits for a base, for how long a base is kept, how many calls of each kind
    # are under way at most, and after how many failures in a row it is left alone for how long.
    shared_deadline: float = 0.010
    shared_ttl: float = 3600.0
    shared_calls: int = 256
    shared_failures: int = 5
    shared_pause: float = 1.0
    body_bytes: int = 64 * 1024  # larger bodies are not sent twice
