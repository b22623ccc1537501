"""Every name that otelctx puts on the wire or into telemetry: one table.

Own names live under ``otelctx.``. GenAI strings are kept here too, because opentelemetry-semantic-conventions 0.66b2
marks all of them as moved; they follow semantic-conventions-genai v0.1.0. HTTP names follow the stable HTTP
conventions (1.44.0). A name is added to the module that it belongs to, and is then here as well.

docs/telemetry.md is made from it: ``python -m scripts.telemetry_docs``.
"""

from __future__ import annotations

from typing import Final

from otelctx.semconv.events import *
from otelctx.semconv.genai import *
from otelctx.semconv.genai import GEN_AI_ATTRIBUTES
from otelctx.semconv.http import *
from otelctx.semconv.http import STANDARD_ATTRIBUTES
from otelctx.semconv.metrics import *
from otelctx.semconv.model import *
from otelctx.semconv.model import Attribute
from otelctx.semconv.own import *
from otelctx.semconv.own import OWN_ATTRIBUTES
from otelctx.semconv.spans import *
from otelctx.semconv.wire import *

ATTRIBUTES: Final[dict[str, Attribute]] = {**OWN_ATTRIBUTES, **STANDARD_ATTRIBUTES, **GEN_AI_ATTRIBUTES}
