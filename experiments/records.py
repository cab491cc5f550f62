"""What is known about the trials of a plan: records on disk, the choice on the dev set, mean and deviation over seeds.

Two folders are kept. ``output_dir/<experiment>/<trial>/`` is the working folder of a run, with ``trial.json`` (its
arguments, how often it was started, how it ended) and ``log.txt``. ``results_dir/<plan>/<experiment>/<trial>.json`` is
the record: the run's ``results.json`` with one more key, ``trial``. A record is never replaced by a run with other
arguments. Paths of the machine are cut to their last part before anything is recorded.
"""

import hashlib
import json
import math
import os
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.provenance import write_json
from csekit.evaluation.compare import p_value
from csekit.evaluation.results import similarities_path
from experiments.clock import Clock
from experiments.plan import Arguments, Experiment, Plan, PlanError, Trial

#: results files by experiment -> Avg in each resample of the test pairs, as ``compare.bootstrap_averages``
Resample = Callable[[Mapping[str, Sequence[Path]]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Records:
    """The two folders of a plan."""

    plan: Plan
    output_dir: Path
    results_dir: Path

    def folder(self, trial: Trial) -> Path:
        return self.output_dir / trial.experiment / trial.name

    def path(self, trial: Trial) -> Path:
        plan = self._measured_in(trial) or self.plan.name
        return self.results_dir / plan / trial.experiment / f"{trial.name}.json"

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """The record of a finished trial, None before that. A run that finished while nobody looked is recorded now.

        Errors: ``PlanError`` where a record or a working folder of this name belongs to other arguments.
        """
        recorded = _load(self.path(trial))
        if recorded is not None:
            self._must_match(trial, recorded.get("trial", {}), self.path(trial))
            return recorded
        if self._measured_in(trial):
            return None
        state = self.state(trial)
        if state is None:
            folder = self.folder(trial)
            foreign = folder.exists() and any(not path.name.startswith(".trial.json.") for path in folder.iterdir())
            if foreign and self.state(trial) is None:  # else another process has just begun it
                raise PlanError(f"{folder} holds files but no trial.json: move it away, or run elsewhere")
            return None
        self._must_match(trial, state, self.folder(trial))
        result = _load(self.folder(trial) / "results.json")
        return None if result is None else self._record(trial, result, state)

    def state(self, trial: Trial) -> dict[str, Any] | None:
        return _load(self.folder(trial) / "trial.json")

    def waits_for(self, trial: Trial) -> str | None:
        """Why a trial cannot start: it reads the folder of another that has not finished, or whose folder is gone."""
        for label in trial.needs:
            other = self.plan.trial(label)
            if self.result(other) is None:
                return f"{label}, which has no result"
            if not (self.folder(other) / "results.json").is_file():
                return (
                    f"the folder of {label}, which is not there: bring it back to {self.folder(other)}, or move "
                    f"{self.path(other)} away and it is made anew"
                )
        return None

    def begin(self, trial: Trial) -> bool:
        """Note that a trial starts; True where it was started before."""
        starts = int((self.state(trial) or {}).get("starts", 0)) + 1
        self._note(trial, {"status": "running", "starts": starts})
        return starts > 1

    def end(self, trial: Trial, status: str, returncode: int, tail: list[str] | None = None) -> None:
        """Note how a trial ended: ``finished``, ``failed`` or ``interrupted``."""
        starts = (self.state(trial) or {}).get("starts", 1)
        ending: dict[str, Any] = {"status": status, "starts": starts, "returncode": returncode}
        if tail is not None:
            ending["tail"] = self._public(trial, tail)
        self._note(trial, ending)

    def drop_checkpoints(self, trial: Trial) -> None:
        """Delete what a finished trial kept for resumption."""
        shutil.rmtree(self.folder(trial) / "training", ignore_errors=True)

    def _measured_in(self, trial: Trial) -> str | None:
        return self.plan.experiments[trial.experiment].measured_in

    def _note(self, trial: Trial, state: Mapping[str, Any]) -> None:
        self.folder(trial).mkdir(parents=True, exist_ok=True)
        write_json(self.folder(trial) / "trial.json", {**self._identity(trial), **state})

    def _identity(self, trial: Trial) -> dict[str, Any]:
        arguments: dict[str, Any] = {"command": list(trial.command), **trial.arguments}
        config = Path(str(trial.arguments.get("config", "")))
        if config.is_file():
            arguments["config_sha256"] = hashlib.sha256(config.read_bytes()).hexdigest()
        if trial.needs:  # the same words over another earlier run are another run
            arguments["needs"] = {label: self._identity(self.plan.trial(label))["hash"] for label in trial.needs}
        arguments = self._public(trial, arguments)
        digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        return {"kind": trial.kind, "hash": digest, "arguments": arguments}

    def _must_match(self, trial: Trial, found: Mapping[str, Any], where: Path) -> None:
        wanted = self._identity(trial)
        if found.get("hash") == wanted["hash"]:
            return
        old, new = found.get("arguments", {}), wanted["arguments"]
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changes = "; ".join(f"{name}: {old.get(name)!r} there, {new.get(name)!r} now" for name in names)
        raise PlanError(
            f"{where} belongs to other arguments ({changes or 'unknown ones'}). Nothing was overwritten: "
            "move it away, or give the plan another name or the run another folder"
        )

    def _record(self, trial: Trial, result: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        own = {**self._identity(trial), "starts": state.get("starts", 1)}
        record: dict[str, Any] = {**self._public(trial, result), "trial": own}
        path = self.path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = record.pop("similarities", None) or {}
        source = self.folder(trial) / entry.get("file", "none")
        if trial.kind in ("final", "command") and source.is_file():
            record["similarities"] = {**entry, "file": similarities_path(path).name}
            draft = path.with_name(f".{path.name}.{os.getpid()}.npz")
            shutil.copyfile(source, draft)
            os.replace(draft, similarities_path(path))
        write_json(path, record)
        return record

    def _public(self, trial: Trial, value: Any) -> Any:
        """A copy with paths of this machine cut to their last part."""
        words = [*trial.command, *trial.arguments.values(), str(self.folder(trial).absolute()), str(Path.cwd())]
        flat = [inner for word in words for inner in ([word] if isinstance(word, str) else word)]
        outside = [word for word in flat if os.path.isabs(word) or word.startswith("..")]
        outside += [str((self.output_dir / label).absolute()) for label in trial.needs]
        found = {word.rstrip("/") for word in outside} | {str(Path(word).resolve()) for word in outside}
        return _cut(value, sorted(found - {"", "/"}, key=len, reverse=True))


def _cut(value: Any, paths: Sequence[str]) -> Any:
    """Each of ``paths``, the longest first, cut to its last part wherever it is in ``value``."""
    if isinstance(value, dict):
        return {key: _cut(inner, paths) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, paths) for inner in value]
    if isinstance(value, str):
        for path in paths:
            value = re.sub(re.escape(path) + r"(?![\w.-])", Path(path).name, value)
    return value


def measured_clock(records: Records) -> Clock:
    """Estimates from what the finished trials took. A resumed trial reports only its last part and is left out."""
    clock = Clock(records.plan)
    for experiment in records.plan.experiments.values():
        trials = {trial.label: trial for trial in experiment.first_trials() + chosen_trials(experiment, records)}
        for trial in trials.values():
            result = records.result(trial)
            if result is not None and result["trial"]["starts"] == 1:
                clock.add(trial, result.get("seconds") or {})
    return clock


def matrix(records: Records, clock: Clock) -> tuple[str, float]:
    """Every trial with its estimated minutes and its state, as text, and the minutes still to run."""
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
        seconds = clock.seconds(trial)
        finished += result is not None
        if elsewhere:
            rows.append(_row(trial, "-", f"{'' if result else 'not yet '}in {elsewhere}"))
            continue
        if result is None:
            todo += (seconds or 0.0) / 60
            unknown += seconds is None
        minutes = "?" if seconds is None else f"{seconds / 60:.1f}"
        state = status if result is None else "finished"
        rows.append(_row(trial, minutes, state))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    limit = "" if plan.max_minutes is None else f" of at most {plan.max_minutes:g}"
    guess = f", not counting {unknown} trials of unknown length" if unknown else ""
    lines.append(f"{plan.name}: {len(rows) - 1} trials, {finished} finished, {todo:.0f} minutes to go{limit}{guess}")
    return "\n".join(lines), todo


def _row(trial: Trial, minutes: str, state: str) -> tuple[str, str, str, str, str, str]:
    return trial.label, trial.kind, str(trial.steps or "-"), str(trial.batch), minutes, state


def select(experiment: Experiment, records: Records) -> tuple[Arguments, dict[str, Any]] | None:
    """The grid point with the best dev score, the first of equals; None where no grid trial has one.

    Test scores are not read here. Points without a finished run or with a non-finite score do not take part.
    """
    found = [(dev_score(records.result(trial)), trial) for trial in experiment.first_trials()]
    best: tuple[Arguments, dict[str, Any]] | None = None
    for point, (score, trial) in zip(experiment.points().values(), found, strict=True):
        if score is not None and (best is None or score > best[1]["dev"]):
            best = (
                point,
                {"trial": trial.name, "dev": score, "values": {name: trial.arguments[name] for name in point}},
            )
    return best


def dev_score(result: Mapping[str, Any] | None) -> float | None:
    """``dev.best`` of a results file; None where it is absent or not finite."""
    best = ((result or {}).get("dev") or {}).get("best")
    return float(best) if best is not None and math.isfinite(best) else None


def test_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """One number a test set (``all``), then ``Avg``; empty where the test sets were not scored."""
    test = result.get("test") or {}
    scores = {name: float(value["all"]) for name, value in (test.get("tasks") or {}).items()}
    return {**scores, "Avg": float(test["avg"])} if test.get("avg") is not None else scores


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean and sample standard deviation (n − 1); no deviation from one value."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "n": len(values)}


def summarise(records: Records, resample: Resample | None = None) -> dict[str, Any]:
    """Everything measured so far, written to ``results_dir/<plan>/summary.json`` and returned.

    Arguments:
        resample: what the p-values against the plan's baseline, and those of the margins, are counted in; without it
            there are none.
    """
    plan = records.plan
    experiments = {name: _summary(experiment, records) for name, experiment in plan.experiments.items()}
    scored = {name: files for name, each in plan.experiments.items() if (files := _scored(each, records))}
    paired = {
        name: files for name, files in scored.items() if all((_load(f) or {}).get("similarities") for f in files)
    }
    draws = resample(paired) if resample is not None and (plan.baseline or plan.margins) else {}
    for name in scored if plan.baseline in scored else ():
        if resample is not None and name != plan.baseline:
            experiments[name]["p_value"] = _p_value(draws, name, plan.baseline)
    summary = {"schema": 1, "plan": plan.name, "baseline": plan.baseline, "experiments": experiments}
    summary["tables"] = plan.tables
    if plan.margins:
        summary["margins"] = {**plan.margins, "rows": _margins(plan, scored, draws)}
    path = records.results_dir / plan.name / "summary.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, summary)
    return summary


def _p_value(draws: Mapping[str, np.ndarray], name: str, baseline: str | None) -> float | None:
    """That ``name`` beats ``baseline`` on Avg; None where one of them has not all seven sets."""
    if baseline is None or name not in draws or baseline not in draws:
        return None
    return p_value(draws[name], draws[baseline])


def chosen_trials(experiment: Experiment, records: Records) -> list[Trial]:
    """The final trials once they are known: after the grid, or at once where there is none."""
    if experiment.kind != "selected":
        return []
    if not experiment.grid:
        return experiment.final_trials({})
    chosen = select(experiment, records)
    return experiment.final_trials(chosen[0]) if chosen else []


def _summary(experiment: Experiment, records: Records) -> dict[str, Any]:
    first, final = experiment.first_trials(), chosen_trials(experiment, records)
    summary: dict[str, Any] = {"title": experiment.title, "kind": experiment.kind, "seeds": experiment.seeds}
    summary |= {"measured_in": experiment.measured_in} if experiment.measured_in else {}
    if experiment.grid:
        grid = [(trial, _result(records, trial)) for trial in first]
        summary["grid"] = {trial.name: dev_score(result) for trial, result in grid}
        chosen = select(experiment, records)
        summary["selected"] = chosen[1] if chosen else None
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


def _margins(plan: Plan, scored: Mapping[str, list[Path]], draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Avg of every experiment less that of its bases in ``margins.against``, seed by seed: ``spread`` and p-value."""
    averages = {name: _averages(scored.get(name, [])) for name in plan.experiments}
    rows: dict[str, Any] = {}
    for name, base in plan.comparisons():
        seeds = [seed for seed in averages[name] if seed in averages[base]]
        if seeds:
            row = spread([averages[name][seed] - averages[base][seed] for seed in seeds])
            rows.setdefault(name, {})[base] = {**row, "p_value": _p_value(draws, name, base)}
    return rows


def _averages(paths: Sequence[Path]) -> dict[int, float]:
    """Avg by seed; an encoder that was not trained has none."""
    results = [result for path in paths if (result := _load(path)) is not None]
    return {r["seed"]: scores["Avg"] for r in results if "seed" in r and "Avg" in (scores := test_scores(r))}


def _failure(trial: Trial, records: Records) -> dict[str, Any] | None:
    """Why a trial has no result: it failed, or its place is taken by a run with other arguments."""
    try:
        if records.result(trial) is not None:
            return None
    except PlanError:
        return {"status": "refused", "reason": "a run with other arguments has this name"}
    state = records.state(trial) or {}
    return state if state.get("status") == "failed" else None


def _scored(experiment: Experiment, records: Records) -> list[Path]:
    trials = experiment.first_trials() if experiment.kind == "command" else chosen_trials(experiment, records)
    found = [(trial, _result(records, trial)) for trial in trials]
    return [records.path(trial) for trial, result in found if result is not None and test_scores(result)]


def _result(records: Records, trial: Trial) -> dict[str, Any] | None:
    """As ``records.result``; a final run of an earlier choice does not count as this one's."""
    try:
        return records.result(trial)
    except PlanError:
        return None


def _load(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is absent or was cut off while being written."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
