"""The document and the routes are one, and names in it can be followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from starlette.routing import Route

from otelctx.errors import InvalidRequest
from otelctx.exchange.node import Node
from otelctx.serving import app, parse
from otelctx.serving.openapi import document, template
from otelctx.serving.schemas import schemas
from otelctx.settings import Settings
from otelctx.testing.fake_engine import FakeEngine

MODEL = "org/fake"


async def served(direct: Any) -> Any:
    async with direct(FakeEngine(name=MODEL)) as client:
        return (await client.get("/openapi.json")).json()


async def test_each_route_is_described_and_nothing_else_is(direct: Any) -> None:
    outer: Any = app(FakeEngine(), node=Node(Settings()))
    routes = {
        (template(route.path), method.lower())
        for route in outer.app.app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths = (await served(direct))["paths"]
    assert {(path, method) for path, methods in paths.items() for method in methods} == routes
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names)) >= 9


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(found := value.get("$ref"), str):
            yield found
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_every_reference_leads_somewhere_and_every_schema_is_used(direct: Any) -> None:
    found = await served(direct)
    used = set(references(found))
    components = {
        f"#/components/{kind}/{name}" for kind in ("schemas", "headers") for name in found["components"][kind]
    }
    assert used == components


def test_schemas_are_such() -> None:
    for schema in schemas(MODEL).values():
        Draft202012Validator({**schema, "components": {"schemas": schemas(MODEL)}})


def valid(name: str, body: dict[str, Any]) -> bool:
    components = {"components": {"schemas": schemas("m")}}
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **components}).is_valid(body)


VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 5.0, 1.5, 10**12, "", "a", "auto", "none", "append", [], ["a"], [1], [""],
    ["a"] * 9, {}, {"type": "text"}, {"include_usage": True}, {"x": 1}, {"when_full": "slide"}, {"timeout": 0},
    {"timeout": 1},    {"session": "s", "mode": None},
    {"session": None, "mode": "append"},
    {"session": None, "mode": None},
    {"session": "s"}, {"session": "s", "mode": "append"}, [[1]], [{"role": "user", "content": "x"}],
    [{"role": "assistant"}], [{"role": "user"}], ["text"],
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "read", "base"),
    [
        ("ChatCompletionRequest", parse.chat, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
        ("CompletionRequest", parse.text, {"model": "m", "prompt": "x"}),
    ],
    ids=["chat", "text"],
)
def test_the_reader_takes_exactly_what_the_schema_allows(schema: str, read: Any, base: Any, stream: bool) -> None:
    """Each value at each parameter: both say the same of it."""
    base = base | {"stream": stream}
    parameters = [*schemas("m")[schema]["properties"], "something else"]
    differ = []
    for name in parameters:
        for value in VALUES:
            if name == "model" and isinstance(value, str):
                continue  # another model is no bad request; it is not found
            body = base | {name: value}
            try:
                read(body, parse.Caller("o"))
                taken = True
            except InvalidRequest:
                taken = False
            if taken is not valid(schema, body):
                differ.append((name, value, taken))
    # An unknown parameter that is null asks for nothing.
    assert differ == [("something else", None, True)]


def test_a_description_is_made_without_a_server() -> None:
    made = document([], model="m", version="1")
    assert made["openapi"].startswith("3.1.")
    assert made["paths"] == {}
