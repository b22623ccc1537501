"""The instrumentor itself, each time in a process of its own: it changes the whole of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest

OFF = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
START = """
    from otelctx.auto.instrumentor import OtelctxInstrumentor
    instrumentor = OtelctxInstrumentor()
    instrumentor.instrument()
    import httpx
    def marked():
        return type(httpx.Client()._transport).__module__.startswith("otelctx")
"""


@pytest.fixture
def run() -> Callable[..., tuple[str, str]]:
    def _run(code: str, **environment: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **OFF, **environment},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip(), done.stderr

    return _run


def test_it_is_an_instrumentor_and_neither_a_distro_nor_a_configurator() -> None:
    """Of those a process takes one, and somebody else's may be there."""

    def ours(group: str) -> list[str]:
        return [e.name for e in entry_points(group=group) if e.value.startswith("otelctx.")]

    assert ours("opentelemetry_instrumentor") == ours("opentelemetry_post_instrument") == ["otelctx"]
    assert ours("opentelemetry_distro") == ours("opentelemetry_configurator") == []


def test_it_loads_no_library_that_the_application_does_not_use(run: Callable[..., tuple[str, str]]) -> None:
    libraries = ("starlette", "fastapi", "litestar", "quart", "django", "httpx2", "requests", "aiohttp", "torch")
    out, _ = run(START + f"\n    import sys; print([m for m in {libraries!r} if m in sys.modules])")
    assert out == "[]"


def test_instrument_and_uninstrument_any_number_of_times(run: Callable[..., tuple[str, str]]) -> None:
    code = """
    assert OtelctxInstrumentor() is instrumentor and instrumentor.is_instrumented_by_opentelemetry
    original = httpx.Client.__init__.__wrapped__
    for _ in range(2):
        assert marked()
        instrumentor.uninstrument()
        assert not marked() and httpx.Client.__init__ is original
        instrumentor.instrument()
    print(marked())
    """
    assert run(START + code)[0] == "True"


def test_providers_that_are_set_are_used_and_added_to(run: Callable[..., tuple[str, str]]) -> None:
    """What a distro's configurator has set up before."""
    before = """
    from opentelemetry import propagate, trace
    from opentelemetry.sdk.trace import TracerProvider
    mine = TracerProvider()
    trace.set_tracer_provider(mine)
    """
    after = """
    from otelctx.context.current import session
    assert trace.get_tracer_provider() is mine
    with session("s-1"):
        span = mine.get_tracer("x").start_span("y")
        print(span.attributes["session.id"], "otelctx" in propagate.get_global_textmap().fields)
    """
    assert run(before + START + after)[0] == "s-1 True"


@pytest.mark.parametrize(
    "wrong", [{"OTELCTX_KEYS": "nonsense"}, {"OTELCTX_EXCLUDED": "health"}, {"OTELCTX_UNTRUSTED_TRACE": "maybe"}]
)
def test_a_wrong_setting_is_one_error_and_the_application_runs_without(
    run: Callable[..., tuple[str, str]], wrong: dict[str, str]
) -> None:
    out, error = run(START + "\n    print(marked())", **wrong)
    assert out == "False"
    (line,) = error.splitlines()
    assert line.startswith("otelctx does nothing in this process")
    assert next(iter(wrong)) in line
    assert "nonsense" not in line, "keys are not for logs"


@pytest.mark.parametrize("first", [True, False])
def test_errors_are_printed_beside_a_handler_that_exports_before_us_or_after(
    run: Callable[..., tuple[str, str]], first: bool
) -> None:
    handler = """
    import logging
    from opentelemetry.instrumentation.logging import LoggingInstrumentor
    LoggingInstrumentor().instrument()
    if not logging.getLogger().handlers:  # older ones leave it to the SDK
        Handler = type("Handler", (logging.NullHandler,), {"__module__": "opentelemetry.sdk._logs"})
        logging.getLogger().addHandler(Handler())
    """
    rest = """
    from otelctx.auto.instrumentor import after_all
    after_all()
    logging.getLogger("app").warning("seen")
    """
    _, error = run((handler + START if first else START + handler) + rest, OTELCTX_KEYS="nonsense")
    told, seen = error.splitlines()
    assert told.startswith("otelctx does nothing in this process")
    assert seen == "seen"


def test_where_it_is_left_out_nothing_is_changed_in_logging(run: Callable[..., tuple[str, str]]) -> None:
    code = """
    import logging
    Handler = type("Handler", (logging.NullHandler,), {"__module__": "opentelemetry.sdk._logs"})
    logging.getLogger().addHandler(Handler())
    from otelctx.auto.instrumentor import after_all
    after_all()
    print(logging.getLogger().handlers[0].filters)
    """
    assert run(code)[0] == "[]"


def test_django_gets_the_middleware_that_names_its_routes(run: Callable[..., tuple[str, str]]) -> None:
    code = """
    import asyncio, sys, types
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry import trace
    exporter = InMemorySpanExporter()
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path
    urls = types.ModuleType("urls")
    async def item(request, item):
        return HttpResponse("ok")
    urls.urlpatterns = [path("items/<int:item>/", item)]
    sys.modules["urls"] = urls
    settings.configure(ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"], SECRET_KEY="x", DEBUG=False)
    from django.core.asgi import get_asgi_application
    app = get_asgi_application()
    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://example.org") as client:
            assert (await client.get("/items/7/")).status_code == 200
    asyncio.run(main())
    print([s.name for s in exporter.get_finished_spans() if s.kind.name == "SERVER"])
    """
    assert run(START + code)[0] == "['GET /items/<int:item>/']"
