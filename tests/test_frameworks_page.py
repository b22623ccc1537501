"""Every application of docs/frameworks.md is run here, by the command that stands below it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import otelctx
from otelctx.testing import OtlpReceiver

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = {code.splitlines()[0].removeprefix("# "): code for kind, code in BLOCKS if kind == "python"}
COMMANDS = [code.strip() for kind, code in BLOCKS if kind == "console"]
BRACES, ANGLES = "/tenants/{tenant}/items/{item}", "/tenants/<tenant>/items/<item>"
ROUTES = {"quart_app:app": ANGLES, "shop.asgi:app": "/tenants/<str:tenant>/items/<str:item>/"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


def application(command: str) -> str:
    return next(word for word in shlex.split(command) if word.endswith(":app"))


@pytest.fixture
def running(serving: Any, receiver: OtlpReceiver, tmp_path: Path) -> Callable[[str], Any]:
    """``with running(command) as server:`` the page's files are there, and its port is another one."""

    def start(command: str) -> Any:
        def line(port: int) -> list[str]:
            for name, code in FILES.items():
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_text(code.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
            server, *arguments = shlex.split(command.replace("8000", str(port)))
            # gunicorn has no module to be run as.
            start = ["-c", "from gunicorn.app.wsgiapp import run; run()"] if server == "gunicorn" else ["-m", server]
            return [sys.executable, *start, *arguments]

        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "PYTHONPATH": str(tmp_path),
        }
        return serving(tmp_path, line, lambda url: settings)

    return start


@pytest.mark.parametrize("command", COMMANDS, ids=application)
def test_an_application_is_traced_as_the_page_says(command: str, receiver: OtlpReceiver, running: Any) -> None:
    app = application(command)
    (service,) = re.findall(r'configure\("([\w-]+)"', FILES[app.partition(":")[0].replace(".", "/") + ".py"])
    slash = "/" if app == "shop.asgi:app" else ""
    with running(command) as server:
        headers = {"x-tenant": "acme", "authorization": "Bearer s3cret"}
        answer = server.get(f"/tenants/acme/items/7{slash}", headers=headers)
        assert (answer.status_code, answer.text.strip('"')) == (200, "7")
        spans = receiver.wait_for(lambda spans: any(s.service == service and s.name.startswith("GET") for s in spans))
    (span,) = [s for s in spans if s.service == service]
    route = ROUTES.get(app, BRACES)
    assert span.name == f"GET {route}"
    assert span.attributes["http.route"] == route
    assert span.attributes["http.response.status_code"] == 200
    if app == "options_app:app":
        assert extras(span) == {
            "http.request.header.x-tenant": ("acme",),
            "http.request.header.authorization": ("[REDACTED]",),
            "http.response.header.x-cache": ("miss",),
            "http.request.body.size": 0,
            "http.response.body.size": 1,
        }
    else:
        assert extras(span) == {}
    if app == "ordered_app:app":
        assert answer.headers["x-tier"] == "gold"


def extras(span: Any) -> dict[str, Any]:
    found = {key: value for key, value in span.attributes.items() if ".header." in key or ".body." in key}
    return {key: tuple(value) if isinstance(value, list | tuple) else value for key, value in found.items()}


def test_each_application_has_a_command_and_each_command_an_application() -> None:
    modules = {name.removesuffix(".py").replace("/", ".") for name in FILES}
    assert {application(command).partition(":")[0] for command in COMMANDS} == modules - {"shop.settings", "shop.urls"}
    assert {kind for kind, _ in BLOCKS} == {"python", "console"}


def test_the_options_that_the_page_names_are_those_that_there_are() -> None:
    table = PAGE[PAGE.index("| option |") : PAGE.index("What isn't asked for")]
    named = set(
        re.findall(r"`([a-z_]+)(?:=[^`]*)?`", "".join(line.split("|")[1] for line in table.splitlines() if line))
    )
    plumbing = {"app", "node", "tracer_provider", "meter_provider", "return"}
    assert named == set(otelctx.ContextMiddleware.__init__.__annotations__) - plumbing


def test_links_lead_somewhere() -> None:
    def anchor(heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    anchors = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
