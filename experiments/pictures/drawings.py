"""The pictures of the documents, drawn from results files: ``python -m experiments.pictures``."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csekit.evaluation.pictures import GEOMETRY_PICTURES, NoResults, draw_all
from csekit.evaluation.results import read_results
from csekit.evaluation.sts_data import STS_TASKS
from experiments.pictures import figures
from experiments.pictures.figures import QUANTITIES, Ablation
from experiments.starts import METHODS, PLANS, POOLINGS, read_starts
from experiments.summary import test_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: The plans with traces, with a main table, with shares of a corpus.
TRACES = "geometry-traces"
PAPER_TRACES = ("papers-msse",)
DIFFERENCES = "equal-terms"
FEW_SHOT = "few-shot"

#: The plan with a row for every method.
FIELD = "field"

#: The plan with a grid for every row.
EQUAL_MINILM = "equal-terms-minilm"

#: The plans on equal terms on mini-wiki, which share their baseline.
EQUAL_TERMS = ("equal-terms", "infocse-diffcse")


def draw(
    results_dir: str | Path, output_dir: str | Path, names: Sequence[str] = ()
) -> tuple[list[Path], dict[str, str]]:
    """Draw the pictures of :func:`pictures`; see :func:`csekit.evaluation.pictures.draw_all`.

    Arguments:
        results_dir: the folder that ``experiments.run_seeds`` and ``csekit geometry`` wrote.
    """
    results_dir = Path(results_dir)
    return draw_all(pictures(results_dir) if results_dir.is_dir() else {}, results_dir, output_dir, names)


def pictures(results_dir: Path) -> dict[str, "Callable[[Path], Figure]"]:
    """Return each picture's name and the function that draws it. Every plan with ablation tables has a picture."""
    known: dict[str, Callable[[Path], Figure]] = {
        "scores": scores,
        "field-scores": lambda folder: scores(folder, (FIELD,)),
        "equal-scores": lambda folder: scores(folder, (EQUAL_MINILM,)),
        **GEOMETRY_PICTURES,
        "training-traces": training_traces,
        **{f"{plan}-traces": lambda folder, plan=plan: training_traces(folder, plan) for plan in PAPER_TRACES},  # type: ignore[misc]
        "task-differences": task_differences,
        "few-shot": few_shot,
        **{plan: partial(backbone, plan=plan) for plan in PLANS},
    }
    for path in sorted(results_dir.glob("*/summary.json")):
        if any(_of_trials(table) for table in _json(path).get("tables", {}).values()):
            known[path.parent.name] = lambda folder, plan=path.parent.name: ablations(folder, plan)  # type: ignore[misc]
    return known


def training_traces(results_dir: Path, plan: str = TRACES) -> "Figure":
    """Return the evaluations that a ``GeometryCallback`` logged in each run of a plan (MSSE, Fig. 6)."""
    summary = _summary(results_dir, plan)
    runs: dict[str, list[dict[str, float]]] = {}
    for experiment, entry in summary["experiments"].items():
        for path in sorted((results_dir / plan / experiment).glob("*.json")):
            history = (read_results(path).get("dev") or {}).get("history") or []
            rows = [{name.removeprefix("geometry/"): value for name, value in row.items()} for row in history]
            traced = [row for row in rows if all(row.get(name) is not None for name in QUANTITIES)]
            if traced:
                several = len(entry.get("trials") or entry["seeds"]) > 1
                runs[f"{entry['title']}, {path.stem}" if several else entry["title"]] = traced
    if not runs:
        raise NoResults(f"{results_dir / plan}: no run logged its geometry (--geometry True)")
    return figures.training_traces(runs)


def task_differences(results_dir: Path, plan: str = DIFFERENCES) -> "Figure":
    """Return the difference of every method of a plan to its baseline, seed by seed, on each test set."""
    summary = _summary(results_dir, plan)
    scores = {name: _by_seed(results_dir, summary, name) for name in summary["experiments"]}
    base = summary["baseline"]
    differences: dict[str, dict[str, list[float]]] = {}
    for name, seeds in scores.items():
        shared = [seed for seed in seeds if seed in scores[base]]
        if name == base or not shared:
            continue
        both = [task for task in scores[base][shared[0]] if all(task in seeds[seed] for seed in shared)]
        tasks = sorted(both, key=lambda task: [*STS_TASKS, task, "Avg"].index(task))
        differences[summary["experiments"][name]["title"]] = {
            task: [seeds[seed][task] - scores[base][seed][task] for seed in shared] for task in tasks
        }
    if not differences:
        raise NoResults(f"{results_dir / plan}: no experiment beside {base} has test scores of the same seeds")
    return figures.task_differences(differences, summary["experiments"][base]["title"])


def scores(results_dir: Path, plans: Sequence[str] = EQUAL_TERMS) -> "Figure":
    """Return Avg of the seven STS sets, seed by seed, for every method that was measured in ``plans``."""
    found: dict[str, list[float]] = {}
    for plan in plans:
        if (results_dir / plan / "summary.json").is_file():
            summary = _summary(results_dir, plan)
            for name, experiment in summary["experiments"].items():
                by_seed = _by_seed(results_dir, summary, name)
                seeds = [scores["Avg"] for scores in by_seed.values() if "Avg" in scores]
                if not seeds and experiment.get("test"):  # an untrained encoder has one score and no seed
                    seeds = [experiment["test"]["Avg"]["mean"]]
                if seeds:
                    found.setdefault(experiment["title"], seeds)
    if not found:
        raise NoResults(f"{results_dir}: none of {', '.join(plans)} has test scores yet")
    return figures.score_dots(found, "Avg. of the seven STS sets, Spearman × 100")


def few_shot(results_dir: Path, plan: str = FEW_SHOT) -> "Figure":
    """Return one curve for each method: Avg of the test sets by the number of training sentences.

    A method's name is its experiment's title up to the last comma: ``SimCSE, 1 %`` belongs to SimCSE.
    """
    summary = _summary(results_dir, plan)
    curves: dict[str, dict[int, list[float]]] = {}
    for name, experiment in summary["experiments"].items():
        method = experiment["title"].rpartition(", ")[0] or experiment["title"]
        for record in _records(results_dir, summary, name):
            average = test_scores(record).get("Avg")
            if average is not None:
                curves.setdefault(method, {}).setdefault(record["corpus"]["used"], []).append(average)
    if not curves:
        raise NoResults(f"{results_dir / plan}: no run has test scores yet")
    return figures.few_shot_curves(curves)


def backbone(results_dir: Path, plan: str = PLANS[0]) -> "Figure":
    """Return the scores of each method by the loss of the masked LM that it started from."""
    try:
        starts = read_starts(results_dir, plan)
    except FileNotFoundError as error:
        raise NoResults(str(error)) from None
    dev = {
        f"untrained, {name}": {s.loss: s.untrained[key] for s in starts if key in s.untrained}
        for key, name in POOLINGS.items()
    }
    dev |= {name: {s.loss: s.dev[key]["mean"] for s in starts if key in s.dev} for key, name in METHODS.items()}
    test = {name: {s.loss: s.test[key]["mean"] for s in starts if key in s.test} for key, name in METHODS.items()}
    panels = {"STS-B dev": dev, "Avg of the seven STS test sets": test}
    drawn = {title: {name: points for name, points in lines.items() if points} for title, lines in panels.items()}
    return figures.scores_by_loss({title: lines for title, lines in drawn.items() if lines})


def ablations(results_dir: Path, plan: str) -> "Figure":
    """Return the ablation tables of a plan. Rows are compared with the row named reference, else with the first.
    Tables whose reference has no score yet are left out."""
    summary = _summary(results_dir, plan)
    tables = []
    for spec in summary["tables"].values():
        if not _of_trials(spec):
            continue
        ours = [_trial_score(summary, row["trial"]) for row in spec["rows"]]
        named = [i for i, row in enumerate(spec["rows"]) if row["trial"].endswith("/reference")]
        reference = named[0] if named else 0
        if ours[reference] is not None:
            labels = [str(row["label"]) for row in spec["rows"]]
            paper = [row.get("paper") for row in spec["rows"]]
            tables.append(Ablation(spec["title"], labels, ours, paper, reference))
    if not tables:
        raise NoResults(f"{results_dir / plan}: no ablation has a score for its reference row yet")
    return figures.ablation_bars(tables)


def _of_trials(table: Mapping[str, Any]) -> bool:
    """Tell whether a table's rows are single trials: not curves, and not experiments with their test sets."""
    return any("/" in row["trial"] for row in table.get("rows", ()))


def _trial_score(summary: Mapping[str, Any], label: str) -> float | None:
    experiment, _, trial = label.partition("/")
    entry = summary["experiments"][experiment]
    value = (entry.get("trials") or entry.get("grid") or {}).get(trial)
    return None if value is None else float(value)


def _summary(results_dir: Path, plan: str) -> dict[str, Any]:
    path = results_dir / plan / "summary.json"
    if not path.is_file():
        raise NoResults(f"{path}: no such file (run experiments/run_seeds.py first)")
    return _json(path)


def _folder(results_dir: Path, summary: dict[str, Any], experiment: str) -> Path:
    """Return the folder of an experiment's records, inside the folder of the plan that ran it."""
    return results_dir / summary["experiments"][experiment].get("measured_in", summary["plan"]) / experiment


def _records(results_dir: Path, summary: dict[str, Any], experiment: str) -> list[dict[str, Any]]:
    """Return the final runs of an experiment that its summary counts, by seed. Other files of the folder are of seeds
    that the plan no longer has, or of earlier arguments."""
    counted = summary["experiments"][experiment].get("finished_seeds", [])
    paths = sorted(_folder(results_dir, summary, experiment).glob("*.json"))
    records = [record for path in paths if (record := _json(path))["trial"]["kind"] == "final"]
    return sorted((record for record in records if record["seed"] in counted), key=lambda record: record["seed"])


def _by_seed(results_dir: Path, summary: dict[str, Any], experiment: str) -> dict[int, dict[str, float]]:
    """Return the scores by seed and test set; Avg comes last."""
    records = _records(results_dir, summary, experiment)
    return {record["seed"]: scores for record in records if (scores := test_scores(record))}


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
