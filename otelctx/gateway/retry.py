"""Whether a request may be sent once more, to another upstream. Pure.

after              if
no connection      always: nothing of it has been sent
503                its body can be sent again: the upstream says that it has not been worked on
connection ended   its body can be sent again and its method is idempotent (RFC 9110 §9.2.2), or it says so by an
                   ``Idempotency-Key``; and nothing of the response has come. Of a connection that had been kept, once
                   to the same upstream first, beside the budget: any server may end an idle one at any moment
anything else      never

A budget bounds all of them together: a fifth of the requests, and ten beyond that. When everything fails, retries would
only double the load.
"""

from __future__ import annotations

from typing import Final

from otelctx.gateway.failures import ConnectFailed, UpstreamClosed, UpstreamFailure

__all__ = ["RetryBudget", "may_retry"]

UNAVAILABLE: Final = 503
IDEMPOTENT: Final = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


def may_retry(failure: UpstreamFailure | int, *, replayable: bool, idempotent: bool) -> bool:
    """``failure`` is what was raised before the response had begun, or the response's status."""
    if isinstance(failure, ConnectFailed):
        return True
    if isinstance(failure, UpstreamClosed):
        return replayable and idempotent
    return failure == UNAVAILABLE and replayable


class RetryBudget:
    """Every request earns a share of a retry; a retry takes a whole one."""

    __slots__ = ("_level", "_reserve", "_share")

    def __init__(self, share: float = 0.2, reserve: float = 10.0) -> None:
        self._share = share
        self._reserve = self._level = reserve

    def request(self) -> None:
        self._level = min(self._reserve, self._level + self._share)

    def take(self) -> bool:
        """Whether there is a retry left; then it is taken."""
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True
