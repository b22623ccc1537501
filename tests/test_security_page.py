"""Each line of the threat tables names tests, and those exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
THREATS = PAGE.partition("\n## Threats\n")[2].partition("\n## ")[0]
ROWS = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| what happens")]
LINK = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row.split("|")[1])[:50])
def test_every_threat_is_shown_by_tests_that_exist(row: str) -> None:
    _, what, follows, shown, _ = row.split("|")
    assert what.strip()
    assert follows.strip()
    links = LINK.findall(shown)
    assert links
    assert not LINK.sub("", shown).strip(), "nothing but links"
    for path, name in links:
        assert name.startswith("test_")
        assert name in functions(path), f"{path} has no {name}"


def test_there_are_no_other_links_to_tests_and_no_dead_ones_within_the_page() -> None:
    assert len(ROWS) > 55
    assert set(LINK.findall(PAGE)) == set(LINK.findall(THREATS))
    heads = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= heads


def test_every_setting_that_decides_on_trust_is_explained() -> None:
    from otelctx.settings import Settings

    names = set(re.findall(r"^    (OTELCTX_\w+) ", Settings.__doc__ or "", re.M))
    deciding = {name for name in names if re.search("KEYS|TRUST|ALLOW", name)}
    assert len(deciding) >= 6
    assert deciding <= set(re.findall(r"OTELCTX_\w+", PAGE)) <= names
