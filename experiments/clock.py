"""Estimates of the time that the runs of a plan take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from experiments.plan import Experiment, Plan
from experiments.trial import Trial


@dataclass
class Clock:
    """Estimates a trial's time from the plan's numbers and corrects them by the finished trials.

    The estimate assumes that a step's cost is proportional to its batch size. ``seconds_per_step`` of a plan is for
    the batch size of its own ``arguments`` (64 where it has none).
    """

    plan: Plan
    _measured: dict[str, list[float]] = field(default_factory=dict)
    _extra: dict[str, list[float]] = field(default_factory=dict)

    def add(self, trial: Trial, seconds: Mapping[str, float]) -> None:
        """Add a finished trial's ``seconds: {"train", "total"}``. Pass only uninterrupted trials."""
        if trial.steps and "train" in seconds:
            self._measured.setdefault(trial.experiment, []).append(seconds["train"] / (trial.steps * trial.batch))
        if "total" in seconds:
            alike = self._extra.setdefault(_alike(trial), [])
            alike.append(seconds["total"] - (seconds.get("train", 0.0) if trial.kind != "command" else 0.0))

    def seconds(self, trial: Trial) -> float | None:
        """Return the expected seconds of a trial, None if neither the plan nor a finished trial tells."""
        experiment = self.plan.experiments[trial.experiment]
        extra = _mean(self._extra.get(_alike(trial), [])) or experiment.seconds_per_trial
        if trial.steps == 0:
            return extra
        per_sentence = self._seconds_per_sentence(experiment)
        if per_sentence is None or trial.steps is None:
            return None
        return (extra or 0.0) + per_sentence * trial.steps * trial.batch

    def _seconds_per_sentence(self, experiment: Experiment) -> float | None:
        own = _mean(self._measured.get(experiment.name, []))
        if own is not None:
            return own
        hints = {name: _hint(other) for name, other in self.plan.experiments.items()}
        ratios = [fmean(seen) / hint for name, seen in self._measured.items() if (hint := hints[name])]
        hint = hints[experiment.name]
        if hint is not None:
            return hint * (_mean(ratios) or 1.0)
        return _mean([seconds for seen in self._measured.values() for seconds in seen])


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _alike(trial: Trial) -> str:
    """Return the group of trials that share the time outside their steps; a command stands alone."""
    return trial.label if trial.kind == "command" else trial.kind


def _hint(experiment: Experiment) -> float | None:
    """Return the plan's own seconds per sentence."""
    if experiment.seconds_per_step is None:
        return None
    return experiment.seconds_per_step / int(experiment.arguments.get("per_device_train_batch_size", 64))
