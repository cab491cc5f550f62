"""The choice on the dev set, and mean and deviation over seeds: ``summary.json``."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.provenance import write_json
from csekit.evaluation.compare import p_value
from experiments.plan import Experiment, Plan
from experiments.records import TrialRecords, load
from experiments.trial import Arguments, PlanError, Trial

#: results files by name -> Avg in each resample of the test pairs, as ``compare.bootstrap_averages``
Resample = Callable[[Mapping[str, Sequence[Path]]], Mapping[str, np.ndarray]]
#: results files of each experiment, by seed
_Scored = Mapping[str, Mapping[int | None, Path]]


def select(experiment: Experiment, records: TrialRecords) -> tuple[Arguments, dict[str, Any]] | None:
    """Return the grid point with the best dev score, the first of equals; None where no grid trial has one.

    This does not read test scores. It leaves out points without a finished run and those with a non-finite score.
    """
    found = [(dev_score(records.result(trial)), trial) for trial in experiment.first_trials()]
    best: tuple[Arguments, dict[str, Any]] | None = None
    for point, (score, trial) in zip(experiment.points().values(), found, strict=True):
        if score is not None and (best is None or score > best[1]["dev"]):
            best = (
                point,
                {"trial": trial.name, "dev": score, "values": {name: trial.arguments.get(name) for name in point}},
            )
    return best


def dev_score(result: Mapping[str, Any] | None) -> float | None:
    """Return ``dev.best`` of a results file, None where it is absent or not finite."""
    best = ((result or {}).get("dev") or {}).get("best")
    return float(best) if best is not None and math.isfinite(best) else None


def test_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """Return one number a test set (``all``), then ``Avg``; nothing where the test sets were not scored. A set without
    a correlation, since all texts have one vector, is left out, and with it Avg."""
    test = result.get("test") or {}
    tasks = (test.get("tasks") or {}).items()
    scores = {name: float(value["all"]) for name, value in tasks if value["all"] is not None}
    return {**scores, "Avg": float(test["avg"])} if test.get("avg") is not None else scores


def transfer_average(result: Mapping[str, Any] | None) -> float | None:
    """Return the mean accuracy of the seven transfer tasks, ×100, None where they were not scored."""
    average = ((result or {}).get("transfer") or {}).get("avg")
    return None if average is None else float(average)


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return mean and sample standard deviation (n − 1); no deviation for one value."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "n": len(values)}


def summarise(records: TrialRecords, resample: Resample | None = None) -> dict[str, Any]:
    """Write everything measured so far to ``results_dir/<plan>/summary.json``, and return it.

    Arguments:
        resample: gives the resamples for the p-values against the plan's baseline and for those of the margins;
            without it there are no p-values.
    """
    plan = records.plan
    experiments = {name: _summary(experiment, records) for name, experiment in plan.experiments.items()}
    scored = {name: files for name, each in plan.experiments.items() if (files := _scored(each, records))}
    stored = {str(path): [path] for files in scored.values() for path in files.values() if _has_average(path)}
    draws = resample(stored) if resample is not None and (plan.baseline or plan.margins) else {}
    for name in scored if plan.baseline in scored else ():
        if resample is not None and name != plan.baseline:
            experiments[name]["p_value"] = _p_value(draws, scored, name, plan.baseline)
    summary = {"schema": 1, "plan": plan.name, "baseline": plan.baseline, "experiments": experiments}
    summary["tables"] = plan.tables
    if plan.margins:
        summary["margins"] = {**plan.margins, "rows": _margins(plan, scored, draws)}
    path = records.results_dir / plan.name / "summary.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, summary)
    return summary


def _p_value(draws: Mapping[str, np.ndarray], scored: _Scored, name: str, baseline: str | None) -> float | None:
    """Return the p-value that ``name`` beats ``baseline`` on Avg, each its mean over the seeds that both have, or over
    all of its own where they share none. None where a file lacks a test set."""
    sides = [scored.get(name, {}), scored.get(str(baseline), {})]
    shared = sides[0].keys() & sides[1].keys()
    files = [[str(path) for seed, path in side.items() if not shared or seed in shared] for side in sides]
    if not all(files) or any(path not in draws for side in files for path in side):
        return None
    better, base = (np.mean([draws[path] for path in side], axis=0) for side in files)
    return p_value(better, base)


def chosen_trials(experiment: Experiment, records: TrialRecords) -> list[Trial]:
    """Return the final trials once they are known: after the grid, or at once where there is none."""
    if experiment.kind != "selected":
        return []
    if not experiment.grid:
        return experiment.final_trials({})
    chosen = select(experiment, records)
    return experiment.final_trials(chosen[0]) if chosen else []


def _summary(experiment: Experiment, records: TrialRecords) -> dict[str, Any]:
    first, final = experiment.first_trials(), chosen_trials(experiment, records)
    summary: dict[str, Any] = {"title": experiment.title, "kind": experiment.kind, "seeds": experiment.seeds}
    summary |= {"measured_in": experiment.measured_in} if experiment.measured_in else {}
    if experiment.grid:
        grid = [(trial, _result(records, trial)) for trial in first]
        summary["grid"] = {trial.name: dev_score(result) for trial, result in grid}
        chosen = select(experiment, records)
        summary["selected"] = chosen[1] if chosen else None
    if experiment.kind == "scored":
        scored = {
            label: _result(records, trial) for label, trial in zip(experiment.scores.values(), first, strict=True)
        }
        summary["finished"] = [label for label, result in scored.items() if result is not None]
        summary["transfer"] = {label: transfer_average(result) for label, result in scored.items()}
    if experiment.kind == "listed":
        summary["trials"] = {trial.name: dev_score(_result(records, trial)) for trial in first}
    every = {trial.label: trial for trial in first + final}.values()
    summary["failed"] = {trial.name: why for trial in every if (why := _failure(trial, records))}
    reported = [_result(records, trial) for trial in (first if experiment.kind == "command" else final)]
    results = [result for result in reported if result is not None]
    if results:
        summary["finished_seeds"] = [result.get("seed") for result in results]
        dev = [score for result in results if (score := dev_score(result)) is not None]
        summary["dev"] = spread(dev) if dev else None
        scores = [test_scores(result) for result in results]
        names = [name for name in scores[0] if all(name in other for other in scores)]
        summary["test"] = {name: spread([other[name] for other in scores]) for name in names}
    origin = results or [result for trial in first if (result := _result(records, trial)) is not None]
    summary["backbone"] = sorted({Path(str(result["backbone"])).name for result in origin if result.get("backbone")})
    corpora = {(corpus.get("name"), corpus.get("rows")) for result in origin if (corpus := result.get("corpus"))}
    summary["corpus"] = [{"name": Path(str(name)).name, "rows": rows} for name, rows in sorted(corpora, key=str)]
    return summary


def _margins(plan: Plan, scored: _Scored, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the difference of Avg to each base in ``margins.against``, seed by seed: ``spread`` and p-value."""
    averages = {name: _averages(list(scored.get(name, {}).values())) for name in plan.experiments}
    rows: dict[str, Any] = {}
    for name, base in plan.comparisons():
        seeds = [seed for seed in averages[name] if seed in averages[base]]
        if seeds:
            row = spread([averages[name][seed] - averages[base][seed] for seed in seeds])
            rows.setdefault(name, {})[base] = {**row, "p_value": _p_value(draws, scored, name, base)}
    return rows


def _averages(paths: Sequence[Path]) -> dict[int, float]:
    """Return Avg by seed; an encoder that was not trained has no seed."""
    results = [result for path in paths if (result := load(path)) is not None]
    return {r["seed"]: scores["Avg"] for r in results if "seed" in r and "Avg" in (scores := test_scores(r))}


def _failure(trial: Trial, records: TrialRecords) -> dict[str, Any] | None:
    """Return why a trial has no result: it failed, or a run with other arguments has its name."""
    try:
        if records.result(trial) is not None:
            return None
    except PlanError:
        return {"status": "refused", "reason": "a run with other arguments has this name"}
    state = records.state(trial) or {}
    return state if state.get("status") == "failed" else None


def _scored(experiment: Experiment, records: TrialRecords) -> dict[int | None, Path]:
    """Return the results files with test scores by seed; an encoder that was not trained has the seed None."""
    trials = experiment.first_trials() if experiment.kind == "command" else chosen_trials(experiment, records)
    found = [(trial, _result(records, trial)) for trial in trials]
    return {
        result.get("seed"): records.path(trial)
        for trial, result in found
        if result is not None and test_scores(result)
    }


def _has_average(path: Path) -> bool:
    """Say whether a file has Avg, and the similarities that it can be resampled from."""
    content = load(path) or {}
    return bool(content.get("similarities")) and "Avg" in test_scores(content)


def _result(records: TrialRecords, trial: Trial) -> dict[str, Any] | None:
    """Return the record, None where it belongs to other arguments, as a final run of an earlier choice does."""
    try:
        return records.result(trial)
    except PlanError:
        return None
