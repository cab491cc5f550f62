"""The search of combinations with a stand-in for the training script: what it tries, stops, keeps and refuses."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.plan import Plan
from experiments.search import main
from experiments.search_space import Search
from experiments.tables.render import TableError, render
from experiments.tests.conftest import environment
from experiments.trial import PlanError, as_words

ROOT = Path(__file__).parents[2]

# Dev is 80 + gain + step / 10; a trial that `waits` does so until it is told to end, or the file `free` is there.
FAKE = """
import json, pathlib, signal, sys, time
words, name = {}, None
for word in sys.argv[1:]:
    if word.startswith("--"):
        name = word[2:]; words[name] = []
    else:
        words[name].append(word)
out, calls = pathlib.Path(words["output_dir"][0]), pathlib.Path(words["calls"][0])
def note(what):
    with calls.open("a") as file:
        file.write(f"{out.name} {what} {' '.join(words['objectives'])}\\n")
def stop(*_):
    note("terminated"); sys.exit(143)
signal.signal(signal.SIGTERM, stop)
note("resumed" if "resume_from_checkpoint" in words else "start")
if "fails_until" in words and not pathlib.Path(words["fails_until"][0]).exists():
    print("no such text"); sys.exit(2)
if "fails" in words:
    print("step 1: loss is nan"); sys.exit(1)
rows = []
for step in (1, 2, 3, 4):
    rows.append({"step": step, "eval_stsb_spearman": 80 + float(words.get("gain", ["0"])[0]) + step / 10})
    folder = out / "training" / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    if "no_dev" not in words:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": rows}))
    (folder / "model.safetensors").write_text("weights")
    note(f"step {step}")
    limit = time.monotonic() + 60
    while step == 1 and "waits" in words and not calls.with_name("free").exists():
        time.sleep(0.01)
        if time.monotonic() > limit:
            sys.exit("nobody ended it")
history = [{"step": row["step"], "stsb_spearman": row["eval_stsb_spearman"]} for row in rows]
result = {"dev": None if "no_dev" in words else {"history": history}, "corpus": {"name": "tiny", "checksum": "0"}}
(out / "results.json").write_text(json.dumps(result))
note("end")
"""


class Bench:
    """A folder with the stand-in script and a search of three times two choices."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file = folder, folder / "calls.txt"
        (folder / "fake.py").write_text(FAKE)
        self.raw: dict[str, Any] = {
            "title": "a small search",
            "script": str(folder / "fake.py"),
            "trials": 6,
            "first_rung": 1,
            "reduction": 2,
            "seed": 42,
            "arguments": {"calls": str(self.calls_file), "max_steps": 4, "eval_steps": 1},
            "axes": {
                "vector": {
                    "plain": {},
                    "good": {"objectives": ["dcm"], "gain": 1.0},
                    "bad": {"gain": -9.0, "waits": True},
                },
                "more": {"nothing": {}, "mlm": {"objectives": ["mlm"]}},
            },
        }

    def command(self) -> list[str]:
        path = self.folder / "small.yaml"
        path.write_text(yaml.safe_dump(self.raw, sort_keys=False))
        return [str(path), "--output_dir", str(self.folder / "runs"), "--results_dir", str(self.folder / "results")]

    def run(self) -> int:
        return main(self.command())

    def start(self) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "experiments.search", *self.command()]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def wait_for(self, line: str) -> None:
        limit = time.monotonic() + 120
        while line not in self.calls():
            assert time.monotonic() < limit, f"{line} is not among {self.calls()}"
            time.sleep(0.01)

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "results/searches/small.json").read_text()))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield Bench(tmp_path)
    for name, handler in handlers.items():
        signal.signal(name, handler)


def test_every_combination_runs_once_and_what_falls_behind_is_stopped(bench: Bench) -> None:
    assert bench.run() == 0
    record = bench.record()
    trials = {row["label"]: row for row in record["trials"]}
    assert record["trials"][0]["label"] == "plain+nothing"
    assert trials.keys() == {"plain+nothing", "mlm", "good", "good+mlm", "bad", "bad+mlm"}
    assert set(record["best"][:2]) == {"good", "good+mlm"}
    assert trials["good"]["best"] == pytest.approx(81.4)
    assert [row["step"] for row in trials["good"]["dev"]] == [1, 2, 3, 4]
    for name in ("bad", "bad+mlm"):
        assert trials[name]["state"] == "behind" and trials[name]["best"] is None
        assert [row["step"] for row in trials[name]["dev"]] == [1]
    assert "bad terminated " in bench.calls() and "good+mlm end dcm mlm" in bench.calls()
    assert set(Counter(line for line in bench.calls() if " start" in line).values()) == {1}
    assert not list((bench.folder / "runs").rglob("*.safetensors"))
    assert record["corpus"] == {"name": "tiny", "checksum": "0"}


def test_more_trials_go_on_where_the_search_ended(bench: Bench) -> None:
    bench.raw["trials"] = 2
    assert bench.run() == 0
    first = bench.record()["trials"]
    assert len(first) == 2
    bench.raw["trials"] = 5
    assert bench.run() == 0
    assert bench.record()["trials"][:2] == first and len(bench.record()["trials"]) == 5
    calls = bench.calls()
    assert bench.run() == 0 and bench.calls() == calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_goes_on_with_the_trial_that_ran(bench: Bench, number: int) -> None:
    bench.raw["axes"]["vector"]["plain"] = {"waits": True}
    process = bench.start()
    bench.wait_for("plain+nothing step 1 ")
    process.send_signal(number)
    process.wait(timeout=120)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    bench.wait_for("plain+nothing terminated ")
    (bench.folder / "free").touch()
    assert bench.run() == 0
    assert "plain+nothing resumed " in bench.calls()
    labels = [row["label"] for row in bench.record()["trials"]]
    assert len(labels) == len(set(labels)) == 6


def test_a_failed_trial_is_kept_as_such_and_not_tried_again(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.raw["axes"]["vector"]["bad"] = {"fails": True}
    assert bench.run() == 1
    assert "step 1: loss is nan" in capsys.readouterr().out
    states = Counter(row["state"] for row in bench.record()["trials"])
    assert states["failed"] == 2 and len(bench.record()["best"]) == states["finished"]
    calls = bench.calls()
    assert bench.run() == 1 and bench.calls() == calls


def test_a_search_of_another_name_has_its_own_record(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.raw["trials"] = 1
    assert main([*bench.command(), "--name", "mine"]) == 0
    assert (bench.folder / "results/searches/mine.json").exists() and (bench.folder / "runs/mine").is_dir()
    assert main([*bench.command(), "--name", "../mine"]) == 2
    assert "--name must be letters" in capsys.readouterr().err


def test_a_first_trial_that_fails_ends_the_search_and_is_tried_again(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.raw["axes"]["vector"]["plain"] = {"fails_until": str(bench.folder / "mended")}
    assert bench.run() == 1
    out = capsys.readouterr().out
    assert "failed, dev no dev score: no such text" in out and "the first trial failed, so the search ends" in out
    assert bench.record()["trials"] == [] and len(bench.calls()) == 1
    (bench.folder / "mended").touch()
    assert bench.run() == 0
    assert bench.record()["trials"][0]["label"] == "plain+nothing"
    assert {row["state"] for row in bench.record()["trials"]} == {"finished", "behind"}


def test_a_run_without_a_dev_set_ends_the_search(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.raw["arguments"]["no_dev"] = True
    assert bench.run() == 1
    assert "the run logged no stsb_spearman: give --data_dir" in capsys.readouterr().out
    assert bench.record()["trials"] == [] and len([line for line in bench.calls() if " start" in line]) == 1


def test_a_driver_killed_while_it_noted_an_end_leaves_no_trial_behind(bench: Bench) -> None:
    bench.raw["trials"] = 2
    assert bench.run() == 0
    lines = [json.loads(line) for line in (bench.folder / "runs/study.log").read_text().splitlines()]
    last = next(place for place in range(len(lines) - 1, -1, -1) if "state" in lines[place].get("user_attr", {}))
    kept = "".join(json.dumps(line) + "\n" for line in lines[: last + 1])
    (bench.folder / "runs/study.log").write_text(kept)  # what came after the note is lost
    first = bench.record()
    bench.raw["trials"] = 3
    assert bench.run() == 0
    assert bench.record()["trials"][:2] == first["trials"]
    assert set(Counter(line for line in bench.calls() if " start" in line).values()) == {1}


def test_without_optuna_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['optuna'] = None; import experiments.search"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 1 and done.stderr == (
        "error: experiments.search needs Optuna: pip install 'csekit[search]'\n"
    )


def test_a_number_with_many_digits_is_the_same_search(bench: Bench) -> None:
    bench.raw["axes"]["vector"]["good"]["angular_margin"] = 0.17453292519943
    bench.raw["trials"] = 1
    assert bench.run() == 0 and bench.run() == 0


@pytest.mark.parametrize("gone", ["runs", "results"])
def test_another_search_in_the_same_folder_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    bench.raw["trials"] = 1
    bench.run()
    (bench.folder / gone).rename(bench.folder / "away")
    bench.raw["axes"]["vector"]["good"]["gain"] = 2.0
    before = bench.calls()
    assert bench.run() == 2
    assert "belongs to another search" in capsys.readouterr().err and bench.calls() == before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("trials", 0, "trials must be greater than or equal to 1"),
        ("first_rung", 5, "max_steps must be at least 5"),
        ("script", "none.py", "script must be a file"),
        ("rungs", 3, "unknown 'rungs'"),
        ("axes", {"vector": {"plain": {}}}, "axes.vector must have at least two choices"),
        ("axes", {"a": {"x": {}, "y": {}}, "b": {"x": {}, "z": {}}}, "different names, got x twice"),
        ("axes", {"a": {"x": {"gain": 1}, "y": {}}, "b": {"v": {"gain": 2}, "z": {}}}, "x and v both set gain"),
        ("axes", {"a": {"x": {"max_steps": 9}, "y": {}}}, "arguments and x both set max_steps"),
        ("axes", {"a": {"../x": {}, "y": {}}}, "a choice must be letters"),
        ("arguments", {"max_steps": 4, "eval_steps": 3}, "eval_steps must divide first_rung"),
        ("arguments", {"text": "${NOT_SET}"}, "NOT_SET, which is not set"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(bench: Bench, field: str, value: Any, message: str) -> None:
    bench.raw[field] = value
    with pytest.raises(PlanError, match=message) as error:
        Search.read(Path(bench.command()[0]))
    assert "small.yaml" in str(error.value)


def test_the_searches_of_the_repository_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    paths = sorted((ROOT / "experiments" / "searches").glob("*.yaml"))
    assert paths
    for path in paths:
        search = Search.read(path, {"BACKBONE": "mini", "WIKI": "wiki.txt", "CSEKIT_DATA": "data"})
        first = {axis: next(iter(choices)) for axis, choices in search.axes.items()}
        assert search.trial(first).arguments["objectives"] == []


def test_the_best_three_are_the_rows_of_the_main_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    record = json.loads((ROOT / "experiments/results/searches/combinations.json").read_text())
    settings = {row["label"]: row["settings"] for row in record["trials"]}
    environ = {"BACKBONE": "mini", "WIKI": "wiki.txt", "CSEKIT_DATA": "data"}
    plan = Plan.read(ROOT / "experiments/plans/equal-terms-minilm.yaml", environ)
    searched = record["search"]["arguments"]
    for place, label in enumerate(record["best"][:3], start=1):
        (trial, *_) = plan.experiments[f"searched-{place}"].first_trials()
        wanted = {"method": searched["method"], "learning_rate": searched["learning_rate"], **settings[label]}
        assert {name: trial.arguments.get(name) for name in wanted} == {k: as_words(v) for k, v in wanted.items()}
        given = {name for name in trial.arguments if name.endswith("_weight") or name == "further_positives"}
        assert given <= settings[label].keys()


def test_the_tables_of_a_search(bench: Bench) -> None:
    bench.raw["arguments"] |= {"model_name_or_path": "mini", "per_device_train_batch_size": 8, "learning_rate": 1e-4}
    bench.raw["axes"]["vector"]["bad"] |= {"fails": True}
    bench.run()
    trials = bench.record()["trials"]
    states = Counter((row["state"], len(row["dev"])) for row in trials)
    caption, _, head, _, *rows = render("searches/small", bench.folder / "results").splitlines()
    assert "6 combinations, backbone mini, stand-in Wikipedia corpus, 8 sentences a step" in caption
    assert f"{states['behind', 1]} after 1 steps and {states['behind', 2]} after 2 steps" in caption
    assert f"{states['finished', 4]} went to the end" in caption
    assert head == "| choices | dev at 1 | dev at 2 | dev at 3 | dev at 4 |  |"
    assert rows[0].startswith("| good") and "| 81.10 | 81.20 | 81.30 | 81.40 |" in rows[0]
    assert any("| SimCSE | 80.10 | 80.20 | 80.30 | 80.40 |" in row for row in rows)
    caption, _, head, _, *rows = render("searches/small/choices", bench.folder / "results").splitlines()
    assert head == "| axis | choice | trials | beyond 1 | beyond 2 | mean dev at 1 | best dev |"
    plain = next(row for row in rows if "| plain |" in row)
    steps = [len(row["dev"]) for row in trials if row["choices"]["vector"] == "plain"]
    passed = [str(sum(each > rung for each in steps)) for rung in (0, 1, 2)]
    assert plain == f"| vector | plain | {' | '.join(passed)} | 80.10 | 80.40 |"
    with pytest.raises(TableError, match="NAME/choices, got 'small/rungs'"):
        render("searches/small/rungs", bench.folder / "results")
