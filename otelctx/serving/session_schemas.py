"""JSON Schemas of what ``/v1/sessions`` takes and gives, and of its query. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["LABEL", "LABEL_PARAMETER", "MAX_PAGE", "MAX_VERSION", "PAGE", "SCHEMAS"]

Json = dict[str, Any]

MAX_PAGE: Final = 100
LABEL: Final = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"  # no control characters
MAX_VERSION: Final = 2**53 - 1

_STRING: Final[Json] = {"type": "string"}
_NULL: Final[Json] = {"type": "null"}
_COUNT: Final[Json] = {"type": "integer", "minimum": 0}
_TOKENS: Final[Json] = {**_COUNT, "description": "Tokens."}
_VERSION: Final[Json] = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_VERSION}
_EVICTED: Final[Json] = {**_COUNT, "description": "Tokens that have left it."}
_WINDOW: Final[Json] = {"used": _TOKENS, "limit": _TOKENS, "evicted": _EVICTED}


def _object(properties: Mapping[str, Json], **more: Any) -> Json:
    return {"type": "object", "properties": dict(properties), "required": list(properties), **more}


def _list(name: str) -> Json:
    end = {"type": ["string", "null"]}
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}
    return _object(
        {"object": {"const": "list"}, "data": items, "has_more": {"type": "boolean"}, "first_id": end, "last_id": end}
    )


PAGE: Final[Sequence[Json]] = (
    {
        "name": "limit",
        "in": "query",
        "description": "How many at most. Default 20.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The `last_id` of the page before.",
        "schema": _STRING,
    },
)
LABEL_PARAMETER: Final[Json] = {
    "name": "label",
    "in": "path",
    "required": True,
    "description": "Percent-encoded.",
    "schema": {"type": "string", "pattern": LABEL},
}
SCHEMAS: Final[Mapping[str, Json]] = {
    "Session": _object(
        {
            "id": _STRING,
            "object": {"const": "session"},
            "model": _STRING,
            "busy": {"type": "boolean", "description": "It runs a turn; all numbers are as before that."},
            "idle_seconds": {"type": "number", "minimum": 0},
            "generation": {**_COUNT, "description": "Orders sessions that had the same id one after the other."},
            "version": {**_COUNT, "description": "Each turn and each rollback is one."},
            "turns": _COUNT,
            "window": _object(_WINDOW),
            "versions": _object({"kept": _COUNT, "oldest": _COUNT}),
            "labels": {"type": "object", "additionalProperties": _COUNT},
            "kv": _object(
                {
                    "row": {"type": ["integer", "null"], "description": "Where its keys and values were last."},
                    "pending_tokens": {**_COUNT, "description": "Fed first in the next turn."},
                }
            ),
            "usage": _object({"input_tokens": _COUNT, "output_tokens": _COUNT}),
        }
    ),
    "Sessions": _list("Session"),
    "SessionDeleted": _object({"id": _STRING, "object": {"const": "session.deleted"}, "deleted": {"const": True}}),
    "SessionVersion": _object(
        {
            "id": {**_STRING, "description": "`prompt:` SHA-256 of the system prompt `@v` version."},
            "object": {"const": "session.version"},
            "version": _COUNT,
            "current": {"type": "boolean"},
            "turns": _COUNT,
            "window": _object({"used": _TOKENS, "evicted": _EVICTED}),
            "labels": {"type": "array", "items": _STRING},
        }
    ),
    "SessionVersions": _list("SessionVersion"),
    "RollbackRequest": {
        "type": "object",
        "properties": {
            "version": {**_VERSION, "description": "The newest version kept that is not newer is restored."},
            "label": {
                "type": ["string", "null"],
                "pattern": LABEL,
                "description": "A label, or the `id` of a version.",
            },
        },
        "additionalProperties": False,
        "oneOf": [
            {"required": [one], "properties": {one: {"not": _NULL}, other: _NULL}}
            for one, other in (("version", "label"), ("label", "version"))
        ],
    },
    "SessionRollback": _object(
        {
            "id": _STRING,
            "object": {"const": "session.rollback"},
            "restored": {**_COUNT, "description": "The version whose contents are the current ones again."},
            "version": {**_COUNT, "description": "The new version that has them."},
            "turns": _COUNT,
            "window": _object(_WINDOW),
        }
    ),
    "LabelRequest": {
        "type": "object",
        "properties": {"version": {**_VERSION, "description": "Default: the current one."}},
        "additionalProperties": False,
    },
    "SessionLabel": _object(
        {
            "object": {"const": "session.label"},
            "session": _STRING,
            "label": _STRING,
            "version": _COUNT,
            "key": {**_STRING, "description": "The `id` of the version."},
        }
    ),
    "SessionLabelDeleted": _object(
        {
            "object": {"const": "session.label.deleted"},
            "session": _STRING,
            "label": _STRING,
            "deleted": {"const": True},
        }
    ),
}
