"""The instrumentor that ``opentelemetry-instrument`` loads by its entry point.

It sets up no SDK in front of the command's own: what a distro's configurator has set up is reused and added to, and
only where there is none, as without opentelemetry-distro, are the providers ours.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otelctx.auto.applications import applications
from otelctx.auto.clients import clients
from otelctx.auto.patches import Patches
from otelctx.errors import ConfigError
from otelctx.exchange.node import default_node
from otelctx.sdk.configure import configure
from otelctx.sdk.logs import keep_printing
from otelctx.settings import Settings

__all__ = ["OtelctxInstrumentor", "after_all"]

_log = logging.getLogger(__name__)


class OtelctxInstrumentor(BaseInstrumentor):
    """ASGI applications and clients that are made from now on, whatever they are made by.

    ``instrument()`` and ``uninstrument()`` may be called any number of times. A wrong setting is logged, and the
    application runs without otelctx: nobody has asked in its code for more.
    """

    _patches: Patches | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: what is not installed is never imported, and so never patched."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        keep_printing()  # what is wrong here is to be seen, also if no collector is there to see it
        try:
            excluded = Settings.load().excluded
            default_node()
            configure(logs=False)
        except ConfigError as error:
            _log.error("otelctx does nothing in this process: %s", error)
            return
        if self._patches is None:
            self._patches = Patches()
            applications(self._patches, lambda: {"excluded": excluded})
            clients(self._patches)
        self._patches.start()

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._patches is not None:
            self._patches.stop()


def after_all() -> None:
    """Called by ``opentelemetry-instrument`` after all instrumentors: that of logging may have come after ours."""
    if OtelctxInstrumentor().is_instrumented_by_opentelemetry:
        keep_printing()
