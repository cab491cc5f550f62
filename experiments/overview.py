"""What ``run_seeds`` prints: the matrix of runs with their estimates, their commands, and the scores at the end."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.clock import Clock
from experiments.processes import still_runs
from experiments.records import TrialRecords
from experiments.summary import chosen_trials
from experiments.trial import Trial


def measured_clock(records: TrialRecords) -> Clock:
    """Return a clock that knows the finished trials. A resumed trial reports only its last part and is left out."""
    clock = Clock(records.plan)
    for experiment in records.plan.experiments.values():
        trials = {trial.label: trial for trial in experiment.first_trials() + chosen_trials(experiment, records)}
        for trial in trials.values():
            result = records.result(trial)
            if result is not None and result["trial"]["starts"] == 1:
                clock.add(trial, result.get("seconds") or {})
    return clock


def matrix(records: TrialRecords, clock: Clock) -> tuple[str, float]:
    """Return every trial with its estimated minutes and its state, as text, and the minutes still to run."""
    plan = records.plan
    rows = [("trial", "kind", "steps", "batch", "minutes", "state")]
    todo, unknown, finished = 0.0, 0, 0
    for trial in plan.trials():
        experiment = plan.experiments[trial.experiment]
        elsewhere = experiment.measured_in
        waits = trial.kind == "final" and bool(experiment.grid)
        known = {other.name: other for other in chosen_trials(experiment, records)}.get(trial.name) if waits else trial
        result = None if known is None else records.result(known)
        status = (records.state(trial) or {}).get("status", "after the grid" if known is None else "")
        if status == "running" and not still_runs(records.folder(trial)):
            status = "killed"  # and its driver with it: the next call resumes it
        seconds = clock.seconds(trial)
        finished += result is not None
        if elsewhere:
            rows.append(_row(trial, "-", f"{'' if result else 'not yet '}in {elsewhere}"))
            continue
        if result is None:
            todo += (seconds or 0.0) / 60
            unknown += seconds is None
        minutes = "?" if seconds is None else f"{seconds / 60:.1f}"
        rows.append(_row(trial, minutes, status if result is None else "finished"))
    limit = "" if plan.max_minutes is None else f" of at most {plan.max_minutes:g}"
    guess = f", not counting {unknown} trials of unknown length" if unknown else ""
    last = f"{plan.name}: {len(rows) - 1} trials, {finished} finished, {todo:.0f} minutes to go{limit}{guess}"
    return "\n".join([*_aligned(rows), last]), todo


def commands(records: TrialRecords, clock: Clock) -> str:
    """Return the command line of every trial that the plan runs, each below a line with its estimated cost.

    A final run after a grid stands without the values that the grid chooses. The cost is ``unknown`` until the plan
    or a finished trial tells the time of a step.
    """
    plan, lines = records.plan, []
    unit = "GPU hours" if plan.device == "gpu" else "hours"
    for trial in plan.trials():
        experiment = plan.experiments[trial.experiment]
        if experiment.measured_in:
            continue
        seconds = clock.seconds(trial)
        cost = "unknown" if seconds is None else f"{seconds / 3600:.2f}"
        later = ", with the values that the grid chooses" if trial.kind == "final" and experiment.grid else ""
        lines.append(f"# {trial.label}: {cost} {unit}{later}")
        lines.append(shlex.join(["python", *trial.argv(records.output_dir, resume=False)]))
    return "\n".join(lines)


def scores(summary: Mapping[str, Any]) -> str:
    """Return the content of ``summary.json`` as a table: dev and Avg as mean ± deviation, p against the baseline.

    An experiment of listed trials has a row for each of them.
    """
    rows = [("experiment", "seeds", "STS-B dev", "Avg of the test sets", "p")]
    for name, experiment in summary["experiments"].items():
        for trial, dev in experiment.get("trials", {}).items():
            rows.append((f"{name}/{trial}", "1", "-" if dev is None else f"{dev:.2f}", "-", ""))
        for label, average in experiment.get("transfer", {}).items():
            known = "-" if average is None else f"transfer {average:.2f}"
            rows.append((f"{name}: {label}", "1", "-", known, ""))
        if "trials" in experiment or "transfer" in experiment:
            continue
        p = experiment.get("p_value")
        seeds = len(experiment.get("finished_seeds", []))
        test = (experiment.get("test") or {}).get("Avg")
        cells = (_spread(experiment.get("dev")), _spread(test), "" if p is None else f"{p:.3f}")
        rows.append((name, str(seeds), *cells))
    notes = [f"p: one-sided paired bootstrap against {summary['baseline']}"] if summary.get("baseline") else []
    return "\n".join([*_aligned(rows), *notes])


def _spread(value: Mapping[str, Any] | None) -> str:
    if not value:
        return "-"
    return f"{value['mean']:.2f}" + ("" if value["std"] is None else f" ± {value['std']:.2f}")


def _row(trial: Trial, minutes: str, state: str) -> tuple[str, str, str, str, str, str]:
    return trial.label, trial.kind, str(trial.steps or "-"), str(trial.batch), minutes, state


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines of left-aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
