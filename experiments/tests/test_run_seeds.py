"""run_seeds.py with a stand-in for the training script: what it runs, chooses, keeps and refuses."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation import compare
from csekit.evaluation.results import read_similarities
from experiments import trial
from experiments.clock import Clock
from experiments.plan import Plan, parse_options
from experiments.processes import wait_for_left_behind
from experiments.records import TrialRecords
from experiments.run_seeds import main
from experiments.summary import spread, summarise
from experiments.tables.render import margin_table
from experiments.trial import PlanError

TASKS = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]


def test_the_choice_is_made_on_dev_and_a_test_score_in_a_grid_trial_is_ignored(bench: Any) -> None:
    bench.plan["arguments"]["leak"] = "yes"
    assert bench.run() == 0
    summary = bench.summary()["experiments"]["one"]
    leaked = [bench.record(f"one/learning_rate={rate}")["test"]["avg"] for rate in ("0.0001", "1e-05", "3e-05")]
    assert leaked[0] == max(leaked)
    assert summary["selected"]["values"] == {"learning_rate": "1e-05"}
    assert bench.record("one/seed=43")["arguments"]["learning_rate"] == "1e-05"


def test_grid_trials_are_short_dev_only_first_seed_and_finals_are_not(finished: Any) -> None:
    bench = finished
    grid, final = (bench.record(f"two/{name}")["arguments"] for name in ("learning_rate=3e-05", "seed=44"))
    assert (grid["do_predict"], grid["max_steps"], grid["seed"], grid["dropout"]) == ("False", "2", "42", "0.2")
    assert (final["do_predict"], final["max_steps"], final["seed"], final["dropout"]) == ("True", "3", "44", "0.2")
    assert not (bench.folder / "runs/two/learning_rate=3e-05/training").exists()
    assert (bench.folder / "runs/two/seed=44/training").exists()
    assert bench.record("two/seed=44")["similarities"]["file"] == "seed=44.similarities.npz"
    assert set(read_similarities(bench.results / "small/two/seed=44.json")) == set(TASKS)
    assert not (bench.results / "small/two/learning_rate=3e-05.similarities.npz").exists()


def test_p_values_against_the_baseline(bench: Any) -> None:
    bench.plan["baseline"] = "one"
    bench.run()
    experiments = bench.summary()["experiments"]
    assert "p_value" not in experiments["one"] and 0 < experiments["two"]["p_value"] <= 1


def test_p_values_are_drawn_once_at_the_end(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take minutes in a large plan. Drawn after each trial, they kept a stop signal from the other trials."""
    bench.plan["baseline"] = "one"
    drawn: list[int] = []
    bootstrap = compare.bootstrap
    monkeypatch.setattr(compare, "bootstrap", lambda *args, **kwargs: drawn.append(1) or bootstrap(*args, **kwargs))
    assert bench.run() == 0
    first = len(drawn)
    assert first > 0
    assert bench.run() == 0  # nothing is left to run
    assert len(drawn) == 2 * first


def test_every_trial_runs_once_and_a_second_call_runs_nothing(finished: Any) -> None:
    bench = finished
    assert len(bench.starts()) == 12 and set(bench.starts().values()) == {1}
    before = bench.summary()
    assert bench.run() == 0
    assert set(bench.starts().values()) == {1} and bench.summary() == before


def test_mean_and_deviation_equal_numpy(finished: Any) -> None:
    bench = finished
    one = bench.summary()["experiments"]["one"]
    records = [bench.record(f"one/seed={seed}") for seed in (42, 43, 44)]
    for task in TASKS:
        values = np.array([record["test"]["tasks"][task]["all"] for record in records])
        np.testing.assert_allclose(
            [one["test"][task][key] for key in ("mean", "std")], [values.mean(), values.std(ddof=1)]
        )
    values = np.array([record["test"]["avg"] for record in records])
    np.testing.assert_allclose(
        [one["test"]["Avg"][key] for key in ("mean", "std")], [values.mean(), values.std(ddof=1)]
    )
    values = np.array([record["dev"]["best"] for record in records])
    np.testing.assert_allclose([one["dev"][key] for key in ("mean", "std")], [values.mean(), values.std(ddof=1)])
    assert spread([3.0]) == {"mean": 3.0, "std": None, "n": 1}


def test_records_carry_no_path_of_the_machine(finished: Any) -> None:
    bench = finished
    for path in bench.results.rglob("*.json"):
        assert str(bench.folder) not in path.read_text(), path
    assert bench.record("one/seed=42")["backbone"] == "mini"


def test_killed_half_way_it_goes_on_where_it_was(bench: Any) -> None:
    bench.plan["arguments"] |= {"max_steps": 6}
    bench.plan["experiments"].pop("two")
    with bench.held(3):
        process = bench.start()
        bench.wait_for("one/seed=42 step 2")
        process.kill()
        process.communicate()
        bench.wait_for("one/seed=42 terminated")  # it dies with its driver, and has saved
    assert bench.run() == 0
    starts = {f"one/learning_rate={rate}": 1 for rate in ("0.0001", "1e-05", "3e-05")}
    assert bench.starts() == starts | {"one/seed=42": 2, "one/seed=43": 1, "one/seed=44": 1}
    steps = Counter(line for line in bench.calls() if line.startswith("one/seed=42 step"))
    assert steps == {f"one/seed=42 step {step}": 1 for step in range(6)}
    assert bench.summary()["experiments"]["one"]["finished_seeds"] == [42, 43, 44]


def test_a_trial_that_was_killed_with_its_driver_is_not_called_running(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record said running for ever."""
    bench.plan["experiments"].pop("two")
    with bench.held(1):
        process = bench.start()
        bench.wait_for("one/learning_rate=0.0001 start")
        process.kill()
        process.communicate()
        bench.wait_for("one/learning_rate=0.0001 terminated")
    wait_for_left_behind(bench.folder / "runs" / "one" / "learning_rate=0.0001", say=lambda line: None)
    assert bench.run("--dry_run") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.rstrip().endswith("killed")]
    assert "learning_rate=0.0001" in line


@pytest.mark.parametrize("value", [True, "true", 1])
def test_a_trial_that_saves_no_optimiser_starts_anew(bench: Any, value: object) -> None:
    """Its checkpoint cannot be continued: the script refused it, on every later call, too."""
    bench.plan["arguments"] |= {"save_only_model": value}
    bench.plan["experiments"].pop("two")
    with bench.held(1):
        process = bench.start()
        bench.wait_for("one/learning_rate=0.0001 step 0")
        process.terminate()
        process.communicate(timeout=60)
    left = bench.folder / "runs/one/learning_rate=0.0001/checkpoint"
    left.touch()
    assert bench.run() == 0
    assert Counter(bench.calls())["one/learning_rate=0.0001 step 0"] == 2 and not left.exists()


def test_a_second_driver_is_refused(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with bench.held(1):
        process = bench.start()
        bench.wait_for("one/learning_rate=0.0001 step 0")
        calls = bench.calls()
        assert bench.run() == 2
        error = capsys.readouterr().err
        assert f"is in use by process {process.pid}" in error
        assert error.count("\n") == 1
        assert bench.calls() == calls
        process.terminate()
        process.communicate(timeout=60)
    assert bench.run() == 0


def test_an_output_folder_that_is_a_file_is_one_line(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.folder / "runs").touch()
    assert bench.run("--summarise") == 2
    assert capsys.readouterr().err == f"error: {bench.folder / 'runs'} must be a folder, got a file\n"


def test_sigterm_reaches_the_trial_and_stops(bench: Any) -> None:
    with bench.held(1):
        process = bench.start()
        bench.wait_for("one/learning_rate=0.0001 step 0")
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert bench.calls()[-1] == "one/learning_rate=0.0001 terminated"
    state = json.loads((bench.folder / "runs/one/learning_rate=0.0001/trial.json").read_text())
    assert (state["status"], state["returncode"], state["starts"]) == ("interrupted", 143, 1)
    assert bench.run() == 0
    assert "one/learning_rate=0.0001 step 0" not in bench.calls()[4:]


def test_after_its_seconds_a_call_stops_so_that_trials_save(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with bench.held(1):
        assert bench.run("--stop_after", "2") == 143
    assert "the time is over" in capsys.readouterr().out
    assert "one/learning_rate=0.0001 terminated" in bench.calls()
    assert "p_value" not in json.dumps(bench.summary())
    assert bench.run("--stop_after", "1000") == 0
    assert bench.starts()["one/learning_rate=0.0001"] == 2
    assert "p_value" in bench.summary()["experiments"]["two"]


@pytest.mark.parametrize("given", ["0", "-3", "soon"])
def test_seconds_to_stop_after_are_above_zero(bench: Any, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.run("--stop_after", given)
    assert "--stop_after" in capsys.readouterr().err
    assert not bench.calls()


def test_weights_go_when_no_later_trial_reads_them(bench: Any) -> None:
    make = (
        "import json, pathlib, sys; out = pathlib.Path(sys.argv[1]); (out / 'rtd').mkdir(parents=True)\n"
        "for name in ('model.safetensors', 'rtd/model.safetensors', 'vocab.txt'): (out / name).write_text('weights')\n"
        "(out / 'results.json').write_text(json.dumps({'backbone': 'mini', 'seed': 42}))"
    )
    bench.plan |= {"grid": {}, "seeds": [42]}
    bench.plan["arguments"]["learning_rate"] = 1e-4
    bench.plan["experiments"] = {
        "kept": {"command": ["-c", make, "{output_dir}"]},
        "unread": {"command": ["-c", make, "{output_dir}"]},
        "one": {"arguments": {"backbone": "{folder:kept/run}"}},
    }
    assert bench.run("--drop_models") == 0
    runs = bench.folder / "runs"
    assert [path.name for path in sorted((runs / "unread/run").rglob("*")) if path.is_file()] == [
        "log.txt",
        "results.json",
        "trial.json",
        "vocab.txt",
    ]
    assert len(list((runs / "kept/run").rglob("*.safetensors"))) == 2
    assert not list((runs / "one").rglob("training"))


def test_a_failing_trial_is_recorded_and_the_others_go_on(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.plan["experiments"]["two"]["arguments"]["fail_at"] = 1e-4
    assert bench.run() == 1
    two = bench.summary()["experiments"]["two"]
    failed = two["failed"]["learning_rate=0.0001"]
    assert (failed["returncode"], failed["tail"]) == (3, ["step 3: loss is nan"])
    assert "step 3: loss is nan" in capsys.readouterr().out
    assert two["grid"]["learning_rate=0.0001"] is None and two["finished_seeds"] == [42, 43, 44]
    monkeypatch.setenv("FAKE_HEALED", "1")
    assert bench.run() == 0
    assert bench.summary()["experiments"]["two"]["failed"] == {}
    assert bench.starts()["two/learning_rate=0.0001"] == 2


def test_a_late_winner_of_the_grid_does_not_replace_final_runs(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.plan["arguments"]["fail_at"] = 1e-5  # the best point fails once, and has its score only afterwards
    assert bench.run() == 1
    record = bench.record("one/seed=42")
    monkeypatch.setenv("FAKE_HEALED", "1")
    assert bench.run() == 1
    one = bench.summary()["experiments"]["one"]
    assert one["selected"]["trial"] == "learning_rate=1e-05" and "test" not in one
    assert one["failed"]["seed=42"]["status"] == "refused" and bench.record("one/seed=42") == record


def test_a_score_that_is_not_finite_is_never_chosen(bench: Any) -> None:
    bench.plan["arguments"]["nan_at"] = 1e-5
    bench.run()
    assert bench.summary()["experiments"]["one"]["selected"]["trial"] == "learning_rate=3e-05"
    assert math.isnan(bench.record("one/learning_rate=1e-05")["dev"]["best"])


def test_changed_arguments_are_refused_before_anything_runs(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run()
    record, calls = bench.record("two/learning_rate=1e-05"), bench.calls()
    bench.plan["experiments"]["two"]["arguments"]["dropout"] = 0.3
    assert bench.run() == 2
    error = capsys.readouterr().err
    assert "dropout: '0.2' there, '0.3' now" in error and "Nothing was overwritten" in error
    assert bench.record("two/learning_rate=1e-05") == record and bench.calls() == calls


def test_the_records_alone_tell_that_a_trial_is_finished(bench: Any) -> None:
    bench.run()
    (bench.folder / "runs").rename(bench.folder / "elsewhere")
    calls = bench.calls()
    assert bench.run() == 0 and bench.calls() == calls


@pytest.mark.parametrize("name", ["model.bin", ".notes"])
def test_a_foreign_folder_is_left_alone(bench: Any, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (bench.folder / "runs/one/learning_rate=1e-05").mkdir(parents=True)
    (bench.folder / "runs/one/learning_rate=1e-05" / name).write_text("mine")
    assert bench.run() == 2 and not bench.calls()
    assert "no trial.json" in capsys.readouterr().err


def test_a_folder_in_which_a_trial_is_just_being_noted_is_no_foreign_one(bench: Any) -> None:
    (bench.folder / "runs/one/learning_rate=1e-05").mkdir(parents=True)
    (bench.folder / "runs/one/learning_rate=1e-05/.trial.json.123").write_text("{")
    assert bench.run() == 0


@pytest.mark.parametrize("named", [False, True])
def test_a_changed_config_file_counts_as_changed_arguments(
    bench: Any, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of csekit's presets, given by its name, did not count."""
    config = bench.folder / "preset.yaml"
    config.write_text("method: simcse\nper_device_train_batch_size: 7\n")
    monkeypatch.setattr(trial, "PRESETS", bench.folder)
    bench.plan["arguments"]["config"] = "preset" if named else str(config)
    assert bench.run() == 0
    assert trial.Trial("one", "x", "final", {"config": bench.plan["arguments"]["config"]}, ()).batch == 7
    config.write_text("method: informin\n")
    assert bench.run() == 2


def test_listed_trials_and_commands(bench: Any) -> None:
    code = (
        "import json, sys; json.dump({'backbone': 'mini', 'test': {'tasks': {}, 'avg': 40.0}}, open(sys.argv[1], 'w'))"
    )
    bench.plan["arguments"]["learning_rate"] = 1e-5
    bench.plan["experiments"] = {
        "one": {"trials": {"reference": {}, "weight-4": {"weight": 4}}},
        "untrained": {"command": ["-c", code, "{output_dir}/results.json"]},
    }
    assert bench.run() == 0
    experiments = bench.summary()["experiments"]
    assert experiments["one"]["trials"] == {"reference": 79.9, "weight-4": 79.9}
    assert experiments["untrained"]["test"] == {"Avg": {"mean": 40.0, "std": None, "n": 1}}
    assert bench.record("one/weight-4")["arguments"]["do_predict"] == "False"


def test_a_trial_of_other_arguments_has_no_score_in_the_summary(bench: Any) -> None:
    bench.plan["arguments"]["learning_rate"] = 1e-5
    bench.plan["experiments"] = {"one": {"trials": {"reference": {}, "weight-4": {"weight": 4}}}}
    assert bench.run() == 0
    bench.plan["experiments"]["one"]["trials"]["weight-4"] = {"weight": 5}  # as another process may have it
    records = TrialRecords(Plan.from_dict(bench.plan), bench.folder / "runs", bench.results)
    summary = summarise(records)["experiments"]["one"]
    assert summary["trials"] == {"reference": 79.9, "weight-4": None}
    assert summary["failed"]["weight-4"]["status"] == "refused"


def test_dry_run_prints_the_matrix_and_starts_nothing(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.plan |= {"seconds_per_step": 30, "seconds_per_trial": 60}
    assert bench.run("--dry_run") == 0
    # a grid trial: 2 steps of 30 s and a minute; a final: 3 steps of 30 s and a minute
    assert f"12 trials, 0 finished, {6 * 2 + 6 * 2.5:.0f} minutes to go" in capsys.readouterr().out
    assert not bench.calls() and not (bench.folder / "runs").exists()


def test_a_plan_over_its_minutes_is_refused(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.plan |= {"seconds_per_step": 30, "max_minutes": 5}
    assert bench.run() == 2 and not bench.calls()
    assert "exceed max_minutes 5; nothing started: --max_minutes sets" in capsys.readouterr().err
    assert bench.run("--dry_run") == 2 and not bench.calls()
    shown = capsys.readouterr()
    assert "--seed 42" in shown.out and "exceed max_minutes 5" in shown.err  # the commands are printed all the same
    assert bench.run("--max_minutes", "60") == 0


def test_estimates_follow_what_was_measured(bench: Any) -> None:
    bench.plan["seconds_per_step"] = 30
    bench.plan["experiments"]["two"]["arguments"]["per_device_train_batch_size"] = 128
    plan = Plan.from_dict(bench.plan)
    clock, (one, *_), final = Clock(plan), plan.trials(), plan.trials()[3]
    two = plan.experiments["two"].first_trials()[0]
    assert clock.seconds(one) == 60 and clock.seconds(two) == 60
    clock.add(one, {"train": 4.0, "total": 9.0})  # 15 times faster than the plan said; 5 s besides, for grid trials
    assert clock.seconds(one) == pytest.approx(9) and clock.seconds(final) == pytest.approx(6)
    assert clock.seconds(two) == pytest.approx(5 + 4)


def test_steps_come_from_the_lines_of_the_training_file(bench: Any) -> None:
    text = bench.folder / "text.txt"
    text.write_text("a sentence\n" * 129 + "\n")
    bench.plan["arguments"] |= {"max_steps": None, "train_file": str(text), "num_train_epochs": 2}
    bench.plan["grid_steps"] = None
    assert Plan.from_dict(bench.plan).trials()[0].steps == math.ceil(129 / 64 * 2)


def test_direct_form(bench: Any) -> None:
    argv = ["--script", str(bench.folder / "fake.py"), "--output_dir", str(bench.folder / "direct"), "--results_dir"]
    argv += [str(bench.results), "--name", "small", "--seeds", "42", "43", "--grid", "learning_rate=3e-5,1e-5"]
    argv += ["--grid_steps", "1", "--", "--backbone", "mini", "--calls", str(bench.calls_file), "--max_steps=2"]
    subprocess.run(
        [sys.executable, "-m", "experiments.run_seeds", *argv],
        check=True,
        capture_output=True,
        cwd=Path(__file__).parents[2],
    )
    assert bench.summary()["experiments"]["small"]["selected"]["values"] == {"learning_rate": "1e-05"}
    assert bench.record("small/seed=43")["arguments"]["max_steps"] == "2"


def test_p_values_are_counted_in_the_resamples(finished: Any) -> None:
    bench = finished
    records = TrialRecords(Plan.from_dict(bench.plan), bench.folder / "runs", bench.results)
    seen: list[list[str]] = []

    def resample(files: Any) -> Any:
        seen.append([f"{path.parent.name}/{path.stem}" for paths in files.values() for path in paths])
        draws = {"one": np.array([1.0, 2.0, 3.0]), "two": np.array([2.0, 3.0, 3.0])}
        return {name: draws[Path(name).parent.name] for name in files}

    summary = summarise(records, resample)
    assert seen == [[f"{name}/seed={seed}" for name in ("one", "two") for seed in (42, 43, 44)]]
    assert summary["experiments"]["two"]["p_value"] == 0.5 and "p_value" not in summary["experiments"]["one"]


def test_a_run_without_a_correlation_has_no_average_and_no_p_value(finished: Any) -> None:
    """Its results hold null, as those of an encoder with one vector for every text: no plan with it had a summary."""
    bench = finished
    records = TrialRecords(
        Plan.from_dict(bench.plan | {"margins": {"against": ["one"]}}), bench.folder / "runs", bench.results
    )
    path = bench.results / "small" / "two" / "seed=43.json"
    before = path.read_text()
    content = json.loads(before)
    content["test"]["tasks"]["STS12"]["all"] = content["test"]["avg"] = None
    path.write_text(json.dumps(content))
    summary = summarise(records, lambda files: {name: np.zeros(3) for name in files})
    path.write_text(before)
    two = summary["experiments"]["two"]
    assert not {"STS12", "Avg"} & two["test"].keys() and two["test"]["STS13"]["n"] == 3
    assert two["p_value"] is None
    assert summary["margins"]["rows"]["two"]["one"]["n"] == 2
    assert "| two | – |" in margin_table(summary)


def test_p_values_are_of_the_seeds_that_both_rows_have(finished: Any) -> None:
    """As the margins are: a seed of one row alone would be compared with the mean of the other's."""
    bench = finished
    bench.plan["experiments"]["two"] = bench.plan["experiments"]["two"] | {"seeds": [42]}
    bench.plan["margins"] = {"against": ["one"]}
    records = TrialRecords(Plan.from_dict(bench.plan), bench.folder / "runs", bench.results)
    (bench.results / "small" / "two" / "seed=43.json").unlink()
    (bench.results / "small" / "two" / "seed=44.json").unlink()
    averages = {"one/seed=42": 1.0, "one/seed=43": 9.0, "one/seed=44": 9.0, "two/seed=42": 2.0}

    def resample(files: Any) -> Any:
        return {name: np.full(3, averages[f"{Path(name).parent.name}/{Path(name).stem}"]) for name in files}

    summary = summarise(records, resample)
    assert summary["experiments"]["two"]["p_value"] == 0.25  # 1 / (1 + 3): two is ahead in every resample
    assert summary["margins"]["rows"]["two"]["one"]["p_value"] == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": [42]}, "unknown 'seed'"),
        ({"arguments": {"backbone": "${CSEKIT_NO_SUCH}"}}, "environment variable CSEKIT_NO_SUCH"),
        ({"script": "no/such.py"}, "script must be a file"),
        ({"baseline": "three"}, "baseline must be one of"),
        ({"grid": {"learning_rate": 1e-4}}, "must be a list"),
        ({"grid": {"a\0[": [1]}}, "must name arguments of the script"),
        ({"seeds": []}, "seeds must hold at least one seed, got none"),
        ({"experiments": {"../up": {}}}, "becomes a folder"),
        ({"experiments": {"one": {"grid": {"a": [1]}, "trials": {"b": {}}}}}, "one of grid, trials and command"),
        ({"tables": {"t": {"rows": [{"trial": "one/no"}]}}}, "is no trial of this plan"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(bench: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(bench.plan | change)


def test_equal_numbers_are_equal_arguments(bench: Any) -> None:
    names = []
    for value in (1e-4, "1e-4", "0.0001", "1.0e-4"):
        bench.plan["grid"] = {"learning_rate": [value]}
        names.append(Plan.from_dict(bench.plan).trials()[0])
    assert names.count(names[0]) == 4
    assert parse_options(["--a", "1", "2", "--b=x", "--c"]) == {"a": ["1", "2"], "b": "x", "c": True}


def test_arguments_after_the_dashes_override_the_plan_and_are_recorded(bench: Any) -> None:
    bench.plan["experiments"] = {"one": {"final_arguments": {"max_steps": 3}, "arguments": {"dropout": 0.2}}}
    bench.plan["seeds"] = [42]
    assert bench.run("--name", "other", "--", "--max_steps", "1", "--learning_rate", "7e-6", "--dropout", "0.3") == 0
    assert bench.starts() == {"one/seed=42": 1}  # the only axis of the grid is given: nothing to choose
    record = json.loads((bench.results / "other/one/seed=42.json").read_text())
    given = record["trial"]["arguments"]
    assert (given["max_steps"], given["learning_rate"], given["dropout"]) == ("1", "7e-06", "0.3")
    assert not (bench.results / "small").exists()


def test_an_override_that_a_record_does_not_have_is_refused_by_name(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.plan["experiments"] = {"one": {"grid": {}}}
    bench.plan |= {"grid": {}, "seeds": [42]}
    bench.plan["arguments"]["learning_rate"] = 1e-5
    assert bench.run() == 0
    calls = bench.calls()
    assert bench.run("--", "--learning_rate", "7e-6") == 2
    error = capsys.readouterr().err
    assert "learning_rate: '1e-05' there, '7e-06' now" in error
    assert bench.calls() == calls


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"seed": "7"}, "--seed is set for each trial by the plan"),
        ({"weight": "1"}, "--weight cannot be overridden: experiments.one has its own value for weight-4"),
    ],
)
def test_an_override_that_would_make_trials_equal_is_refused(
    bench: Any, override: dict[str, Any], message: str
) -> None:
    bench.plan["experiments"] = {"one": {"trials": {"reference": {}, "weight-4": {"weight": 4}}}}
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(bench.plan, overrides=override)


def test_an_override_takes_the_axis_out_of_a_grid(bench: Any) -> None:
    bench.plan["grid"] = {"learning_rate": [1e-4, 1e-5], "dropout": [0.1, 0.2]}
    bench.plan["experiments"] = {"one": {}}
    plan = Plan.from_dict(bench.plan, overrides={"learning_rate": "7e-6", "max_steps": "-1"})
    trials = plan.experiments["one"].first_trials()
    assert [trial.name for trial in trials] == ["dropout=0.1", "dropout=0.2"]
    assert {trial.arguments["learning_rate"] for trial in trials} == {"7e-06"}
    assert {trial.arguments["max_steps"] for trial in trials} == {"-1"}


@pytest.mark.slow
def test_the_scores_are_printed_at_the_end(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.plan["experiments"] = {"one": {}, "two": {"trials": {"high": {"learning_rate": 1e-4}}}}
    bench.plan["experiments"]["three"] = {"grid": {"learning_rate": [3e-5]}}
    assert bench.run() == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    experiments = bench.summary()["experiments"]
    one, three = experiments["one"]["test"]["Avg"], experiments["three"]
    assert lines["one"][-3:] == [f"{one['mean']:.2f}", "±", f"{one['std']:.2f}"]
    assert lines["three"][-1] == f"{three['p_value']:.3f}"
    assert lines["two/high"][1:3] == ["1", f"{experiments['two']['trials']['high']:.2f}"]


def test_a_dry_run_prints_every_command_with_its_cost(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.plan |= {"device": "gpu", "grid": {}, "seeds": [42]}
    bench.plan["arguments"]["learning_rate"] = 1e-5
    bench.plan["experiments"] = {"one": {"seconds_per_step": 1200}, "two": {"measured_in": "other"}}
    bench.plan["experiments"]["made"] = {"command": ["-c", "pass"], "seconds_per_trial": 36}
    assert bench.run("--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    command = lines[lines.index("# one/seed=42: 1.00 GPU hours") + 1]
    assert command.startswith("python ") and "--learning_rate 1e-05" in command
    assert "# made/run: 0.01 GPU hours" in lines
    assert not [line for line in lines if line.startswith("# two/")]


def test_the_cost_that_nothing_tells_is_unknown(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.plan["experiments"]["made"] = {"command": ["-c", "pass"]}
    assert bench.run("--dry_run") == 0
    printed = capsys.readouterr().out
    assert "# one/learning_rate=0.0001: unknown hours" in printed
    assert "# made/run: unknown hours" in printed


def test_an_option_given_two_dashes_as_its_value_is_refused(tmp_path: Path, capsys: Any) -> None:
    argv = ["--script", "examples/run_unsup.py", "--output_dir", str(tmp_path / "runs"), "--dry_run"]
    with pytest.raises(SystemExit) as stopped:
        main([*argv, "--max_minutes=--"])
    assert stopped.value.code == 2
    assert "argument --max_minutes: expected one argument" in capsys.readouterr().err
