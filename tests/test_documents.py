"""The documents speak of what is there: links lead somewhere, paths and names exist, lists are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvlenv.policies.heuristics.rule import MODIFIERS, PACKINGS

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([^)]*))?\)")
PATH = re.compile(
    r"(?<![\w/.-])((?:nvlenv|agents|configs|tests|docs)/[\w./-]*(?:\.(?:py|yaml|json|md|png|csv|gz)\b|/(?=`)))"
)
MADE = ("lab-24.yaml", "gridlab.py", "tuned.yaml")  # by who follows the documents


def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        found = (page.parent / target) if target else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), (target, anchor)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in PATH.findall(page.read_text("utf-8")):
        assert (ROOT / path).exists() or path.endswith(MADE), path


def test_names_are_where_the_map_says() -> None:
    rows = [row for row in (ROOT / "docs" / "architecture.md").read_text("utf-8").splitlines() if row.startswith("| ")]
    named = [(path, names) for row in rows for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", row)]

    assert len(named) > 10
    for path, names in named:
        source = (ROOT / path).read_text("utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(?:def|class) {name}\b", source, re.M), (path, name)


def test_the_readme_names_every_part_of_a_heuristic() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")

    assert [name for name in PACKINGS if f"`{name}`" not in readme] == []
    assert [name for name in MODIFIERS if f"`+{name}`" not in readme] == []
