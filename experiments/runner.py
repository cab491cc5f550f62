"""Runs the trials of a plan in an order that respects their dependencies."""

import signal
import time
from collections.abc import Iterator
from typing import Any

from experiments.clock import Clock
from experiments.engines import Ended, Engine
from experiments.plan import Experiment
from experiments.records import TrialRecords
from experiments.summary import chosen_trials, dev_score, select, summarise
from experiments.trial import PlanError, Trial


class Runner:
    """Passes trials to an engine as soon as they may start, notes how they end, and passes stop signals on.

    A trial may start when those whose folders it reads have ended. The final trials of a grid wait for all its points.

    Arguments:
        keep_checkpoints: of finished grid and listed trials, too.
        drop_models: delete the weights of a finished trial whose folder no other trial of the plan reads.
        stop_after: seconds after which the trials are stopped, as by SIGTERM.
    """

    def __init__(
        self,
        records: TrialRecords,
        clock: Clock,
        engine: Engine,
        keep_checkpoints: bool = False,
        drop_models: bool = False,
        stop_after: float | None = None,
    ) -> None:
        self.records, self.clock, self.engine, self.keep_checkpoints = records, clock, engine, keep_checkpoints
        self.deadline = None if stop_after is None else time.monotonic() + stop_after
        self.stopped = self.late = False
        self.outcomes: dict[str, bool] = {}  # label of a trial that is over -> it has a result
        self.running: set[str] = set()
        self.read = {label for trial in records.plan.trials() for label in trial.needs} if drop_models else None
        self.finals: dict[str, list[Trial] | None] = {}  # experiment -> what its grid chose, None for nothing
        self.changed: set[str] = set()  # experiments with a trial that ran, since the last summary
        self.own = [each for each in records.plan.experiments.values() if not each.measured_in]
        labels = [trial.label for trial in records.plan.trials() if trial.experiment in {e.name for e in self.own}]
        self.heads = {label: f"[{place:>3}/{len(labels)}] {label}" for place, label in enumerate(labels, start=1)}
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self.stop)

    def stop(self, *_: Any) -> None:
        self.stopped = True

    def run(self) -> bool:
        """Run all trials. Return True where every one has a result."""
        told = False
        while True:
            if self.deadline is not None and time.monotonic() > self.deadline and not self.stopped:
                print("the time is over: running trials save and end", flush=True)
                self.stopped = self.late = True
            if self.stopped and not told:
                self.engine.stop()
                told = True
            if not self.stopped:
                self.start_what_may()
            if not self.running:
                break
            if ended := self.engine.ended(seconds=0.5):
                self.take(ended)
        return not self.stopped and all(self.outcomes.values()) and None not in self.finals.values()

    def start_what_may(self) -> None:
        """Start trials while there is room. A trial that has a result already may make further ones known."""
        over = -1
        while over < len(self.outcomes):
            over = len(self.outcomes)
            for trial in self.in_order():
                if self.stopped or not self.engine.has_room():
                    return
                if trial.label in self.outcomes or trial.label in self.running:
                    continue
                if all(label in self.outcomes for label in trial.needs):
                    self.start(trial)

    def in_order(self) -> list[Trial]:
        """Return the trials whose arguments are known by now: the plan's order, first seeds before second ones."""

        def place(trial: Trial) -> int:
            seeds = self.records.plan.experiments[trial.experiment].seeds
            return seeds.index(int(str(trial.arguments["seed"]))) if trial.kind == "final" else 0

        return sorted(self.known(), key=place)

    def known(self) -> Iterator[Trial]:
        """Yield the trials whose arguments are known by now, in the plan's order."""
        for experiment in self.own:
            yield from experiment.first_trials()
            if experiment.grid and all(trial.label in self.outcomes for trial in experiment.first_trials()):
                yield from self.chosen(experiment)

    def chosen(self, experiment: Experiment) -> list[Trial]:
        """Return the final trials of a grid that is over, and say once what was chosen."""
        if experiment.name not in self.finals:
            failed = [self.outcomes[trial.label] for trial in experiment.first_trials()].count(False)
            choice = select(experiment, self.records)
            if choice is None:
                print(f"{experiment.name}: no grid trial has a dev score; no final runs", flush=True)
                self.finals[experiment.name] = None
            else:
                missing = f"; {failed} grid trials have no result and took no part" if failed else ""
                what = f"chosen on dev {choice[1]['dev']:.2f}: {choice[1]['trial']}"
                print(f"{experiment.name}: {what}{missing}", flush=True)
                self.finals[experiment.name] = chosen_trials(experiment, self.records)
        return self.finals[experiment.name] or []

    def start(self, trial: Trial) -> None:
        """Start a trial unless it has finished, waits for a failed one or is refused."""
        head = self.heads[trial.label]
        try:
            if self.records.result(trial) is not None:
                self.over(trial, True)
            elif (reason := self.records.waits_for(trial)) is not None:
                print(f"{head}  not started, waits for {reason}", flush=True)
                self.over(trial, False)
            else:
                seconds = self.clock.seconds(trial)
                expected = "?" if seconds is None else f"{seconds / 60:.1f}"
                log = self.records.folder(trial) / "log.txt"
                print(f"{head}  {expected} min expected, log {log}", flush=True)
                self.running.add(trial.label)
                self.changed.add(trial.experiment)
                self.engine.start(self.records, trial)
        except PlanError as error:
            print(f"{head}  refused: {error}", flush=True)
            self.over(trial, False)

    def take(self, ended: Ended) -> None:
        """Note how a trial ended."""
        trial, head, minutes = ended.trial, self.heads[ended.trial.label], f"{ended.seconds / 60:.1f} min"
        self.running.discard(trial.label)
        if ended.returncode is None and not ended.lost:
            return self.over(trial, False)  # it was stopped before it began
        code = -1 if ended.returncode is None else ended.returncode
        self.records.end(trial, "running", code)
        if (result := self.records.result(trial)) is not None:
            self.records.end(trial, "finished", code)
            if result["trial"]["starts"] == 1:
                self.clock.add(trial, result.get("seconds") or {})
            print(f"{head}  dev {dev_score(result)}, {minutes}", flush=True)
            return self.over(trial, True)
        interrupted = self.stopped or code in (143, -signal.SIGTERM)
        status = "interrupted" if interrupted else "failed"
        tail = self.tail(trial, ended)
        self.records.end(trial, status, code, None if interrupted else tail)
        last = next((line for line in reversed(tail) if line.strip()), "no output")
        print(f"{head}  {status}, exit code {code}, {minutes}: {last}", flush=True)
        return self.over(trial, False)

    def tail(self, trial: Trial, ended: Ended) -> list[str]:
        log = self.records.folder(trial) / "log.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:] if log.is_file() else []
        return [*lines, ended.lost] if ended.lost else lines

    def over(self, trial: Trial, finished: bool) -> None:
        """Note a trial's outcome; write the summary, without p-values, where it was the last one of its experiment."""
        self.outcomes[trial.label] = finished
        if finished and trial.kind in ("grid", "listed") and not self.keep_checkpoints:
            self.records.drop_checkpoints(trial)
        if finished and self.read is not None and trial.label not in self.read:
            self.records.drop_models(trial)
        experiment = self.records.plan.experiments[trial.experiment]
        every = [*experiment.first_trials(), *(experiment.final_trials({}) if experiment.grid else [])]
        if experiment.name in self.changed and all(each.label in self.outcomes for each in every):
            self.changed.discard(experiment.name)
            summarise(self.records)  # p-values take minutes, in which no signal is passed on: they come at the end
