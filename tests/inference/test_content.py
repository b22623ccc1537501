"""What a limit has cut is told from what ended by itself."""

from __future__ import annotations

import pytest

from otelctx.inference.content import cut_inside


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("plain text that just sto", None),
        ('{"a": [1, 2', "json"),
        ('  [{"a": "b"}', "json"),
        ('{"a": 1}\n', None),
        ("[" * 100_000, "json"),
        ("Run this:\n```py\nprint(", "code"),
        ("Run this:\n```py\nprint()\n```\nand th", None),
        ("", None),
    ],
)
def test_what_an_answer_was_cut_inside_of(text: str, cut: str | None) -> None:
    assert cut_inside(text) == cut
