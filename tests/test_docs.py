"""The documents: generated tables are fresh, links lead somewhere."""

import re
from pathlib import Path

import pytest

from experiments.tables.render import update

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_what_the_results_files_give(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert update(text, ROOT / "experiments" / "results") == text, (
        "run: python -m experiments.tables README.md docs/*.md"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]
