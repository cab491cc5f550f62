"""docs/audit.md: the tests and commits that it names exist, and what it says of the pages and the results is so."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
GUARDS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
COMMITS = sorted(set(re.findall(r"`([0-9a-f]{7})`", PAGE)))


def rows() -> list[list[str]]:
    """Cells of the rows of the items' tables."""
    items = PAGE.split("\n## Gradients")[0]
    lines = [line for line in items.splitlines() if line.startswith("| ") and not line.startswith("| item |")]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0])
def test_every_item_names_a_commit_and_a_test(cells: list[str]) -> None:
    assert re.search(r"`[0-9a-f]{7}`", cells[-2])
    assert re.search(r"`[\w/]+\.py::test_\w+`", cells[-1])


@pytest.mark.parametrize(("path", "name"), GUARDS)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_named_commits_are_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("needs the repository's history")
    history = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=True).stdout.split()
    assert not [commit for commit in COMMITS if not any(full.startswith(commit) for full in history)]


def test_the_page_on_combinations_sends_to_the_gradients() -> None:
    page = (ROOT / "docs" / "combine.md").read_text(encoding="utf-8")
    advice = page.split("Weights of different objectives cannot be compared", 1)[1][:900]
    assert "benchmarks/term_gradients.py" in advice


def test_later_evaluations_fall_as_far_as_the_page_says() -> None:
    firsts, falls = [], []
    for method in ("infocse", "diffcse", "joint"):
        for path in sorted((ROOT / "experiments/results/infocse-diffcse" / method).glob("seed=*.json")):
            history = json.loads(path.read_text(encoding="utf-8"))["dev"]["history"]
            scores = [row["stsb_spearman"] for row in history]
            firsts.append(max(scores) - scores[0])
            falls.append(max(scores) - min(scores[1:]))
    assert len(firsts) == 9
    page = " ".join((ROOT / "docs" / "mini-wiki.md").read_text(encoding="utf-8").split())
    assert f"is within {max(firsts):.1f} of the run's best" in page
    assert f"fall to between {min(falls):.1f} and {max(falls):.1f} below the best" in page
