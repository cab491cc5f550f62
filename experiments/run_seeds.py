"""Run an example over a grid and over seeds: choose on the dev set, score the test sets once, mean and deviation.

    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms --dry_run     # what would run, in minutes
    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms               # again after a kill: goes on
    python -m experiments.run_seeds PLAN.yaml --output_dir runs/full --name full -- --max_steps -1 --learning_rate 7e-6
    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms --summarise   # the plan's tables changed
    python -m experiments.run_seeds --script examples/run_unsup.py --output_dir runs/lr --seeds 42 43 44 \
        --grid learning_rate=3e-5,1e-4 --grid_steps 300 -- --method simcse --train_file sentences.txt

`experiments.plan` says what a plan holds, `experiments.records` what is kept of each trial. Arguments after `--`
override those of the plan in every trial, and are recorded with it; a record with other arguments is refused, so give
such a call a `--name` of its own.

Trials run one at a time in this process. With `--engine fork` up to `--at_once` run at the same time, all on one GPU,
as forks of this process that have its imports already. With `--engine ray` Ray runs as many at once as the machine, or
the cluster that RAY_ADDRESS names, has CPU cores and GPUs for:

    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms --engine fork --at_once 12
    python -m experiments.run_seeds PLAN.yaml --output_dir runs/equal-terms --engine ray --num_gpus 1

On a machine for an hour, `--stop_after 3000` stops the trials so that they save, and writes the summary without
p-values (`--summarise` adds them later), and `--drop_models` deletes weights that no later trial of the plan reads.

One process at a time works in an output folder; a second one is refused. The next call tries failed trials again; the
others go on without them. Experiments that another plan has measured (`measured_in`) are read, not run. SIGTERM,
SIGHUP and Ctrl-C reach the running trials as SIGTERM, so that they can save, and end the program with 143. Exit
codes: 0 all trials finished, 1 some did not, 2 nothing was started.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from csekit.evaluation.compare import bootstrap_averages
from experiments.clock import Clock
from experiments.engines import Engine, Forks, OneByOne, RayTasks
from experiments.overview import commands, matrix, measured_clock, scores
from experiments.plan import Plan, parse_options
from experiments.processes import locked, wait_for_left_behind
from experiments.records import TrialRecords
from experiments.runner import Runner
from experiments.summary import summarise
from experiments.trial import PlanError


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, Plan]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", type=Path, help="YAML file; or use --script")
    parser.add_argument("--output_dir", type=Path, required=True, help="working folders of the trials")
    parser.add_argument(
        "--results_dir", type=Path, default=Path("experiments/results"), help="records and summary.json"
    )
    parser.add_argument("--dry_run", action="store_true", help="print the matrix of runs and their commands, and stop")
    parser.add_argument("--summarise", action="store_true", help="renew summary.json from the records, and stop")
    parser.add_argument("--max_minutes", type=float, help="refuse a longer estimate (default: the plan's)")
    parser.add_argument("--keep_checkpoints", action="store_true", help="also of finished grid and listed trials")
    parser.add_argument("--drop_models", action="store_true", help="delete weights that no later trial reads")
    parser.add_argument("--stop_after", type=float, metavar="SECONDS", help="then trials save and end; exit code 143")
    parser.add_argument(
        "--engine", choices=["local", "fork", "ray"], default="local", help="fork, ray: several trials at once"
    )
    parser.add_argument("--at_once", type=int, default=4, help="with forks: the most trials at a time (default: 4)")
    parser.add_argument("--num_cpus", type=float, default=1, help="with Ray: CPU cores of a trial (default: 1)")
    parser.add_argument(
        "--num_gpus", type=float, help="with Ray: GPUs of a trial (default: 1 if the plan needs a GPU)"
    )
    parser.add_argument("--name", help="folder in results_dir (default: the plan's name, else the end of output_dir)")
    parser.add_argument("--script", help="without a plan: the example to run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42], help="without a plan")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME=A,B", help="without a plan")
    parser.add_argument("--grid_steps", type=int, help="without a plan: max_steps of the grid trials")
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    if args.stop_after is not None and args.stop_after <= 0:
        parser.error(f"argument --stop_after: must be above 0, got {args.stop_after:g}")
    if args.at_once < 1:
        parser.error(f"argument --at_once: must be at least 1, got {args.at_once}")
    for name, value in vars(args).items():
        if value == [] and name != "grid":  # argparse reads --name=-- as an empty list
            parser.error(f"argument --{name}: expected one argument")
    if (args.plan is None) == (args.script is None):
        parser.error("give either a plan or --script")
    options = parse_options(argv[cut + 1 :])
    if args.plan:
        plan = Plan.read(args.plan, overrides=options)
        plan = replace(plan, name=args.name or plan.name)
    else:
        raw: dict[str, Any] = {"name": args.name or args.output_dir.resolve().name, "script": args.script}
        raw |= {"seeds": args.seeds, "grid_steps": args.grid_steps, "arguments": options}
        raw["grid"] = {name: values.split(",") for name, _, values in (word.partition("=") for word in args.grid)}
        plan = Plan.from_dict(raw | {"experiments": {raw["name"]: {}}})
    if args.max_minutes is not None:
        plan = replace(plan, max_minutes=args.max_minutes)
    return args, plan


def main(argv: list[str]) -> int:
    """Run the command line. Return the exit code."""
    try:
        args, plan = read_arguments(argv)
        for folder in (args.output_dir, args.results_dir):
            if folder.exists() and not folder.is_dir():
                raise PlanError(f"{folder} must be a folder, got a file")
        records = TrialRecords(plan, args.output_dir, args.results_dir)
        if args.summarise:
            print(scores(summarise(records, bootstrap_averages)), flush=True)
            return 0
        clock = measured_clock(records)
        table, minutes = matrix(records, clock)
        print(table, flush=True)
        if args.dry_run:
            print(commands(records, clock), flush=True)
        if plan.max_minutes is not None and minutes > plan.max_minutes:
            raise PlanError(
                f"{minutes:.0f} minutes exceed max_minutes {plan.max_minutes:g}; nothing started: --max_minutes sets "
                "another limit"
            )
        if args.dry_run:
            return 0
        with locked(args.output_dir):
            return run(args, records, clock)
    except PlanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace, records: TrialRecords, clock: Clock) -> int:
    """Run the plan in an output folder that this process holds. Return the exit code."""
    for trial in records.plan.trials():
        wait_for_left_behind(records.folder(trial))
        records.note_killed(trial)
    gpus = float(records.plan.device == "gpu") if args.num_gpus is None else args.num_gpus
    engines: dict[str, Callable[[], Engine]] = {
        "local": OneByOne,
        "fork": lambda: Forks(args.at_once),
        "ray": lambda: RayTasks(args.num_cpus, gpus),
    }
    engine = engines[args.engine]()
    try:
        runner = Runner(records, clock, engine, args.keep_checkpoints, args.drop_models, args.stop_after)
        complete = runner.run()
    finally:
        engine.close()
    print(scores(summarise(records, None if runner.late else bootstrap_averages)))  # p-values take minutes
    print(f"summary: {args.results_dir / records.plan.name / 'summary.json'}", flush=True)
    return 143 if runner.stopped else 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
