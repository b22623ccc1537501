"""``otelctx show trace``: from what a person has at hand to the drawn trace."""

from __future__ import annotations

import json

import pytest

from otelctx.cli import trace
from otelctx.errors import ConfigError
from otelctx.testing.jaeger import JaegerQuery
from otelctx.testing.spans import SeenEvent, SeenSpan

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPANS = [
    SeenSpan(ID, "a" * 16, "", "POST /v1/chat/completions", "SERVER", "worker", 0, 9_000_000, "UNSET"),
    SeenSpan(
        ID, "b" * 16, "a" * 16, "chat m", "INTERNAL", "worker", 1_000_000, 8_000_000, "UNSET",
        {"gen_ai.usage.input_tokens": 40},
        (SeenEvent("otelctx.truncation", 2_000_000, {"otelctx.reason": "window", "otelctx.tokens.before": 90}),),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [ID, ID.upper(), f"00-{ID}-00f067aa0ba902b7-01", f"http://localhost:16686/trace/{ID}?uiFind={ID}", f" {ID}\n"],
)
def test_a_trace_id_is_found_in_whatever_holds_it(text: str) -> None:
    assert trace.trace_id(text) == ID


@pytest.mark.parametrize("text", ["", ID[:-1], ID + "0", "0" * 32, f"{ID} {ID[::-1]}"])
def test_what_holds_no_trace_id_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="32 hexadecimal digits"):
        trace.trace_id(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ID, None),
        (f"00-{ID}-00f067aa0ba902b7-01", None),
        (f"http://127.0.0.1:40731/trace/{ID}", "http://127.0.0.1:40731"),
        (f" https://ops.example/jaeger/trace/{ID}?uiFind=1", "https://ops.example/jaeger"),
        (f"http://127.0.0.1:40731/api/traces/{ID}", "http://127.0.0.1:40731"),
        (f"https://ops.example/d/{ID}", None),
    ],
)
def test_the_address_of_a_trace_is_that_of_its_jaeger(text: str, expected: str | None) -> None:
    assert trace.jaeger_of(text) == expected


@pytest.mark.usefixtures("jaeger")
def test_the_jaeger_that_is_asked_is_the_one_named_or_the_addresss_or_the_usual_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = f"http://127.0.0.1:40731/trace/{ID}"
    for text, named, asked in (
        (address, None, "http://127.0.0.1:40731"),
        (address, "http://jaeger:1", "http://jaeger:1"),
        (ID, None, "http://localhost:16686"),
    ):
        trace.show(text, named, as_json=False)
        assert capsys.readouterr().out.endswith(f"{asked}/trace/{ID}\n")


@pytest.fixture
def jaeger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JaegerQuery, "ready", lambda self: None)
    monkeypatch.setattr(JaegerQuery, "spans", lambda self, wanted: SPANS if wanted == ID else [])


@pytest.mark.usefixtures("jaeger")
def test_a_trace_is_drawn_with_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    trace.show(ID, "http://jaeger:16686/", as_json=False)
    out = capsys.readouterr().out
    assert "worker  POST /v1/chat/completions" in out
    assert "in=40" in out
    assert "otelctx.truncation" in out
    assert "before=90" in out
    assert f"http://jaeger:16686/trace/{ID}" in out


@pytest.mark.usefixtures("jaeger")
def test_a_trace_is_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    trace.show(ID, "http://jaeger:16686", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["trace_id"], told["roots"]) == (ID, 1)
    assert [(span["depth"], span["name"], span["duration"]) for span in told["spans"]] == [
        (0, "POST /v1/chat/completions", 0.009),
        (1, "chat m", 0.007),
    ]
    assert told["spans"][1]["events"][0]["attributes"]["otelctx.reason"] == "window"


@pytest.mark.usefixtures("jaeger")
def test_a_trace_that_is_not_there_says_why_that_may_be() -> None:
    with pytest.raises(ConfigError, match="may not have arrived yet"):
        trace.show(ID[::-1], "http://jaeger:16686", as_json=False)


@pytest.mark.parametrize("error", [RuntimeError("/api/traces/x answered 500"), ValueError("no JSON"), KeyError("data")])
def test_what_tells_traces_in_another_way_is_said_to_be_no_jaeger(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(self: JaegerQuery, wanted: str) -> list[SeenSpan]:
        raise error

    monkeypatch.setattr(JaegerQuery, "ready", lambda self: None)
    monkeypatch.setattr(JaegerQuery, "spans", broken)
    with pytest.raises(ConfigError, match="as no Jaeger does"):
        trace.show(ID, "http://jaeger:16686", as_json=False)
