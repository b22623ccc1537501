"""Events as they go out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelctx.inference.turn import TurnResult, Usage
from otelctx.serving.wire import ChatForm, TextForm, event, extension


@given(st.text(st.characters(exclude_categories=())))
def test_an_event_is_one_line_of_ascii_whatever_the_text(text: str) -> None:
    """A line break in a message would end the event, a quotation mark the string; half a character is no UTF-8."""
    sent = event({"error": {"message": text}})
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    line = sent.removeprefix(b"data: ").removesuffix(b"\n\n")
    assert line.isascii()
    assert not {b"\n"[0], b"\r"[0]} & set(line)
    assert json.loads(line)["error"]["message"] == text


@pytest.mark.parametrize("form", [ChatForm, TextForm])
@pytest.mark.parametrize("usage", [False, True])
def test_each_chunk_has_usage_only_if_it_was_asked_for(form: type[ChatForm] | type[TextForm], usage: bool) -> None:
    made = form("1", 2, "m", usage)
    chunk = made.chunk(made.piece(0, "x"))
    assert ("usage" in chunk) is usage
    assert chunk.get("usage") is None
    assert chunk["id"] == f"{form.prefix}1"


def test_of_several_turns_counts_are_sums_and_the_rest_is_not_said() -> None:
    turn = TurnResult("length", "length", Usage(5, 2, 3, 4), limit="output", session="s", cut="json")
    assert extension([turn], "a") == {
        "session": "s", "window": None, "dropped": 4, "reused": 3, "limit": "output", "cut": "json", "degraded": None,
        "ack": "a",
    }  # fmt: skip
    both = extension([turn, turn], None)
    assert (both["dropped"], both["reused"]) == (8, 6)
    assert {name for name, value in both.items() if value is None} == both.keys() - {"dropped", "reused"}
