"""What docs/behaviours.md and docs/security.md claim is shown by tests: each line of their tables names some, and those
exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BEHAVIOURS, SECURITY = ((ROOT / "docs" / name).read_text() for name in ("behaviours.md", "security.md"))
THREATS = SECURITY.partition("\n## Threats\n")[2].partition("\n## ")[0]
LINK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REPORT = re.compile(r"\[([\w-]+(?: [\w-]+)? )?#(\d+)\]\((https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/(\d+))\)")


def rows(text: str, head: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(f"| {head}")]


def words(row: str) -> str:
    return re.sub(r"\W+", "-", row.split("|")[1])[:50]


BEHAVING, THREATENING = rows(BEHAVIOURS, "when |"), rows(THREATS, "what happens")
PAGES = [(BEHAVIOURS, BEHAVIOURS, BEHAVING), (SECURITY, THREATS, THREATENING)]


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", [*BEHAVING, *THREATENING], ids=words)
def test_every_line_is_shown_by_tests_that_exist(row: str) -> None:
    _, *columns, shown, _ = row.split("|")
    assert all(column.strip() for column in columns)
    links = LINK.findall(shown)
    assert links
    assert not LINK.sub("", shown).strip(), "nothing but links"
    for path, name in links:
        assert name.startswith("test_")
        assert name in functions(path), f"{path} has no {name}"


@pytest.mark.parametrize(("page", "tables", "lines"), PAGES, ids=["behaviours", "security"])
def test_there_are_no_other_links_to_tests_and_no_dead_ones_within_the_page(
    page: str, tables: str, lines: list[str]
) -> None:
    assert len(lines) > 55
    assert {row.count("|") for row in lines} == {4 if page is SECURITY else 5}
    assert len(LINK.findall(tables)) == sum(len(LINK.findall(row)) for row in lines)
    assert set(LINK.findall(page)) == set(LINK.findall(tables))
    heads = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", page, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= heads


def test_every_part_of_the_behaviours_is_in_its_contents() -> None:
    heads = {
        re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^## (.*)$", BEHAVIOURS, re.M)
    }
    assert heads <= set(re.findall(r"\]\(#([\w-]+)\)", BEHAVIOURS))


@pytest.mark.parametrize("row", BEHAVING, ids=words)
def test_a_report_is_a_public_one_by_its_number(row: str) -> None:
    found = REPORT.findall(row)
    assert len(found) == row.count("https://"), "each link is the number of an issue or a pull request"
    assert all(shown == linked for _, shown, _, linked in found)


def test_every_setting_that_decides_on_trust_is_explained() -> None:
    from otelctx.settings import Settings

    names = set(re.findall(r"^    (OTELCTX_\w+) ", Settings.__doc__ or "", re.M))
    deciding = {name for name in names if re.search("KEYS|TRUST|ALLOW", name)}
    assert len(deciding) >= 6
    assert deciding <= set(re.findall(r"OTELCTX_\w+", SECURITY)) <= names
