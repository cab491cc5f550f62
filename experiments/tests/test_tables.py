"""Generated tables: what stands in them, and that they stay what the results say."""

import json
from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation.results import write_results
from experiments.tables.audit import gradients_before_and_after
from experiments.tables.render import TableError, ablation_table, main, main_table, margin_table, update

TASKS = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
PAGE = (
    "# Page\n\nBefore.\n\n<!-- table:small -->\n<!-- end table -->\n\n"
    "Between.\n\n<!-- table:small/lambda -->\nold\n<!-- end table -->\n\nAfter.\n"
)


def spread(mean: float, std: float | None = 0.5) -> dict[str, Any]:
    return {"mean": mean, "std": std, "n": 3}


def experiment(title: str, base: float, **more: Any) -> dict[str, Any]:
    test = {task: spread(base + index) for index, task in enumerate(TASKS)} | {"Avg": spread(base + 3)}
    corpus = [{"name": "wiki_small.txt", "rows": 100000}]
    known = {"kind": "selected", "seeds": [42, 43, 44], "finished_seeds": [42, 43, 44], "dev": spread(base + 9)}
    return {"title": title, **known, "test": test, "backbone": ["mini"], "corpus": corpus, **more}


@pytest.fixture
def summary() -> dict[str, Any]:
    rows = [
        {"label": "0.04", "trial": "weight/low", "paper": 76.09},
        {"label": "0.4", "trial": "weight/reference", "paper": 77.3},
        {"label": "4", "trial": "weight/high", "paper": 77.18},
    ]
    table = {"title": "Weight of a term", "column": "λ", "source": "A paper, Table 5", "paper_column": "Avg."}
    listed = {
        "title": "W",
        "kind": "listed",
        "seeds": [42],
        "trials": {"low": 70.125, "reference": 71.0, "high": None},
    }
    listed |= {"backbone": ["mini"], "corpus": [{"name": "wiki_small.txt", "rows": 100000}]}
    plain = experiment("plain", 60.0)
    other = experiment("a|b", 61.0, p_value=0.0312)
    return {
        "schema": 1,
        "plan": "small",
        "baseline": "plain",
        "experiments": {"plain": plain, "other": other, "weight": listed},
        "tables": {"lambda": {**table, "rows": rows}},
    }


@pytest.fixture
def results(tmp_path: Path, summary: dict[str, Any]) -> Path:
    (tmp_path / "results" / "small").mkdir(parents=True)
    (tmp_path / "results" / "small" / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "results"


def test_main_table(summary: dict[str, Any]) -> None:
    caption, _, head, rule, plain, other = main_table(summary).splitlines()
    assert "backbone mini, stand-in Wikipedia corpus wiki_small.txt (100,000 sentences)" in caption
    assert "mean ± standard deviation over the seeds 42, 43, 44" in caption and "p: against plain" in caption
    assert head == "|  | " + " | ".join([*TASKS, "Avg", "STS-B dev", "p"]) + " |"
    assert rule.count("|") == head.count("|")
    assert plain.startswith("| plain | 60.00 ± 0.50 | 61.00 ± 0.50") and plain.endswith(
        "63.00 ± 0.50 | 69.00 ± 0.50 |  |"
    )
    assert other.startswith("| a\\|b |") and other.endswith("| 0.031 |")


def test_main_table_without_p_values_and_with_an_untrained_row(summary: dict[str, Any]) -> None:
    del summary["experiments"]["other"]["p_value"]
    untrained = {"kind": "command", "finished_seeds": [None], "dev": None, "backbone": ["mini"], "corpus": []}
    untrained["test"] = {"STS12": spread(40.0, None), "Avg": spread(40.0, None)}
    summary["experiments"]["untrained"] = {"title": "untrained", **untrained}
    caption, _, head, *rows = main_table(summary).splitlines()
    assert head.endswith("| Avg | STS-B dev | seeds |") and " p" not in head
    assert "seeds 42, 43, 44" in caption
    assert rows[-1] == "| untrained | 40.00 | – | – | – | – | – | – | 40.00 | – | 1 |"


def test_ablation_table_has_the_papers_number_beside_ours(summary: dict[str, Any]) -> None:
    caption, _, head, _, *rows = ablation_table(summary, "lambda").splitlines()
    assert "A paper, Table 5" in caption
    assert "stand-in Wikipedia corpus" in caption
    assert "backbone mini" in caption
    assert head == "| λ | ours, STS-B dev | paper, Avg. |"
    assert "different models, corpora and test sets" in caption
    summary["tables"]["lambda"]["paper_column"] = "STS-B dev, BERT-base"
    assert "different models and corpora:" in ablation_table(summary, "lambda")
    assert rows == ["| 0.04 | 70.12 | 76.09 |", "| 0.4 | 71.00 | 77.30 |", "| 4 | – | 77.18 |"]


def test_where_the_papers_number_is_of_dev_ours_stands_before_the_test_sets(summary: dict[str, Any]) -> None:
    table = summary["tables"]["lambda"]
    table |= {"rows": [{"label": "0", "trial": "plain", "paper": 82.2}], "paper_column": "STS-B dev, BERT-base"}
    caption, _, head, _, row = ablation_table(summary, "lambda").splitlines()
    assert head == "| λ | ours, STS-B dev | ours, Avg of the test sets | paper, STS-B dev, BERT-base |"
    assert row == "| 0 | 69.00 ± 0.50 | 63.00 ± 0.50 | 82.20 |"
    assert "STS-B dev and Avg of the test sets" in caption and "different models and corpora:" in caption
    assert "over the seeds 42, 43, 44" in caption


def test_seeds_that_have_not_run_are_not_named(summary: dict[str, Any]) -> None:
    """Regression: the caption named the seeds of the plan."""
    table = summary["tables"]["lambda"]
    table |= {"rows": [{"label": "0", "trial": "plain", "paper": 82.2}], "paper_column": "Avg. of the test sets"}
    first, *_ = (each for name, each in summary["experiments"].items() if name == "plain")
    for seeds, told in (([42], "one seed (42)"), ([42, 43], "over the seeds 42, 43.")):
        first["finished_seeds"] = seeds
        assert told in ablation_table(summary, "lambda").splitlines()[0]
    other = {**first, "finished_seeds": [42]}
    summary["experiments"]["short"] = other
    table["rows"].append({"label": "1", "trial": "short", "paper": None})
    assert "over the seeds that a row has, of 42, 43." in ablation_table(summary, "lambda").splitlines()[0]


def test_margins_stand_beside_the_papers(results: Path, summary: dict[str, Any]) -> None:
    rows = {"other": {"plain": {"mean": 1.0, "std": 0.25, "n": 3, "p_value": 0.0312}}}
    summary["margins"] = {"against": ["plain"], "paper": {"other": 2.6}, "source": "A paper, Table 2", "rows": rows}
    caption, _, head, _, *body = margin_table(summary).splitlines()
    assert "over 3 seeds" in caption and caption.endswith("Paper: A paper, Table 2.")
    assert head == "|  | Avg | less plain | p | paper |"
    assert body == ["| a\\|b | 64.00 ± 0.50 | +1.00 ± 0.25 | 0.031 | +2.60 |"]
    rows["other"]["plain"] |= {"mean": -0.5, "std": None, "n": 1}
    assert "| -0.50 |" in margin_table(summary) and "same seed; one seed; p:" in margin_table(summary)
    rows["other"]["plain"]["n"] = 3
    (results / "small" / "summary.json").write_text(json.dumps(summary))
    assert body[0].replace("+1.00 ± 0.25", "-0.50") in update(
        "<!-- table:small/margins -->\n<!-- end table -->\n", results
    )
    rows["plain"] = {"other": {"mean": 0.5, "std": None, "n": 3, "p_value": 0.5}}  # each row has a base of its own
    head, _, *body = margin_table(summary).splitlines()[2:]
    assert head == "|  | Avg | less | difference | p | paper |"
    assert body[0] == "| a\\|b | 64.00 ± 0.50 | plain | -0.50 | 0.031 | +2.60 |"
    assert body[1].startswith("| plain | ") and body[1].endswith(" | a\\|b | +0.50 | 0.500 | – |")
    with pytest.raises(TableError, match="has no margins"):
        margin_table(summary | {"margins": {**summary["margins"], "rows": {}}})


def test_without_a_source_there_is_no_column_for_a_paper(summary: dict[str, Any]) -> None:
    del summary["tables"]["lambda"]["source"]
    caption, _, head, _, *rows = ablation_table(summary, "lambda").splitlines()
    assert "aper" not in caption and caption.endswith("so small differences say nothing.")
    assert head == "| λ | ours, STS-B dev |" and rows == ["| 0.04 | 70.12 |", "| 0.4 | 71.00 |", "| 4 | – |"]


def test_only_wikipedia_text_is_called_a_stand_in_for_it(summary: dict[str, Any]) -> None:
    summary["experiments"]["weight"]["corpus"] = [{"name": "nli.csv", "rows": 5000}]
    caption = ablation_table(summary, "lambda").splitlines()[0]
    assert "backbone mini, corpus nli.csv (5,000 rows)" in caption


def test_insertion_is_idempotent_and_leaves_the_rest_alone(results: Path) -> None:
    once = update(PAGE, results)
    assert update(once, results) == once
    assert "\nold\n" not in once
    for text in ("# Page\n\nBefore.\n\n<!-- table:small -->\n", "<!-- end table -->\n\nBetween.\n\n", "\n\nAfter.\n"):
        assert text in once


def test_check_fails_on_a_stale_table_and_changes_nothing(results: Path, summary: dict[str, Any]) -> None:
    page = results.parent / "README.md"
    page.write_text(PAGE)
    arguments = [str(page), "--results", str(results)]
    assert main([*arguments, "--check"]) == 1 and page.read_text() == PAGE
    assert main(arguments) == 0 and main([*arguments, "--check"]) == 0
    summary["experiments"]["plain"]["test"]["STS12"]["mean"] = 12.0
    (results / "small" / "summary.json").write_text(json.dumps(summary))
    assert main([*arguments, "--check"]) == 1
    page.write_text(page.read_text().replace("76.09", "99.09"))  # a number typed by hand
    assert main(arguments) == 0
    assert "99.09" not in page.read_text()
    assert "12.00" in page.read_text()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- table:small -->\nno end\n", "needs an <!-- end table -->"),
        ("<!-- table:small -->\n<!-- table:small -->\n<!-- end table -->\n", "needs an <!-- end table -->"),
        ("<!-- table:other -->\n<!-- end table -->\n", "run experiments/run_seeds.py first"),
        ("<!-- table:small/mu -->\n<!-- end table -->\n", "has the tables"),
    ],
)
def test_errors(results: Path, page: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TableError, match=message):
        update(page, results)
    (results.parent / "page.md").write_text(page)
    assert main([str(results.parent / "page.md"), "--results", str(results)]) == 2
    assert message in capsys.readouterr().err


def test_no_scores_no_table(summary: dict[str, Any]) -> None:
    summary["experiments"] = {"weight": summary["experiments"]["weight"]}
    with pytest.raises(TableError, match="no experiment has test scores"):
        main_table(summary)


def test_gradients_before_and_after_pair_rows_of_one_weight(tmp_path: Path) -> None:
    """Untrained rows beside untrained ones, trained beside trained ones, each with its own step."""

    def row(step: int, norm: float, weight: float | None = None) -> dict[str, Any]:
        terms = {"contrastive": {"norm": 10 * norm, "share": 1.0}, "rtd": {"norm": norm, "share": 0.1}}
        weights = {} if weight is None else {"weights": {"contrastive": 1.0, "rtd": weight}}
        return {"title": "diffcse", "step": step, "terms": terms, **weights}

    run = {"repetitions": 2, "batch_size": 4, "corpus": "wiki.txt"}
    files = {"audit/gradients-neighbours": [row(0, 1), row(1563, 2)]}
    files["gradients/mini-wiki"] = [row(100, 3, 0.005), row(0, 4, 0.005), row(100, 5, 1.0)]
    for name, rows in files.items():
        write_results(tmp_path / f"{name}.json", {"run": run, "rows": rows})
    _, head, body = gradients_before_and_after(tmp_path)
    assert head == ["", "term", "step", "before", "× contrast", "step", "after", "× contrast"]
    assert body == [
        ["diffcse", "contrastive", "0", "10", "–", "0", "40", "–"],
        ["diffcse", "rtd", "0", "1", "0.1", "0", "4", "0.1"],
        ["diffcse", "contrastive", "1,563", "20", "–", "100", "30", "–"],
        ["diffcse", "rtd", "1,563", "2", "0.1", "100", "3", "0.1"],
    ]
