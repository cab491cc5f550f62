"""docs/paper_index.md: what it names exists, and it leaves out no equation, table or figure of the papers."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from csekit.trainers import parse_run_arguments

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
SYMBOLS = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:examples|experiments|benchmarks)/[\w./-]+\.(?:py|yaml))(?::[\w-]+)?`", PAGE)))
NAMED = sorted(set(re.findall(r"`(experiments/plans/[\w./-]+\.yaml):([\w-]+)`", PAGE)))
#: Numbered equations, tables and figures of each paper, counted in the paper. DiffCSE numbers no equation.
COUNTS = {"InfoCSE": (7, 12, 1), "DiffCSE": (0, 15, 2), "InforMin-CL": (10, 7, 3), "MSSE": (18, 8, 8)}


@pytest.mark.parametrize(("path", "name"), SYMBOLS, ids=lambda part: str(part))
def test_a_symbol_resolves(path: str, name: str) -> None:
    module = import_module("csekit." + path.removesuffix(".py").replace("/", "."))
    assert callable(reduce(getattr, name.split("."), module))


@pytest.mark.parametrize("path", FILES)
def test_a_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: str(part))
def test_a_plan_has_the_table_or_the_experiment(path: str, name: str) -> None:
    plan = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    assert name in {*plan.get("tables", {}), *plan["experiments"]}


def options() -> list[str]:
    """Options of ``run_unsup.py`` that the page gives beside presets, each once."""
    found = re.findall(r"`(--[a-z_]+[^`]*)`", PAGE)
    return sorted({option for text in found for option in re.findall(r"--([a-z_]+)", text)} - {"model_type"})


@pytest.mark.parametrize("name", options())
def test_an_option_of_a_preset_is_known(name: str, capsys: pytest.CaptureFixture) -> None:
    """A word that is no number is refused with the option's own name, or read: never as an unknown option."""
    words = [
        "--method",
        "joint",
        "--objectives",
        "aux_mlm",
        "rtd",
        "edited",
        "dcm",
        "icm",
        "tsdae",
        "reconstruction",
        "mlm",
        "guided",
        "rank",
        "towers",
        "token_information",
        "smoothing",
        "attention",
        "distill",
        "margin",
    ]
    try:
        parse_run_arguments([*words, "--model_name_or_path", "x", "--train_file", "y", f"--{name}", "0"])
    except SystemExit:
        assert "unknown" not in capsys.readouterr().err


def covered(section: str, kind: str) -> set[int]:
    """Numbers in the first cells of a table whose head begins with ``kind`` ("equation" or "table")."""
    numbers: set[int] = set()
    for block in re.findall(rf"^\| {kind}[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", section, re.MULTILINE):
        for row in block.splitlines():
            cell = row.split("|")[1].strip()
            if re.fullmatch(r"[\d, to]+", cell):
                ends = [int(number) for number in re.findall(r"\d+", cell)]
                numbers |= set(range(ends[0], ends[-1] + 1)) if "to" in cell else set(ends)
    return numbers


def figures(section: str) -> set[int]:
    found = re.findall(r"^\| Figs?\. (\d+)(?: to (\d+))? \|", section, re.MULTILINE)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("paper", COUNTS)
def test_nothing_of_a_paper_is_left_out(paper: str) -> None:
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0] + "\n"
    equations, tables, drawn = COUNTS[paper]
    assert covered(section, "equation") == set(range(1, equations + 1))
    assert covered(section, "table") == set(range(1, tables + 1))
    assert figures(section) == set(range(1, drawn + 1))


def rows_of(section: str) -> dict[str, list[str]]:
    """Cells of the rows about tables and figures, by their first cell."""
    (block,) = re.findall(r"^\| table[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", section, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in block.splitlines()]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("paper", COUNTS)
def test_every_table_and_figure_that_is_run_names_a_papers_plan(paper: str) -> None:
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0] + "\n"
    for name, (_, setting, measured) in rows_of(section).items():
        no_run = measured in ("settings", "nothing to reproduce")
        assert no_run or "experiments/plans/papers/" in setting, name


@pytest.mark.parametrize("paper", COUNTS)
def test_every_table_and_figure_says_what_was_measured(paper: str) -> None:
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0] + "\n"
    for name, cells in rows_of(section).items():
        assert len(cells) == 3, name
        assert cells[2], name
