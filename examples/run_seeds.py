"""Run an example over a grid and over seeds: choose on the dev set, score the test sets once, mean and deviation.

    python examples/run_seeds.py PLAN.yaml --output_dir runs/equal-terms --dry_run     # what would run, in minutes
    python examples/run_seeds.py PLAN.yaml --output_dir runs/equal-terms               # again after a kill: goes on
    python examples/run_seeds.py --script examples/run_unsup.py --output_dir runs/lr --seeds 42 43 44 \
        --grid learning_rate=3e-5,1e-4 --grid_steps 300 -- --method simcse --train_file sentences.txt

`csekit.evaluation.plans` says what a plan holds, `csekit.evaluation.trials` what is kept of each trial. Trials run
one at a time. A failed one is noted and the others go on; the next call tries it again. What another plan has measured
(`measured_in`) is read, not run. SIGTERM, SIGHUP and Ctrl-C
reach the running trial as SIGTERM, so that it can save, and end the program with 143. Exit codes: 0 all trials
finished, 1 some did not, 2 nothing was started.
"""

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from csekit.evaluation.plans import Clock, Plan, PlanError, Trial, parse_options
from csekit.evaluation.trials import (
    Records,
    bootstrap_p_value,
    chosen_trials,
    dev_score,
    matrix,
    measured_clock,
    select,
    summarise,
)

try:
    import fcntl
except ImportError:  # not on Windows: two runs in one folder go unnoticed there
    fcntl = None  # type: ignore[assignment]


class Runner:
    """Runs trials one after another and hands stop signals on to the running one."""

    def __init__(self, records: Records, clock: Clock, keep_checkpoints: bool, lock: Any) -> None:
        self.records, self.clock, self.keep_checkpoints, self.lock = records, clock, keep_checkpoints, lock
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.done = self.started = 0
        self.total = sum(not records.plan.experiments[trial.experiment].measured_in for trial in records.plan.trials())
        for name in ("SIGTERM", "SIGINT", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self.stop)

    def stop(self, *_: Any) -> None:
        self.stopped = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()

    def run(self, trial: Trial) -> bool:
        """Run a trial unless it has finished; True where it has a result in the end."""
        if self.stopped:
            return False
        self.done += 1
        try:
            if self.records.result(trial) is not None:
                return self.finished(trial)
            reason = self.records.waits_for(trial)
        except PlanError as error:
            print(f"{self.head(trial)}  refused: {error}", flush=True)
            return False
        if reason is not None:
            print(f"{self.head(trial)}  not started, waits for {reason}", flush=True)
            return False
        seconds = self.clock.seconds(trial)
        expected = "?" if seconds is None else f"{seconds / 60:.1f}"
        print(f"{self.head(trial)}  {expected} min expected, log {self.log(trial)}", flush=True)
        resume = self.records.begin(trial)
        self.started += 1
        started = time.monotonic()
        returncode = self.process(trial, resume)
        self.records.end(trial, "running", returncode)
        minutes = (time.monotonic() - started) / 60
        if (result := self.records.result(trial)) is not None:
            self.records.end(trial, "finished", returncode)
            if not resume:
                self.clock.add(trial, result.get("seconds") or {})
            print(f"{self.head(trial)}  dev {dev_score(result)}, {minutes:.1f} min", flush=True)
            return self.finished(trial)
        interrupted = self.stopped or returncode in (143, -signal.SIGTERM)
        status = "interrupted" if interrupted else "failed"
        tail = self.log(trial).read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        self.records.end(trial, status, returncode, None if interrupted else tail)
        last = next((line for line in reversed(tail) if line.strip()), "no output")
        print(f"{self.head(trial)}  {status}, exit code {returncode}, {minutes:.1f} min: {last}", flush=True)
        return False

    def process(self, trial: Trial, resume: bool) -> int:
        """The child process. It inherits the lock, and leaves our process group so that only we signal it."""
        argv = [sys.executable, *trial.argv(self.records.output_dir, resume)]
        inherit = [self.lock.fileno()] if fcntl else []
        with self.log(trial).open("ab") as log:
            self.child = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, pass_fds=inherit)
        if self.stopped:  # the signal came before there was a child
            self.child.terminate()
        return self.child.wait()

    def finished(self, trial: Trial) -> bool:
        if trial.kind in ("grid", "listed") and not self.keep_checkpoints:
            self.records.drop_checkpoints(trial)
        return True

    def log(self, trial: Trial) -> Path:
        return self.records.folder(trial) / "log.txt"

    def head(self, trial: Trial) -> str:
        return f"[{self.done:>3}/{self.total}] {trial.label}"


def run_all(runner: Runner, plan: Plan, records: Records) -> bool:
    """All trials of a plan; True where every one has a result."""
    complete = True
    for experiment in plan.experiments.values():
        if experiment.measured_in:
            continue
        before, first = runner.started, experiment.first_trials()
        outcomes = [runner.run(trial) for trial in first]
        complete &= all(outcomes)
        if not experiment.grid or runner.stopped:
            continue
        failed, chosen = outcomes.count(False), select(experiment, records)
        if chosen is None:
            print(f"{experiment.name}: no grid trial has a dev score; no final runs", flush=True)
            complete, runner.done = False, runner.done + len(experiment.seeds)
            continue
        missing = f"; {failed} grid trials have no result and took no part" if failed else ""
        print(f"{experiment.name}: chosen on dev {chosen[1]['dev']:.2f}: {chosen[1]['trial']}{missing}", flush=True)
        outcomes = [runner.run(trial) for trial in chosen_trials(experiment, records)]
        complete &= all(outcomes)
        if runner.started > before:
            summarise(records, bootstrap_p_value)
    return complete and not runner.stopped


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, Plan]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path, help="YAML file; or use --script")
    parser.add_argument("--output_dir", type=Path, required=True, help="working folders of the trials")
    parser.add_argument("--results_dir", type=Path, default=Path("results"), help="records and summary.json")
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
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with (args.output_dir / ".lock").open("w") as lock:
        try:
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"error: another run, or a trial it left behind, still works in {args.output_dir}", file=sys.stderr)
            return 2
        runner = Runner(records, clock, args.keep_checkpoints, lock)
        complete = run_all(runner, plan, records)
    summarise(records, bootstrap_p_value)
    print(f"summary: {args.results_dir / plan.name / 'summary.json'}", flush=True)
    return 143 if runner.stopped else 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
