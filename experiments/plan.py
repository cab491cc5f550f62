"""A plan of measurements: which runs, in which order, with which arguments, and how long they will take.

A plan is a YAML file (or a dict of the same form). Its experiments are of four kinds:

- *selected*: ``grid`` is searched with ``grid_steps`` steps on the first seed, scored on the dev set only; the best
  configuration is then run once per seed and scored on the test sets. A grid holds lists of values, all combined, or
  named settings to choose among, each a mapping of arguments. Without a grid the seeds run at once.
- *listed*: ``trials`` names single runs by their arguments; first seed, dev set only.
- *command*: ``command`` is the argument list of one Python process which writes ``{output_dir}/results.json`` itself,
  for baselines that need no training, and for what later runs start from; ``run_name`` names its folder.
- *scored*: ``scores`` lists earlier experiments without a grid, or single trials of them. ``command`` runs once for
  each of their trials, with the trial's folder for ``{scored}`` and its label for ``{label}``: the same encoders on
  further sets.

An experiment with ``measured_in: PLAN`` is not run here: its records are those of that plan, which must have been made
with the same arguments.

``overrides``, from the command line, win over everything that a plan says of an argument: its ``arguments``, those of
its experiments, an axis of a grid, and ``grid_steps`` for ``max_steps``. Commands keep their words. Arguments that the
runner sets cannot be overridden, nor those in which listed trials or named settings differ.

Strings may contain ``${NAME}``, filled from the environment; an unset name is an error. ``{folder:EXPERIMENT/TRIAL}``
stands for the working folder of a run of an earlier experiment, which has no grid: the run waits for that one.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from csekit.encoding.schema import Count, Number, Schema, check_schema
from csekit.encoding.yaml_files import read_yaml
from experiments.trial import Arguments, PlanError, Trial, as_words

_EXPERIMENT_KEYS = {"title", "script", "arguments", "grid", "grid_steps", "final_arguments", "seeds", "trials"}
_EXPERIMENT_KEYS |= {"command", "run_name", "scores", "measured_in", "seconds_per_step", "seconds_per_trial"}
_PLAN_KEYS = _EXPERIMENT_KEYS - {"title", "trials", "command", "run_name", "scores", "measured_in"}
_PLAN_KEYS |= {"name", "makes", "device", "baseline", "margins", "max_minutes", "experiments", "tables"}
#: Arguments that the runner sets.
_OWN = ("seed", "do_predict", "output_dir", "resume_from_checkpoint")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*")
_ARGUMENT = re.compile(r"[A-Za-z_]\w*(-\w+)*", re.ASCII)


@dataclass(frozen=True)
class Experiment:
    """One row of the main table, or one list of single runs."""

    name: str
    title: str
    script: str
    arguments: Arguments
    grid: dict[str, Any]
    grid_steps: int | None
    final_arguments: Arguments
    seeds: list[int]
    trials: dict[str, Arguments]
    command: tuple[str, ...]
    run_name: str
    scores: dict[str, str]  # name of a trial to the label of the trial that it scores
    measured_in: str | None
    seconds_per_step: float | None
    seconds_per_trial: float | None

    @property
    def kind(self) -> str:
        if self.command:
            return "scored" if self.scores else "command"
        return "listed" if self.trials else "selected"

    def first_trials(self) -> list[Trial]:
        """Return the trials that depend on no result: grid points, listed runs, or the seeds without a grid."""
        if self.scores:
            return [Trial(self.name, name, "command", {}, self._scoring(label)) for name, label in self.scores.items()]
        if self.command:
            return [Trial(self.name, self.run_name, "command", {}, self.command)]
        dev_only: Arguments = {"seed": self.seeds[0], "do_predict": False}
        if self.trials:
            return [self._trial(name, "listed", dev_only | given) for name, given in self.trials.items()]
        if not self.grid:
            return self.final_trials({})
        short = {} if self.grid_steps is None else {"max_steps": self.grid_steps}
        return [self._trial(name, "grid", dev_only | short | point) for name, point in self.points().items()]

    def points(self) -> dict[str, Arguments]:
        """Return the grid's points by the trials' names; the last argument varies fastest."""
        if all(isinstance(values, dict) for values in self.grid.values()):
            return self.grid
        products = itertools.product(*self.grid.values())
        return {_point_name(p): p for p in (dict(zip(self.grid, values, strict=True)) for values in products)}

    def final_trials(self, point: Arguments) -> list[Trial]:
        """Return the runs of the chosen configuration over the seeds; they score the test sets."""
        given: Arguments = point | {"do_predict": True} | self.final_arguments
        return [self._trial(f"seed={seed}", "final", given | {"seed": seed}) for seed in self.seeds]

    def _scoring(self, label: str) -> tuple[str, ...]:
        """Return the command that scores the trial of this label."""
        words = (word.replace("{scored}", f"{{folder:{label}}}") for word in self.command)
        return tuple(word.replace("{label}", label) for word in words)

    def _trial(self, name: str, kind: str, arguments: Arguments) -> Trial:
        merged = {key: as_words(value) for key, value in (self.arguments | arguments).items() if value is not None}
        return Trial(self.name, name, kind, merged, (self.script,))


@dataclass(frozen=True)
class Plan:
    """Read with ``Plan.read(path)`` or ``Plan.from_dict(mapping)``.

    Arguments:
        baseline: the experiment that the p-values are against.
        margins: ``against``, a list of experiments: the difference of Avg of every other one to each of them, and of
            themselves to the first; or a base, or a list of bases, by experiment, the control first. ``paper``, the
            published differences by experiment, and their ``source``.
        max_minutes: a longer estimate is refused.
        makes: the tables and figures that the plan makes, in words.
        device: ``cpu`` or ``gpu``, what a trial takes: the unit of the estimates, and one GPU a trial with Ray.
        tables: ablation tables, as ``experiments.tables`` documents them.
    """

    name: str
    experiments: dict[str, Experiment]
    baseline: str | None = None
    margins: dict[str, Any] = field(default_factory=dict)
    max_minutes: float | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    makes: str = ""
    device: str = "cpu"

    @classmethod
    def read(
        cls, path: Path, environment: Mapping[str, str] = os.environ, overrides: Mapping[str, Any] | None = None
    ) -> "Plan":
        """Read a YAML file. The plan's name is the file's unless it has one.

        Raises:
            PlanError: the file or the overrides are wrong.
        """
        if not path.is_file():
            raise PlanError(f"the plan must be a YAML file, got {str(path)!r}")
        try:
            raw = read_yaml(path)
        except (OSError, ValueError) as error:
            raise PlanError(str(error)) from None
        if not isinstance(raw, dict):
            raise PlanError(f"{path}: a plan is a mapping of names to values, got {type(raw).__name__}")
        return cls.from_dict({"name": path.stem} | raw, environment, overrides)

    @classmethod
    def from_dict(
        cls,
        raw: Mapping[str, Any],
        environment: Mapping[str, str] = os.environ,
        overrides: Mapping[str, Any] | None = None,
    ) -> "Plan":
        """Make a plan of a mapping in the form of the YAML file; see :meth:`read`."""
        overrides = overrides or {}
        for name in _OWN:
            if name in overrides:
                raise PlanError(f"--{name} is set for each trial by the plan and cannot be overridden")
        raw = expand(dict(raw), environment)
        check_keys("the plan", raw, _PLAN_KEYS)
        try:
            check_schema(RawPlan, raw, "the plan")
        except ValueError as error:
            raise PlanError(str(error)) from None
        check_name("name", raw["name"])
        if not raw.get("experiments"):
            raise PlanError("experiments must name at least one experiment, got none")
        experiments: dict[str, Experiment] = {}
        for name, own in raw["experiments"].items():
            experiments[name] = _experiment(name, own or {}, raw, overrides, experiments)
        baseline = raw.get("baseline")
        if baseline is not None and baseline not in experiments:
            raise PlanError(f"baseline must be one of {sorted(experiments)}, got {baseline!r}")
        margins, tables = raw.get("margins") or {}, raw.get("tables") or {}
        device = raw.get("device", "cpu")
        if device not in ("cpu", "gpu"):
            raise PlanError(f"device must be 'cpu' or 'gpu', got {device!r}")
        minutes, makes = raw.get("max_minutes"), str(raw.get("makes", ""))
        plan = cls(raw["name"], experiments, baseline, margins, minutes, tables, makes, device)
        bases = [base for _, base in plan.comparisons()]
        for name in [*margins.get("against", []), *bases, *margins.get("paper", {})]:
            if name not in experiments:
                raise PlanError(f"margins must name experiments of {sorted(experiments)}, got {name!r}")
        _check_folders(plan)
        for table, spec in plan.tables.items():
            _check_table(f"tables.{table}", spec, plan)
        return plan

    def trial(self, label: str) -> Trial:
        """Return a trial that another one may read, by its label."""
        return _independent(self.experiments.values())[label]

    def trials(self) -> list[Trial]:
        """Return all trials in order. Final trials that wait for a grid stand there without the chosen values."""
        found: list[Trial] = []
        for experiment in self.experiments.values():
            found += experiment.first_trials() + (experiment.final_trials({}) if experiment.grid else [])
        return found

    def comparisons(self) -> list[tuple[str, str]]:
        """Return experiment and base of every margin."""
        against = self.margins.get("against", [])
        if isinstance(against, dict):
            given = {name: [base] if isinstance(base, str) else base for name, base in against.items()}
            return [(name, base) for name, bases in given.items() for base in bases]
        return [
            (name, base)
            for name in self.experiments
            for base in against
            if name != base and (name not in against or base == against[0])
        ]


class RawExperiment(Schema):
    """The types of an experiment's fields."""

    title: str | None = None
    script: str | None = None
    arguments: dict[str, Any] | None = None
    grid: dict[str, Any] | None = None
    grid_steps: Count | None = None
    final_arguments: dict[str, Any] | None = None
    seeds: list[int] | None = None
    trials: dict[str, dict[str, Any] | None] | None = None
    command: list[Any] | None = None
    run_name: str | None = None
    measured_in: str | None = None
    seconds_per_step: Number | None = None
    seconds_per_trial: Number | None = None
    scores: list[str] | None = None


class RawRow(Schema):
    """The types of a row in a table of trials."""

    trial: str
    label: str | None = None


class RawTable(Schema):
    """The types of an ablation table's fields."""

    title: str | None = None
    rows: list[RawRow] = Field(default_factory=list)
    curves: list[RawRow] = Field(default_factory=list)
    second: dict[str, Any] | None = None


class RawMargins(Schema):
    """The types of the margins' fields."""

    against: list[str] | dict[str, str | list[str]] = Field(default_factory=list)
    paper: dict[str, Number] = Field(default_factory=dict)


class RawPlan(RawExperiment):
    """The types of a plan's fields."""

    name: str
    makes: str | None = None
    device: str | None = None
    baseline: str | None = None
    margins: RawMargins | None = None
    max_minutes: Number | None = None
    experiments: dict[str, RawExperiment | None] | None = None
    tables: dict[str, RawTable] | None = None


def parse_options(words: Sequence[str]) -> Arguments:
    """Read ``--name value``, ``--name=value``, ``--name a b`` and a bare ``--flag`` into a mapping."""
    found: Arguments = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name is None:
            raise PlanError(f"an argument of the script must start with --, got {word!r}")
        else:
            found[name].append(word)
    return {name: True if not values else values[0] if len(values) == 1 else values for name, values in found.items()}


def _experiment(
    name: str,
    own: Mapping[str, Any],
    plan: Mapping[str, Any],
    overrides: Mapping[str, Any],
    earlier: Mapping[str, Experiment],
) -> Experiment:
    check_name("experiments", name)
    check_keys(f"experiments.{name}", own, _EXPERIMENT_KEYS)
    if sum(bool(own.get(key)) for key in ("trials", "command", "grid")) > 1:
        raise PlanError(f"experiments.{name} must have one of grid, trials and command, got {sorted(own)}")
    single = bool(own.get("trials") or own.get("command"))

    def pick(key: str, default: Any) -> Any:
        value = own.get(key, plan.get(key))
        return default if value is None else value

    def merge(key: str) -> Arguments:
        return dict(plan.get(key) or {}) | dict(own.get(key) or {})

    grid: dict[str, Any] = {} if single else dict(pick("grid", {}))
    named = any(isinstance(values, dict) for values in grid.values())
    for key, values in grid.items():
        if not isinstance(values, dict if named else list) or not values:
            wanted = "a mapping of arguments" if named else "a list of values"
            raise PlanError(f"experiments.{name}.grid.{key} must be {wanted}, got {values!r}")
        if not named and not _ARGUMENT.fullmatch(str(key)):
            raise PlanError(f"experiments.{name}.grid must name arguments of the script, got {key!r}")
    seeds = [int(seed) for seed in pick("seeds", [42])]
    if not seeds:
        raise PlanError(f"experiments.{name}.seeds must hold at least one seed, got none")
    script = "" if own.get("command") else str(pick("script", ""))
    if not own.get("command") and not os.path.isfile(script):
        raise PlanError(f"experiments.{name}.script must be a file, got {script!r} (seen from {Path.cwd()})")
    for trial in grid if named else own.get("trials") or {}:
        check_name(f"experiments.{name}.{'grid' if named else 'trials'}", trial)
    for key in ("run_name", "measured_in"):
        check_name(f"experiments.{name}.{key}", own.get(key, "run"))
    settings = grid if named else own.get("trials") or {}
    for trial, given in settings.items():
        for key in overrides:
            if key in (given or {}):
                raise PlanError(f"--{key} cannot be overridden: experiments.{name} has its own value for {trial}")
    if not named:
        grid = {key: values for key, values in grid.items() if key not in overrides}
    final_arguments = {key: value for key, value in merge("final_arguments").items() if key not in overrides}
    return Experiment(
        name=name,
        title=own.get("title", name),
        script=script,
        arguments=merge("arguments") | dict(overrides),
        grid=grid,
        grid_steps=None if "max_steps" in overrides else pick("grid_steps", None),
        final_arguments=final_arguments,
        seeds=seeds,
        trials={trial: dict(given or {}) for trial, given in (own.get("trials") or {}).items()},
        command=tuple(str(word) for word in own.get("command") or ()),
        run_name=own.get("run_name", "run"),
        scores=_scored(name, own, earlier),
        measured_in=own.get("measured_in"),
        seconds_per_step=pick("seconds_per_step", None),
        seconds_per_trial=pick("seconds_per_trial", None),
    )


def _scored(name: str, own: Mapping[str, Any], earlier: Mapping[str, Experiment]) -> dict[str, str]:
    """Return the labels of the trials that an experiment scores, by the name of the trial that scores each."""
    where = f"experiments.{name}.scores"
    if "scores" not in own:
        return {}
    if "{scored}" not in (own.get("command") or ()):
        raise PlanError(f"{where}: command must hold the word {{scored}}, got {own.get('command')!r}")
    known = _independent(earlier.values())
    labels: list[str] = []
    for given in own["scores"] or ():
        found = [label for label in known if given in (label, label.partition("/")[0])]
        if not found:
            raise PlanError(f"{where} must name earlier experiments without a grid, or their trials, got {given!r}")
        labels += found
    found_names = {label.replace("/", "."): label for label in labels}
    if not labels or len(found_names) < len(labels):
        raise PlanError(f"{where} must name each trial once, got {own['scores']!r}")
    return found_names


def _check_table(where: str, spec: Mapping[str, Any], plan: Plan) -> None:
    """Check an ablation table. A row names a trial, or an experiment for the average of its test sets."""
    known = {trial.label for trial in plan.trials()}
    known |= {name for name, each in plan.experiments.items() if each.kind == "selected"}
    for row in [*spec.get("rows", []), *spec.get("curves", [])]:
        if row["trial"] not in known:
            raise PlanError(f"{where}: {row['trial']!r} is no trial of this plan")
    scores = (spec.get("second") or {}).get("scores")
    allowed = [name for name, each in plan.experiments.items() if each.kind == "scored"]
    if scores is not None and scores not in allowed:
        raise PlanError(f"{where}.second.scores must be an experiment with scores, one of {allowed}, got {scores!r}")


def _independent(experiments: Iterable[Experiment]) -> dict[str, Trial]:
    """Return the trials whose arguments do not depend on a choice, by label; points of a grid are not among them."""
    found = [trial for experiment in experiments for trial in experiment.first_trials()]
    return {trial.label: trial for trial in found if trial.kind != "grid"}


def _check_folders(plan: Plan) -> None:
    experiments = list(plan.experiments.values())
    for index, experiment in enumerate(experiments):
        earlier = _independent(other for other in experiments[:index] if not other.measured_in)
        for label in [label for trial in experiment.first_trials() for label in trial.needs]:
            if label not in earlier:
                raise PlanError(
                    f"experiments.{experiment.name}: {{folder:{label}}} must be a run of an earlier experiment "
                    f"without a grid, one of {sorted(earlier)}"
                )


def expand(value: Any, environment: Mapping[str, str]) -> Any:
    """Fill ``${NAME}`` in all strings of a value from the environment."""
    if isinstance(value, dict):
        return {key: expand(inner, environment) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value
    missing = [name for name in re.findall(r"\$\{(\w+)\}", value) if name not in environment]
    if missing:
        raise PlanError(f"{value!r} needs the environment variable {missing[0]}, which is not set")
    return re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], value)


def _point_name(point: Arguments) -> str:
    return ",".join(f"{key}={re.sub(r'[^A-Za-z0-9._+-]', '_', str(as_words(value)))}" for key, value in point.items())


def check_keys(where: str, given: Mapping[str, Any], allowed: set[str]) -> None:
    """Raise PlanError for a key that is not allowed."""
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise PlanError(f"{where}: unknown {unknown[0]!r}; allowed are {', '.join(sorted(allowed))}")


def check_name(where: str, name: Any) -> None:
    """Raise PlanError for a name that cannot be a folder's."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PlanError(f"{where} must be letters, digits and . _ = , + - (it becomes a folder), got {name!r}")
