"""Plans in which one run starts from another's folder, or whose rows another plan has measured."""

import json
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.clock import Clock
from experiments.plan import Plan
from experiments.trial import PlanError

MAKE = (
    "import json, os, pathlib, sys; out = pathlib.Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True); "
    "os.environ.get('MAKE_FAILS') and sys.exit(3); (out / 'weights').write_text(sys.argv[2]); "
    "json.dump({'backbone': 'mini', 'seed': 42}, open(out / 'results.json', 'w'))"
)


@pytest.fixture
def staged(bench: Any) -> Any:
    """A first run whose folder the second experiment reads."""
    first = {"command": ["-c", MAKE, "{output_dir}", "1"], "run_name": "made"}
    reads = {"arguments": {"backbone": "{folder:first/made}"}}
    bench.plan["experiments"] = {"first": first, "one": {}, "two": reads}
    bench.plan |= {"grid": {}, "seeds": [42], "arguments": bench.plan["arguments"] | {"learning_rate": 1e-4}}
    return bench


def test_a_run_starts_from_the_folder_of_an_earlier_one(staged: Any) -> None:
    assert staged.run() == 0
    folder = staged.folder / "runs" / "first" / "made"
    assert (folder / "weights").read_text() == "1"
    record = staged.record("two/seed=42")
    assert record["backbone"] == "made" and record["arguments"]["backbone"] == "made"
    assert list(record["trial"]["arguments"]["needs"]) == ["first/made"]
    assert str(staged.folder) not in json.dumps(record)
    calls = staged.calls()
    assert staged.run() == 0 and staged.calls() == calls


def test_every_row_has_a_run_before_any_has_two(bench: Any) -> None:
    bench.plan["experiments"] = {"one": {}, "two": {}}
    bench.plan |= {"grid": {}, "seeds": [43, 42], "arguments": bench.plan["arguments"] | {"learning_rate": 1e-4}}
    assert bench.run() == 0
    started = [call.partition(" ")[0] for call in bench.calls() if call.endswith(" start")]
    assert started == ["one/seed=43", "two/seed=43", "one/seed=42", "two/seed=42"]


def test_what_waits_for_a_failed_run_is_not_started(
    staged: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAKE_FAILS", "1")
    assert staged.run() == 1
    assert "two/seed=42  not started, waits for first/made, which has no result" in capsys.readouterr().out
    assert {label.split("/")[0] for label in staged.starts()} == {"one"}
    monkeypatch.delenv("MAKE_FAILS")
    assert staged.run() == 0
    assert staged.starts() == {"one/seed=42": 1, "two/seed=42": 1}


def test_a_folder_that_is_gone_is_not_trained_from(staged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    staged.plan["experiments"].pop("two")
    assert staged.run() == 0
    shutil.rmtree(staged.folder / "runs" / "first")
    staged.plan["experiments"]["two"] = {"arguments": {"backbone": "{folder:first/made}"}}
    assert staged.run() == 1
    assert "the folder of first/made, which is not there" in capsys.readouterr().out
    assert "two" not in {label.split("/")[0] for label in staged.starts()}


def test_another_first_run_makes_other_runs_of_those_behind_it(
    staged: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert staged.run() == 0
    for path in (staged.results / "small" / "first", staged.folder / "runs" / "first"):
        shutil.rmtree(path)
    staged.plan["experiments"]["first"]["command"][-1] = "2"
    assert staged.run() == 2
    error = capsys.readouterr().err
    assert "two/seed=42" in error and "needs: {'first/made'" in error


@pytest.mark.parametrize("label", ["second/run", "two/seed=42", "first/no", ""])
def test_a_run_waits_for_an_earlier_run_only(staged: Any, label: str) -> None:
    staged.plan["experiments"]["two"]["arguments"]["backbone"] = f"{{folder:{label}}}"
    staged.plan["experiments"]["second"] = {"command": ["-c", "pass"]}
    with pytest.raises(
        PlanError,
        match=r"must be a run of an earlier experiment without a grid, one of .*one/seed=42",
    ):
        Plan.from_dict(staged.plan)


def test_a_command_says_nothing_of_the_minutes_of_another(staged: Any) -> None:
    staged.plan["experiments"]["first"]["seconds_per_trial"] = 1000
    staged.plan["experiments"]["second"] = {"command": ["-c", "pass"], "seconds_per_trial": 10}
    plan = Plan.from_dict(staged.plan)
    clock, first, second = Clock(plan), plan.trial("first/made"), plan.trial("second/run")
    clock.add(first, {"train": 500.0, "total": 600.0})
    assert (clock.seconds(first), clock.seconds(second)) == (600, 10)


def test_the_steps_of_a_warm_up_count(staged: Any) -> None:
    """A run of one step behind 300 of warm-up said that every step of the others takes 300 times as long."""
    staged.plan["experiments"]["two"]["arguments"] |= {"max_steps": 1, "objective_warmup_steps": 299}
    plan = Plan.from_dict(staged.plan)
    clock, trial = Clock(plan), plan.trial("two/seed=42")
    assert trial.steps == 300
    clock.add(trial, {"train": 600.0})
    other = replace(trial, arguments={**trial.arguments, "max_steps": "100", "objective_warmup_steps": "0"})
    assert clock.seconds(other) == pytest.approx(200 + (plan.experiments["two"].seconds_per_trial or 0))


@pytest.fixture
def second_plan(bench: Any) -> Any:
    """A plan whose first row is the one that ``small`` has measured."""
    bench.plan["experiments"].pop("two")
    bench.plan |= {"grid": {"learning_rate": [1e-4]}, "seeds": [42, 43, 44]}
    assert bench.run() == 0
    bench.calls_file.unlink()
    bench.plan["experiments"] = {"one": {"title": "One", "measured_in": "small"}, "three": {"title": "Three"}}
    bench.plan |= {"name": "second", "margins": {"against": ["one"], "paper": {"three": 2.6}, "source": "a table"}}
    return bench


def summary_of(bench: Any, plan: str) -> dict[str, Any]:
    return dict(json.loads((bench.results / plan / "summary.json").read_text()))


def test_what_another_plan_measured_is_read_and_not_run(second_plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert second_plan.run() == 0
    assert {label.split("/")[0] for label in second_plan.starts()} == {"three"}
    assert "one/seed=42" in capsys.readouterr().out
    first, second = summary_of(second_plan, "small")["experiments"], summary_of(second_plan, "second")["experiments"]
    assert second["one"] == first["one"] | {"measured_in": "small"}
    assert 0 < second["three"]["p_value"] <= 1 and "p_value" not in second["one"]
    assert not (second_plan.results / "second" / "one").exists()


def test_margins_are_differences_seed_by_seed(second_plan: Any) -> None:
    (second_plan.results / "small" / "one" / "seed=43.json").unlink()  # not measured yet there
    second_plan.plan["experiments"]["three"]["grid"] = {"learning_rate": [1e-5]}
    assert second_plan.run() == 0
    margins = summary_of(second_plan, "second")["margins"]
    assert margins["paper"] == {"three": 2.6} and set(margins["rows"]) == {"three"}
    # the stand-in scores 50 + 10,000 learning rates + (seed - 42)²: the seeds' own part cancels, seed by seed only
    row = margins["rows"]["three"]["one"]
    np.testing.assert_allclose((row["mean"], row["std"]), (-0.9, 0.0), atol=1e-9)
    assert row["n"] == 2 and 0 < row["p_value"] <= 1


def test_a_margin_against_an_own_base(second_plan: Any) -> None:
    second_plan.plan["experiments"]["four"] = {"title": "Four", "grid": {"learning_rate": [3e-5]}}
    second_plan.plan["margins"] = {"against": {"three": "one", "four": ["three", "one"]}}
    assert second_plan.run() == 0
    rows = summary_of(second_plan, "second")["margins"]["rows"]
    assert {name: list(row) for name, row in rows.items()} == {"three": ["one"], "four": ["three", "one"]}
    np.testing.assert_allclose([rows["three"]["one"]["mean"], rows["four"]["three"]["mean"]], [0.0, -0.7], atol=1e-9)


def test_an_untrained_encoder_has_no_margin(second_plan: Any) -> None:
    code = "import json, sys; json.dump({'test': {'tasks': {}, 'avg': 40.0}}, open(sys.argv[1], 'w'))"
    second_plan.plan["experiments"]["untrained"] = {"command": ["-c", code, "{output_dir}/results.json"]}
    assert second_plan.run() == 0
    summary = summary_of(second_plan, "second")
    assert summary["experiments"]["untrained"]["test"]["Avg"]["mean"] == 40.0
    assert set(summary["margins"]["rows"]) == {"three"}


def test_rows_on_other_terms_are_refused(second_plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    second_plan.plan["arguments"]["max_steps"] = 4
    assert second_plan.run() == 2 and not second_plan.calls()
    error = capsys.readouterr().err
    assert "small/one/seed=42.json belongs to other arguments" in error and "max_steps: '3' there, '4' now" in error


def test_rows_that_are_not_measured_yet_are_left_out(second_plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(second_plan.results / "small")
    assert second_plan.run() == 0
    assert "not yet in small" in capsys.readouterr().out
    summary = summary_of(second_plan, "second")
    assert "test" not in summary["experiments"]["one"] and summary["margins"]["rows"] == {}


def test_margins_name_experiments(second_plan: Any) -> None:
    for wrong in ({"paper": {"four": 1.0}}, {"against": {"four": "one"}}, {"against": {"three": "four"}}):
        margins = second_plan.plan["margins"] | wrong
        with pytest.raises(PlanError, match=r"margins must name experiments.*'four'"):
            Plan.from_dict(second_plan.plan | {"margins": margins})
