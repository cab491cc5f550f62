"""Plans in experiments/plans: every argument is one that the scripts know, and the minutes are what they say."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from csekit.cli import main as csekit_command
from csekit.evaluation import suites
from csekit.modeling import METHODS
from csekit.trainers.scripts.pretraining_runs import parse_pretrain_arguments
from csekit.trainers.scripts.run_arguments import method_fields, parse_run_arguments
from experiments.clock import Clock
from experiments.plan import Plan
from experiments.run_seeds import main
from experiments.trial import Trial

CONFIGS = Path(__file__).parents[1] / "plans"
PLANS = sorted(CONFIGS.glob("*.yaml"))
PAPERS = sorted(CONFIGS.glob("papers/*.yaml"))
ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder that looks like the repository, and what the plans take from the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for script in ("run_unsup.py", "run_sup.py", "run_pretrain.py"):
        (tmp_path / "examples" / script).touch()
    (tmp_path / "wiki.txt").write_text("a sentence\n" * 100_000)
    names = {"BACKBONE": "mini", "STAGE1": "runs/stage1", "CSEKIT_DATA": "data", "WIKI_NEXT": "next.tsv"}
    names |= {"PARANMT": "paranmt.tsv", "MINILM": "all-minilm", "WIKI_MLM": "wiki.txt"}
    return {**names, "WIKI": str(tmp_path / "wiki.txt")}


def own_trials(plan: Plan) -> list[Trial]:
    return [trial for trial in plan.trials() if not plan.experiments[trial.experiment].measured_in]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_is_within_its_minutes(path: Path, environment: dict[str, str]) -> None:
    plan = Plan.read(path, environment)
    clock = Clock(plan)
    seconds = [clock.seconds(trial) for trial in own_trials(plan)]
    assert plan.max_minutes is not None and all(seconds)
    assert sum(value or 0 for value in seconds) / 60 < plan.max_minutes


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_run_of_a_papers_plan_has_an_estimated_cost(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    names = {name: str(tmp_path / f"{name.lower()}.tsv") for name in ("WIKI_NEXT", "BACK_TRANSLATED", "NLI")}
    names["WIKI"] = str(tmp_path / "wiki.txt")
    for file in names.values():
        Path(file).write_text("sent0\tsent1\n" * 12_801)
    plan = Plan.read(path, FILES | names)
    clock = Clock(plan)
    assert not [trial.label for trial in own_trials(plan) if not clock.seconds(trial)]


def test_the_calls_of_the_page_are_within_their_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run_seeds call of docs/reproduce.md, on the million sentences that the page names, as a dry run."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "wiki.txt").write_text("a sentence\n" * 1_000_000)
    names = {"BACKBONE": "bert-base-uncased", "WIKI": str(tmp_path / "wiki.txt"), "CSEKIT_DATA": "data"}
    for name, value in {**names, "IMDB": "imdb.parquet"}.items():
        monkeypatch.setenv(name, value)
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "experiments.run_seeds" in line]
    assert len(lines) >= 5
    for line in lines:
        plan, *words = shlex.split(line, comments=True)[3:]
        assert main([plan, "--dry_run", "--results_dir", str(tmp_path), *words]) == 0, capsys.readouterr().err


def typed(value: Any, kind: type) -> Any:
    return value == "True" if kind is bool else kind(value)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("bf16_computed")
def test_every_trial_is_one_that_the_scripts_can_run(path: Path, environment: dict[str, str]) -> None:
    known: set[Any] = set()
    for trial in own_trials(Plan.read(path, environment)):
        words = trial.argv(Path("runs"), resume=False)
        if "run_pretrain" in words[0]:
            run, _ = parse_pretrain_arguments(words[1:])
            run.check()
        if trial.kind == "command":
            continue
        given = trial.arguments
        method, objectives = str(given["method"]), given.get("objectives")
        kind = (method, tuple(objectives or ()), *sorted(given))
        if kind not in known:  # an unknown argument ends the parser
            run, args, _ = parse_run_arguments(words[1:])
            run.check()
            assert args.seed == int(str(given["seed"]))
            float32 = ("msse-reading", "informin-masked", "field-rates", "back-translation")
            stated = str(given.get("bf16")) == "False" or path.stem in float32
            assert args.bf16 or stated  # these compare in float32
            known.add(kind)
        fields = method_fields(method, list(objectives) if objectives else None)
        fields.pop("teachers", None)  # the run's option of this name, folders, is what a plan gives
        own = {name: typed(value, fields[name]) for name, value in given.items() if name in fields}
        own |= {"objectives": list(objectives)} if objectives else {}
        METHODS[method].config_class(**own)  # a value that is not allowed is an error


def test_the_plans_fit_into_their_hours() -> None:
    minutes = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))["max_minutes"] for path in PLANS}
    assert minutes["equal-terms"] + minutes["informin-ablations"] <= 180 and minutes["infocse-diffcse"] <= 340
    assert minutes["infocse-ablations"] + minutes["diffcse-ablations"] <= 250
    assert sum(minutes[name] for name in ("msse", "msse-ablations", "combinations")) <= 310
    assert minutes["few-shot"] + minutes["supervised"] <= 560


def test_equal_terms_are_equal(environment: dict[str, str]) -> None:
    plans = [Plan.read(CONFIGS / f"{name}.yaml", environment) for name in ("equal-terms", "infocse-diffcse")]

    def own(name: str) -> bool:
        """What makes the method, and the folder that stage 1 made of the same encoder."""
        return name in ("method", "projector", "objectives") or name.startswith(("reconstruction", "aux_mlm_", "rtd_"))

    shared = [
        [
            {
                key: "mini" if "{folder:stage1" in value else value
                for key, value in trial.arguments.items()
                if not own(key)
            }
            for trial in trials
        ]
        for plan in plans
        for experiment in plan.experiments.values()
        if experiment.kind == "selected" and (trials := experiment.first_trials() + experiment.final_trials({}))
    ]
    assert len(shared) == 9
    assert all(terms == shared[0] for terms in shared)
    assert len(shared[0]) == 9


@pytest.mark.parametrize("path", [path for path in PLANS if "ablations" in path.stem], ids=lambda path: path.stem)
def test_ablations_differ_from_the_reference_in_what_they_name(path: Path, environment: dict[str, str]) -> None:
    plan = Plan.read(path, environment)
    used = {row["trial"] for table in plan.tables.values() for row in table["rows"]}
    listed = {trial.label: trial for trial in plan.trials() if trial.kind == "listed"}
    assert used == listed.keys()  # no trial for nothing
    arguments = [tuple(sorted((name, str(value)) for name, value in t.arguments.items())) for t in listed.values()]
    assert len(set(arguments)) == len(arguments)  # no trial twice


def test_few_shot_runs_are_equal_but_for_method_and_share(environment: dict[str, str]) -> None:
    plan = Plan.read(CONFIGS / "few-shot.yaml", environment)
    own = {"method", "pooling", "projector", "dcm_reduction", "dcm_weight", "train_fraction", "seed"}
    shared = [
        [{key: value for key, value in trial.arguments.items() if key not in own} for trial in each.first_trials()]
        for each in plan.experiments.values()
    ]
    assert [len(each) for each in shared] == [3] * 10 + [1] * 5
    assert all(given == shared[0][0] for each in shared for given in each)
    assert {trial.steps for trial in plan.trials()} == {150}
    shares = [(trial.arguments["method"], float(str(trial.arguments["train_fraction"]))) for trial in plan.trials()]
    assert {share for _, share in shares} == {0.001, 0.005, 0.01, 0.1, 1.0}
    assert len(shares) == sum(map(len, shared))


def test_each_combination_stands_beside_its_parts(environment: dict[str, str]) -> None:
    plan = Plan.read(CONFIGS / "combinations.yaml", environment)
    parts = {trial.name: trial.arguments for trial in plan.experiments["parts"].first_trials()}
    weights = {name: {key for key in given if key.endswith("_weight")} for name, given in parts.items()}
    assert weights.pop("simcse") == set() and all(len(names) == 1 for names in weights.values())
    search = plan.experiments["combinations"]
    combined = {trial.name: trial for trial in search.first_trials()}
    assert list(combined) == ["dcm-rtd", "icm-aux-mlm", "reconstruction-dcm", "all"]
    for trial in combined.values():
        own = {key for key in trial.arguments if key.endswith("_weight")}
        used = [parts[name] for name, names in weights.items() if names <= own]
        assert len(used) == len(own) >= 2  # every part was measured alone
        joined = {key: value for given in used for key, value in given.items()}
        assert ("dcm_reduction" in joined) == ("dcm_weight" in own)
        assert joined == trial.arguments  # with the same weight, on the same terms
        assert trial.kind == "grid" and trial.arguments["do_predict"] == "False"
    finals = search.final_trials(search.points()["dcm-rtd"])
    assert [trial.name for trial in finals] == ["seed=42", "seed=43", "seed=44"]
    for final, base in zip(finals, plan.experiments["simcse"].first_trials(), strict=True):
        assert final.arguments["do_predict"] == base.arguments["do_predict"] == "True"
        differ = {key for key in final.arguments if final.arguments[key] != base.arguments.get(key)}
        assert differ == {"method", "dcm_reduction", "dcm_weight", "rtd_weight"}


#: What the papers' plans take from the environment. The files need not be there.
FILES = {"WIKI": "wiki1m_for_simcse.txt", "WIKI_NEXT": "next.tsv", "NLI": "nli_for_simcse.csv", "CSEKIT_DATA": "data"}
FILES |= {"BOOKS_WIKI": "books.txt", "BACK_TRANSLATED": "pairs.csv", "BEIR": "beir", "IMDB": "imdb.parquet"}
FILES |= {"STSB_LINES": "stsb.txt", "CAPTIONS": "captions.txt"}


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_trial_of_a_papers_plan_is_one_that_the_scripts_can_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    plan = Plan.read(path, FILES)
    points = [list(each.points()) for each in plan.experiments.values() if each.grid]
    # the points between the first and the last have the same arguments
    ends = {f"{name}/{point}" for name in plan.experiments for found in points for point in (found[0], found[-1])}
    for trial in plan.trials():
        if trial.kind == "grid" and trial.label not in ends:
            continue
        words = trial.argv(Path("runs"), resume=False)
        if "run_pretrain" in words[0]:
            run, _ = parse_pretrain_arguments(words[1:])
            run.check()
        elif trial.kind == "command":
            check_command(words)
        else:
            run, args, settings = parse_run_arguments(words[1:])
            run.check()
            assert args.seed == int(str(trial.arguments["seed"]))
            METHODS[run.method].config_class(**settings)  # a value that is not allowed is an error


def check_command(words: list[str]) -> None:
    """Check that a command is one of csekit's or of the benchmarks, with options that it knows, and writes results.

    ``csekit eval`` adds to its file suite by suite: a command of several suites renames the file at its end, so that
    the runner never takes a part for the whole.
    """
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    written = words[words.index("--output") + 1]
    if words[0] != "-c":
        assert words[0] == "benchmarks/parameters.py"
        assert given == {"--model_type", "--output"}
        assert written.endswith("/results.json")
        return
    options = typer.main.get_command(csekit_command).commands[words[2]].params  # type: ignore[attr-defined]
    assert given <= {name for option in options for name in (*option.opts, *option.secondary_opts)}
    several = words.count("--retrieval") > 1 or "," in dict(pairwise(words)).get("--tasks", "")
    assert written.endswith("/part.json" if several else "/results.json")
    assert ("os.replace" in words[1]) == several


@pytest.mark.parametrize("name", ["infocse", "msse"])
def test_a_command_of_several_suites_leaves_results_at_its_end_alone(
    name: str, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = yaml.safe_load((CONFIGS / f"papers/{name}.yaml").read_text(encoding="utf-8"))
    (code,) = {
        words[1] for each in plan["experiments"].values() if (words := each.get("command")) and "replace" in words[1]
    }
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\na man\ta ball\t2\nred\tred\t3\n")
    (tmp_path / "b.tsv").write_text((tmp_path / "a.tsv").read_text())
    files = ["--pairs", str(tmp_path / "a.tsv"), "--pairs", str(tmp_path / "b.tsv")]
    common = ["--pooling", "mean", "--device", "cpu", "--no_progress", "--output", str(tmp_path / "part.json")]

    code, argv = code.replace("{output_dir}", str(tmp_path)), ["-c", "eval", str(tiny_folder), *files, *common]
    monkeypatch.setattr(sys, "argv", argv)
    with monkeypatch.context() as broken:
        broken.setattr(suites, "score_suites", one_suite_of(suites.score_suites))
        with pytest.raises(SystemExit) as stopped:
            exec(code)
    assert stopped.value.code == 2
    assert (tmp_path / "part.json").is_file()
    assert not (tmp_path / "results.json").exists()
    with pytest.raises(SystemExit) as stopped:
        exec(code)
    assert not stopped.value.code
    assert {"pairs:a", "pairs:b"} <= json.loads((tmp_path / "results.json").read_text()).keys()


def one_suite_of(score: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return ``score_suites`` that ends with an error after its first suite."""

    def first(*arguments: Any) -> Iterator[Any]:
        yield next(score(*arguments))
        raise ValueError("the second suite cannot be scored")

    return first


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_experiment_of_a_papers_plan_names_its_source(path: Path) -> None:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    lines = path.read_text(encoding="utf-8").splitlines()
    sources = {line.strip().partition(":")[0] for line in lines if line.startswith("  ") and ":  # source: " in line}
    unsourced = raw["experiments"].keys() - sources
    assert not unsourced
    assert raw["makes"]


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_no_two_trials_of_a_papers_plan_are_the_same_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    trials = Plan.read(path, FILES).trials()
    labels = {trial.label for trial in trials}
    assert len(labels) == len(trials)
    listed = [
        (trial.experiment, sorted(map(str, trial.arguments.items()))) for trial in trials if trial.kind == "listed"
    ]
    assert all(listed.count(each) == 1 for each in listed)


def test_a_preset_gives_batch_and_epochs_to_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = tmp_path / "wiki.txt"
    text.write_text("a sentence\n" * 1280)
    trials = {
        trial.label: trial
        for trial in Plan.read(CONFIGS / "papers/informin.yaml", FILES | {"WIKI": str(text)}).trials()
    }
    assert (trials["bert-base/seed=42"].batch, trials["bert-base/seed=42"].steps) == (128, 10)
    assert (trials["batch-64/seed=42"].batch, trials["batch-64/seed=42"].steps) == (64, 20)


def test_the_header_of_a_table_is_no_row_of_the_estimate(tmp_path: Path) -> None:
    for suffix, steps in ((".txt", 21), (".tsv", 20), (".csv", 20)):
        path = tmp_path / f"pairs{suffix}"
        path.write_text("sent0\n" * 1281)
        assert Trial("one", "run", "final", {"train_file": str(path)}, ()).steps == steps


@pytest.mark.parametrize(
    "path", [*PLANS, *PAPERS], ids=lambda path: path.relative_to(CONFIGS).with_suffix("").as_posix()
)
def test_a_dry_run_prints_every_command_of_a_plan(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names = {
        "BACKBONE": "mini",
        "STAGE1": "stage1",
        "PARANMT": "paranmt.tsv",
        "MINILM": "minilm",
        "WIKI_MLM": "wiki.txt",
        **FILES,
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert main([str(path), "--output_dir", str(tmp_path), "--results_dir", str(tmp_path), "--dry_run"]) == 0
    printed = re.split(r"(?m)^# (\S+): .*\n", capsys.readouterr().out)[1:]  # a command may have several lines
    commands = {label: command.removesuffix("\n") for label, command in zip(printed[::2], printed[1::2], strict=True)}
    plan = Plan.read(path, names)
    wanted = own_trials(plan)
    assert list(commands) == [trial.label for trial in wanted]
    for trial in wanted:
        assert commands[trial.label] == shlex.join(["python", *trial.argv(tmp_path, resume=False)])


#: Tables and figures of each paper that are drawings, text or settings alone, which no run makes.
NOT_RUN = {"InfoCSE": {"Fig. 1"}, "DiffCSE": {"Fig. 1"}, "MSSE": {"Fig. 1", "Fig. 2", "Fig. 3"}}
NOT_RUN["InforMin-CL"] = {"Table 1", "Fig. 1"}
COUNTS = {"InfoCSE": (12, 1), "DiffCSE": (15, 2), "InforMin-CL": (7, 3), "MSSE": (8, 8)}


def made(words: str) -> set[str]:
    """Return the tables and figures that a plan's ``makes`` names: ``Tables 1, 3 and 6 to 8, Fig. 2``."""
    found = set()
    for kind, numbers in re.findall(r"(Table|Fig)s?\.? ([\d, ]+(?:(?:to|and) [\d, ]+)*)", words):
        name = "Table" if kind == "Table" else "Fig."
        spread = re.sub(r"(\d+) to (\d+)", lambda m: " ".join(map(str, range(int(m[1]), int(m[2]) + 1))), numbers)
        found |= {f"{name} {number}" for number in re.findall(r"\d+", spread)}
    return found


@pytest.mark.parametrize("paper", COUNTS)
def test_the_papers_plans_make_every_table_and_figure(paper: str) -> None:
    makes = [yaml.safe_load(path.read_text(encoding="utf-8"))["makes"] for path in PAPERS]
    found = set().union(*(made(words) for words in makes if words.startswith(paper)))
    tables, figures = COUNTS[paper]
    everything = {f"Table {i + 1}" for i in range(tables)} | {f"Fig. {i + 1}" for i in range(figures)}
    assert found == everything - NOT_RUN[paper]
