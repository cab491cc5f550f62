"""Run an example over a grid and over seeds: choose on the dev set, score the test sets once, mean and deviation.

    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms --dry_run     # what would run, in minutes
    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms               # again after a kill: goes on
    python -m experiments.run_seeds --script examples/run_unsup.py --output_dir runs/lr --seeds 42 43 44 \
        --grid learning_rate=3e-5,1e-4 --grid_steps 300 -- --method simcse --train_file sentences.txt

`experiments.plan` says what a plan holds, `experiments.records` what is kept of each trial. Trials run
one at a time; the same command once more, on another device, takes those that no other process has, and waits for the
rest:

    CUDA_VISIBLE_DEVICES=0 python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms &
    CUDA_VISIBLE_DEVICES=1 python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms

A failed trial is noted and the others go on; the next call tries it again. What another plan has measured
(`measured_in`) is read, not run. SIGTERM, SIGHUP and Ctrl-C reach the running trial as SIGTERM, so that it can save,
and end the program with 143; another process takes it up. Exit codes: 0 all trials finished, 1 some did not, 2 nothing
was started.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from csekit.evaluation.compare import bootstrap_averages
from experiments.clock import Clock
from experiments.plan import Plan, PlanError, Trial, parse_options
from experiments.records import (
    Records,
    chosen_trials,
    dev_score,
    matrix,
    measured_clock,
    select,
    summarise,
)

try:
    import fcntl
except ImportError:  # not on Windows: two processes in one folder go unnoticed there
    fcntl = None  # type: ignore[assignment]


class Runner:
    """Runs trials one after another, beside other processes, and hands stop signals on to the running one."""

    def __init__(self, records: Records, clock: Clock, keep_checkpoints: bool) -> None:
        self.records, self.clock, self.keep_checkpoints = records, clock, keep_checkpoints
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.started = 0
        own = [t.label for t in records.plan.trials() if not records.plan.experiments[t.experiment].measured_in]
        self.places = {label: f"[{place:>3}/{len(own)}] {label}" for place, label in enumerate(own, start=1)}
        self.waiting: dict[str, str] = {}  # trial -> the one, itself or what it reads, that another process runs
        self.elsewhere: set[str] = set()  # trials that another process was seen to run
        self.over: set[str] = set()  # trials without a result that this call does not try again
        self.said: set[str] = set()
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self.stop)

    def stop(self, *_: Any) -> None:
        self.stopped = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()

    def run(self, trial: Trial) -> bool:
        """Run a trial unless it has finished, or another process has it; True where it has a result in the end."""
        if self.stopped or trial.label in self.over:
            return False
        with self.claim(trial.label) as lock:
            if lock is None:
                self.elsewhere.add(trial.label)
            needed = [trial.label] if lock is None else [n for n in trial.needs if n in self.waiting or self.held(n)]
            if needed:
                self.waiting[trial.label] = held = self.waiting.get(needed[0], needed[0])
                self.say(f"{self.places[trial.label]}  another process runs {held}")
                return False
            try:
                finished = self.run_claimed(trial, lock)
            except PlanError as error:
                self.say(f"{self.places[trial.label]}  refused: {error}")
                finished = False
        if not finished:
            self.over.add(trial.label)
        return finished

    def run_claimed(self, trial: Trial, lock: Any) -> bool:
        head = self.places[trial.label]
        if self.records.result(trial) is not None:
            return self.finished(trial)
        if (reason := self.records.waits_for(trial)) is not None:
            self.say(f"{head}  not started, waits for {reason}")
            return False
        if trial.label in self.elsewhere and (self.records.state(trial) or {}).get("status") == "failed":
            self.say(f"{head}  failed in another process")
            return False
        seconds = self.clock.seconds(trial)
        expected = "?" if seconds is None else f"{seconds / 60:.1f}"
        print(f"{head}  {expected} min expected, log {self.log(trial)}", flush=True)
        resume = self.records.begin(trial)
        self.started += 1
        started = time.monotonic()
        returncode = self.process(trial, resume, lock)
        self.records.end(trial, "running", returncode)
        minutes = (time.monotonic() - started) / 60
        if (result := self.records.result(trial)) is not None:
            self.records.end(trial, "finished", returncode)
            if not resume:
                self.clock.add(trial, result.get("seconds") or {})
            print(f"{head}  dev {dev_score(result)}, {minutes:.1f} min", flush=True)
            return self.finished(trial)
        interrupted = self.stopped or returncode in (143, -signal.SIGTERM)
        status = "interrupted" if interrupted else "failed"
        tail = self.log(trial).read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        self.records.end(trial, status, returncode, None if interrupted else tail)
        last = next((line for line in reversed(tail) if line.strip()), "no output")
        print(f"{head}  {status}, exit code {returncode}, {minutes:.1f} min: {last}", flush=True)
        return False

    def process(self, trial: Trial, resume: bool, lock: Any) -> int:
        """The child process. It inherits the claim, and leaves our process group so that only we signal it."""
        argv = [sys.executable, *trial.argv(self.records.output_dir, resume)]
        inherit = [lock.fileno()] if fcntl else []
        with self.log(trial).open("ab") as log:
            self.child = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, pass_fds=inherit)
        if self.stopped:  # the signal came before there was a child
            self.child.terminate()
        return self.child.wait()

    def finished(self, trial: Trial) -> bool:
        if trial.kind in ("grid", "listed") and not self.keep_checkpoints:
            self.records.drop_checkpoints(trial)
        return True

    @contextmanager
    def claim(self, label: str) -> Iterator[Any]:
        """The lock of a trial, None where another process, or a trial that one has left behind, holds it."""
        path = self.records.output_dir / ".locks" / label.replace("/", "--")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            try:
                if fcntl:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
            else:
                yield lock

    def held(self, label: str) -> bool:
        """Whether another process has a trial."""
        with self.claim(label) as lock:
            return lock is None

    def wait(self) -> None:
        """Until another process has let go of one of the trials that ours wait for."""
        while not self.stopped and all(map(self.held, self.waiting.values())):
            time.sleep(1)

    def say(self, line: str) -> None:
        """Print a line once."""
        if line not in self.said:
            self.said.add(line)
            print(line, flush=True)

    def log(self, trial: Trial) -> Path:
        return self.records.folder(trial) / "log.txt"


def run_all(runner: Runner, plan: Plan, records: Records) -> bool:
    """All trials of a plan, again and again while another process runs some; True where every one has a result."""
    while not (complete := run_free(runner, plan, records)) and runner.waiting and not runner.stopped:
        runner.wait()
    return complete and not runner.stopped


def run_free(runner: Runner, plan: Plan, records: Records) -> bool:
    """Those trials that no other process runs, in the plan's order; True where every one has a result."""
    complete = True
    runner.waiting = {}
    for experiment in plan.experiments.values():
        if experiment.measured_in:
            continue
        before, first = runner.started, experiment.first_trials()
        outcomes = [runner.run(trial) for trial in first]
        complete &= all(outcomes)
        if not experiment.grid or runner.stopped or any(trial.label in runner.waiting for trial in first):
            continue
        failed, chosen = outcomes.count(False), select(experiment, records)
        if chosen is None:
            runner.say(f"{experiment.name}: no grid trial has a dev score; no final runs")
            complete = False
            continue
        missing = f"; {failed} grid trials have no result and took no part" if failed else ""
        runner.say(f"{experiment.name}: chosen on dev {chosen[1]['dev']:.2f}: {chosen[1]['trial']}{missing}")
        outcomes = [runner.run(trial) for trial in chosen_trials(experiment, records)]
        complete &= all(outcomes)
        if runner.started > before:
            summarise(records, bootstrap_averages)
    return complete


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, Plan]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path, help="YAML file; or use --script")
    parser.add_argument("--output_dir", type=Path, required=True, help="working folders of the trials")
    parser.add_argument(
        "--results_dir", type=Path, default=Path("experiments/results"), help="records and summary.json"
    )
    parser.add_argument("--dry_run", action="store_true", help="print the matrix of runs and stop")
    parser.add_argument("--max_minutes", type=float, help="refuse a longer estimate (default: the plan's)")
    parser.add_argument("--keep_checkpoints", action="store_true", help="also of finished grid and listed trials")
    parser.add_argument("--script", help="without a plan: the example to run")
    parser.add_argument("--name", help="without a plan: its name (default: the last part of output_dir)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], help="without a plan")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME=A,B", help="without a plan")
    parser.add_argument("--grid_steps", type=int, help="without a plan: max_steps of the grid trials")
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    if (args.plan is None) == (args.script is None):
        parser.error("give either a plan or --script")
    if args.plan:
        plan = Plan.read(args.plan)
    else:
        raw: dict[str, Any] = {"name": args.name or args.output_dir.resolve().name, "script": args.script}
        raw |= {"seeds": args.seeds, "grid_steps": args.grid_steps, "arguments": parse_options(argv[cut + 1 :])}
        raw["grid"] = {name: values.split(",") for name, _, values in (word.partition("=") for word in args.grid)}
        plan = Plan.from_dict(raw | {"experiments": {raw["name"]: {}}})
    if args.max_minutes is not None:
        plan = replace(plan, max_minutes=args.max_minutes)
    return args, plan


def main(argv: list[str]) -> int:
    try:
        args, plan = read_arguments(argv)
        records = Records(plan, args.output_dir, args.results_dir)
        clock = measured_clock(records)
        table, minutes = matrix(records, clock)
        print(table, flush=True)
    except PlanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if plan.max_minutes is not None and minutes > plan.max_minutes:
        print(
            f"error: {minutes:.0f} minutes exceed max_minutes {plan.max_minutes:g}; nothing started", file=sys.stderr
        )
        return 2
    if args.dry_run:
        return 0
    runner = Runner(records, clock, args.keep_checkpoints)
    complete = run_all(runner, plan, records)
    summarise(records, bootstrap_averages)
    print(f"summary: {args.results_dir / plan.name / 'summary.json'}", flush=True)
    return 143 if runner.stopped else 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
