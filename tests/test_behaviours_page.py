"""Each line of docs/behaviours.md names tests, and those exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "behaviours.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| when |")]
LINK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REPORT = re.compile(r"\[([\w-]+(?: [\w-]+)? )?#(\d+)\]\((https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/(\d+))\)")


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row.split("|")[1])[:50])
def test_every_behaviour_is_shown_by_tests_that_exist(row: str) -> None:
    _, when, reported, does, shown, _ = row.split("|")
    assert when.strip()
    assert reported.strip()
    assert does.strip()
    links = LINK.findall(shown)
    assert links
    assert not LINK.sub("", shown).strip(), "nothing but links"
    for path, name in links:
        assert name.startswith("test_")
        assert name in functions(path), f"{path} has no {name}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row.split("|")[1])[:50])
def test_a_report_is_a_public_one_by_its_number(row: str) -> None:
    found = REPORT.findall(row)
    assert len(found) == row.count("https://"), "each link is the number of an issue or a pull request"
    assert all(shown == linked for _, shown, _, linked in found)


def test_there_are_no_other_links_to_tests_and_no_dead_ones_within_the_page() -> None:
    assert len(ROWS) > 55
    assert len(LINK.findall(PAGE)) == sum(len(LINK.findall(row)) for row in ROWS)
    heads = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^## (.*)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) == heads
