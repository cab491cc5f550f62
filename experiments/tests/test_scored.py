"""Experiments that score the encoders of others, and the second column of an ablation table that they fill."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.plan import Plan
from experiments.tables.plans import plans_table
from experiments.tables.render import TableError, ablation_table
from experiments.trial import PlanError

#: Stands for ``csekit eval --tasks transfer``: the score is 80 and the number of files in the encoder's folder.
SCORE = (
    "import json, pathlib, sys; files = len(list(pathlib.Path(sys.argv[1]).glob('*.json'))); "
    "json.dump({'transfer': {'avg': 80.0 + files}}, open(sys.argv[2], 'w'))"
)


def scored_plan(bench: Any) -> Any:
    """Two listed trials and one experiment of two seeds, whose encoders are scored on further sets."""
    bench.plan |= {"grid": {}, "baseline": None, "makes": "a table"}
    bench.plan["arguments"]["learning_rate"] = 1e-5
    bench.plan["experiments"] = {
        "amounts": {"trials": {"low": {"weight": 1}, "high": {"weight": 4}}},
        "main": {"seeds": [42, 43]},
        "transfer": {"scores": ["amounts", "main"], "command": ["-c", SCORE, "{scored}", "{output_dir}/results.json"]},
    }
    second = {"column": "Avg. transfer", "scores": "transfer", "ours": "accuracy × 100"}
    shared = {"title": "Weight", "column": "λ", "source": "A paper, Table 3", "second": second}
    rows = [
        {"label": "1", "trial": "amounts/low", "paper": 76.09, "second": 85.2},
        {"label": "4", "trial": "amounts/high", "paper": 77.18, "second": 85.03},
    ]
    average = [{"label": "all", "trial": "main", "paper": "75.81 ± 0.41", "second": 86.5}]
    bench.plan["tables"] = {
        "amounts": {**shared, "paper_column": "STS-B dev, BERT-base", "rows": rows},
        "main": {**shared, "paper_column": "Avg. of seven STS test sets", "rows": average},
    }
    return bench


@pytest.fixture
def scored(bench: Any) -> Any:
    return scored_plan(bench)


@pytest.fixture(scope="module")
def finished(new_bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The plan after its run."""
    bench = scored_plan(new_bench(tmp_path_factory.mktemp("scored")))
    assert bench.run() == 0
    return bench


def test_every_trial_of_the_named_experiments_is_scored(finished: Any) -> None:
    summary = finished.summary()["experiments"]["transfer"]
    labels = ["amounts/low", "amounts/high", "main/seed=42", "main/seed=43"]
    assert sorted(summary["finished"]) == sorted(labels)
    assert summary["transfer"] == dict.fromkeys(labels, 82.0)
    needs = finished.record("transfer/amounts.low")["trial"]["arguments"]["needs"]
    assert list(needs) == ["amounts/low"]


def test_a_command_knows_folder_and_label_of_what_it_scores(scored: Any) -> None:
    scored.plan["experiments"]["transfer"]["command"] = ["-c", "pass", "{scored}", "--title", "{label}"]
    trial = Plan.from_dict(scored.plan).experiments["transfer"].first_trials()[0]
    words = trial.argv(Path("runs"), resume=False)
    assert words == ["-c", "pass", "runs/amounts/low", "--title", "amounts/low"]


def test_the_second_column_has_our_number_beside_the_papers(finished: Any) -> None:
    caption, _, head, _, *rows = ablation_table(finished.summary(), "amounts").splitlines()
    assert head == "| λ | ours, STS-B dev | paper, STS-B dev, BERT-base | ours, Avg. transfer | paper, Avg. transfer |"
    assert rows == ["| 1 | 79.90 | 76.09 | 82.00 | 85.20 |", "| 4 | 79.90 | 77.18 | 82.00 | 85.03 |"]
    assert "Avg. transfer: accuracy × 100." in caption


def test_a_row_of_an_experiment_has_the_average_of_its_test_sets(finished: Any) -> None:
    average = finished.summary()["experiments"]["main"]["test"]["Avg"]
    caption, _, head, _, row = ablation_table(finished.summary(), "main").splitlines()
    assert head.startswith("| λ | ours, Avg of the test sets | paper, Avg. of seven STS test sets | ours, Avg. tr")
    assert row == f"| all | {average['mean']:.2f} ± {average['std']:.2f} | 75.81 ± 0.41 | 82.00 | 86.50 |"
    assert "mean ± standard deviation over the seeds 42, 43" in caption


def test_a_second_column_that_was_not_measured_keeps_the_papers_number(finished: Any) -> None:
    summary = finished.summary()
    del summary["tables"]["amounts"]["second"]["scores"]
    caption, *_, row = ablation_table(summary, "amounts").splitlines()
    assert row == "| 4 | 79.90 | 77.18 | – | 85.03 |"
    assert "Avg. transfer: ours was not measured." in caption


def test_a_table_does_not_mix_trials_and_experiments(finished: Any) -> None:
    summary = finished.summary()
    summary["tables"]["amounts"]["rows"][0]["trial"] = "main"
    with pytest.raises(TableError, match="every row must name a trial, or every row an experiment"):
        ablation_table(summary, "amounts")


def test_scored_experiments_count_as_run_when_every_encoder_is_scored(finished: Any, tmp_path: Path) -> None:
    shutil.copy(finished.folder / "plan.yaml", tmp_path / "small.yaml")
    _, _, [row] = plans_table(finished.results, tmp_path)
    assert row[-1] == "yes"


def test_the_scores_are_printed(finished: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert finished.run("--summarise") == 0
    assert "transfer: amounts/low" in capsys.readouterr().out


def test_a_renewed_summary_has_the_plans_tables_and_runs_nothing(scored: Any, finished: Any) -> None:
    shutil.copytree(finished.results, scored.results)
    scored.plan["arguments"] = finished.plan["arguments"]
    scored.plan["script"] = finished.plan["script"]
    scored.plan["tables"]["amounts"]["rows"][0]["second"] = 99.5
    scored.plan["experiments"]["later"] = {}
    assert scored.run("--summarise") == 0
    assert not scored.calls()
    assert "| 82.00 | 99.50 |" in ablation_table(scored.summary(), "amounts")
    assert "test" not in scored.summary()["experiments"]["later"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"scores": ["nowhere"]},
            "transfer.scores must name earlier experiments without a grid, or their trials, got",
        ),
        ({"scores": ["main", "main/seed=42"]}, "transfer.scores must name each trial once"),
        ({"command": ["-c", "pass"]}, r"transfer.scores: command must hold the word {scored}"),
    ],
)
def test_what_cannot_be_scored_is_refused(scored: Any, change: dict[str, Any], message: str) -> None:
    scored.plan["experiments"]["transfer"] |= change
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(scored.plan)


def test_a_table_takes_its_second_column_from_scores(scored: Any) -> None:
    scored.plan["tables"]["amounts"]["second"]["scores"] = "main"
    with pytest.raises(PlanError, match=r"second.scores must be an experiment with scores, one of \['transfer'\]"):
        Plan.from_dict(scored.plan)
