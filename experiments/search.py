"""Search combinations of objectives on the dev set: a sampler proposes, successive halving stops the worse half.

    python -m experiments.search experiments/searches/combinations.yaml --output_dir runs/search --at_once 2
    python -m experiments.search experiments/searches/combinations.yaml --output_dir runs/search --at_once 2  # goes on

The YAML file has ``axes``, each a decision with its named choices, a mapping of arguments of the ``script`` each. A
combination takes one choice of every axis; lists such as ``objectives`` are joined. The first trial takes the first
choice of every axis, Optuna's TPE sampler (``seed``) proposes the others, and successive halving (Li et al. 2018,
"Massively parallel hyperparameter tuning") ends a trial after ``first_rung`` steps, that times ``reduction``, and so
on, unless its dev score is in the best 1/``reduction`` of those seen at that step. ``trials`` counts different
combinations; one that is proposed again is not run again. Test sets are not read.

Each trial is a process of its own, which gets SIGTERM when it falls behind. SIGTERM, SIGHUP and Ctrl-C end the program
with 143 after the running trials have saved; the next call continues them. Every trial is noted in
``RESULTS_DIR/searches/NAME.json`` when it ends. Exit codes: 0 all trials are over, 1 some failed, 2 nothing was
started.
"""

import argparse
import math
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from csekit.encoding.provenance import environment
from csekit.evaluation.results import plain, write_results
from experiments.engines import SIGNALS, start_process
from experiments.plan import check_name
from experiments.processes import locked, remove_note, wait_for_left_behind
from experiments.records import load
from experiments.search_space import Search, without_folders
from experiments.trial import PlanError

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError:
    raise SystemExit("error: experiments.search needs Optuna: pip install 'csekit[search]'") from None

#: Proposals in a row that bring nothing new, after which the search ends.
PATIENCE = 200
METRIC = "stsb_spearman"


def dev_history(folder: Path) -> dict[int, float]:
    """Return the dev scores of a trial by step: of its results, or of its last checkpoint while it runs."""
    if (result := load(folder / "results.json")) is not None:
        history = (result.get("dev") or {}).get("history") or []
        return {row["step"]: row[METRIC] for row in history if row.get(METRIC) is not None}
    saved = [state for path in folder.glob("training/checkpoint-*/trainer_state.json") if (state := load(path))]
    rows = max(saved, key=lambda state: state["global_step"])["log_history"] if saved else []
    return {row["step"]: row[f"eval_{METRIC}"] for row in rows if f"eval_{METRIC}" in row}


class Running:
    """The process of a trial.

    Arguments:
        trial: Optuna's, which the scores are reported to.
    """

    def __init__(self, search: Search, trial: optuna.Trial, output_dir: Path) -> None:
        own = search.trial(trial.params)
        self.trial, self.folder, self.started = trial, output_dir / own.label, time.monotonic()
        self.seen: set[int] = set()
        self.behind = False
        wait_for_left_behind(self.folder)
        resume = self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = start_process(self.folder, own.argv(output_dir, resume))

    def report(self, steps: int) -> None:
        """Report new dev scores; stop the process if the trial has fallen behind."""
        for step, score in sorted(dev_history(self.folder).items()):
            if step in self.seen or self.behind:
                continue
            self.seen.add(step)
            self.trial.report(score, step)
            if step < steps and self.trial.should_prune():
                self.behind = True
                self.process.terminate()

    def end(self) -> str:
        """Return how the trial ended: finished, behind, stopped or failed. Delete checkpoints and weights, unless it
        goes on later."""
        remove_note(self.folder)
        code = self.process.returncode
        if self.behind:
            state = "behind"
        elif code == 0:
            state = "finished" if self.seen else "failed"
        else:
            state = "stopped" if code in (143, -signal.SIGTERM) else "failed"
        if state != "stopped":
            shutil.rmtree(self.folder / "training", ignore_errors=True)
            for path in self.folder.rglob("*.safetensors"):
                path.unlink()
        return state


class Runner:
    """Runs a search in a folder, at most ``at_once`` trials at a time, and keeps the record of it.

    Raises:
        PlanError: the folder or the record belongs to another search.
    """

    def __init__(self, search: Search, output_dir: Path, record: Path, at_once: int) -> None:
        self.search, self.output_dir, self.record, self.at_once = search, output_dir, record, at_once
        self.running: list[Running] = []
        self.stopped = self.broken = False
        self.corpus: Any = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(output_dir / "study.log")))
        pruner = optuna.pruners.SuccessiveHalvingPruner(search.first_rung, search.reduction)
        study = optuna.create_study(
            storage=storage, study_name=search.name, direction="maximize", pruner=pruner, load_if_exists=True
        )
        identity = plain(search.identity())  # as it is written
        found = {output_dir: study.user_attrs.get("search"), record: (load(record) or {}).get("search")}
        for where, known in found.items():
            if known is not None and plain(known) != identity:
                raise PlanError(f"{where} belongs to another search: move it away, or choose another folder")
        study.set_user_attr("search", identity)
        # another seed after a stop, or the sampler would propose the same again
        study.sampler = optuna.samplers.TPESampler(seed=search.seed + len(study.trials))
        if not study.trials:
            study.enqueue_trial({axis: next(iter(choices)) for axis, choices in search.axes.items()})
        self.study = study
        for trial in study.get_trials(states=[TrialState.RUNNING]):  # its driver was killed
            self.tell(trial.number, trial.user_attrs.get("state", "stopped"))
        for number in SIGNALS:
            signal.signal(number, self.stop)

    def stop(self, *_: Any) -> None:
        self.stopped = True

    def over(self) -> list[optuna.trial.FrozenTrial]:
        """Return the trials that have ended, one for each combination, in their order."""
        return [trial for trial in self.study.trials if "state" in trial.user_attrs]

    def run(self) -> bool:
        """Run what is left. Return True where no trial failed and none was stopped."""
        told = exhausted = False
        while True:
            if (self.stopped or self.broken) and not told:
                for each in self.running:
                    each.process.terminate()
                told = True
            while not (told or exhausted or self.stopped) and len(self.running) < self.at_once:
                if len(self.over()) + len(self.running) >= self.search.trials:
                    break
                exhausted = not self.start()
            if not self.running:
                break
            for each in list(self.running):
                ended = each.process.poll() is not None  # asked first: what it wrote at its end is then read
                each.report(self.search.steps)
                if ended:
                    self.take(each)
            time.sleep(0.3)
        if exhausted:
            print(f"the sampler proposed nothing new {PATIENCE} times in a row: the search ends", flush=True)
        return not (self.stopped or self.broken) and all(
            trial.user_attrs["state"] != "failed" for trial in self.over()
        )

    def start(self) -> bool:
        """Start a combination that was not tried yet. Return False where the sampler proposes none."""
        for _ in range(PATIENCE):
            trial = self.study.ask()
            for axis, choices in self.search.axes.items():
                trial.suggest_categorical(axis, list(choices))
            over = self.over()
            if trial.params in [old.params for old in (*over, *(each.trial for each in self.running))]:
                self.study.tell(trial, state=TrialState.FAIL)
                continue
            each = Running(self.search, trial, self.output_dir)
            self.running.append(each)
            head = f"[{len(over) + len(self.running):>3}/{self.search.trials}]"
            print(f"{head} {self.search.label(trial.params)}  log {each.folder / 'log.txt'}", flush=True)
            return True
        return False

    def take(self, each: Running) -> None:
        """Note how a trial ended. One that was stopped, or the first one if it failed, is to run again."""
        self.running.remove(each)
        state, trial = each.end(), each.trial
        label, log = self.search.label(trial.params), each.folder / "log.txt"
        scores = sorted(self.study.trials[trial.number].intermediate_values.items())
        shown = ", ".join(f"{score:.2f}" for _, score in scores) or "no dev score"
        reason = _last_line(log) if each.process.returncode else f"the run logged no {METRIC}: give --data_dir"
        tail = f": {reason}" if state == "failed" else ""
        print(f"          {label}  {state}, dev {shown}{tail}", flush=True)
        if state == "failed" and not self.over():
            print(f"the first trial failed, so the search ends, see {log}", flush=True)
            self.broken, state = True, "stopped"
            shutil.rmtree(each.folder / "training", ignore_errors=True)
        if state != "stopped":
            self.corpus = (load(each.folder / "results.json") or {}).get("corpus") or self.corpus
            trial.set_user_attr("seconds", round(time.monotonic() - each.started, 1))
            trial.set_user_attr("state", state)
        self.tell(trial.number, state)
        self.write()

    def tell(self, number: int, state: str) -> None:
        """Tell Optuna how a trial ended; one that was stopped is proposed again."""
        trial = self.study.trials[number]
        finite = [score for score in trial.intermediate_values.values() if math.isfinite(score)]
        if state == "behind" and finite:
            self.study.tell(number, state=TrialState.PRUNED)
        elif state == "finished" and finite:
            self.study.tell(number, max(finite))
        else:
            self.study.tell(number, state=TrialState.FAIL)
        if state == "stopped":
            self.study.enqueue_trial(trial.params)

    def write(self) -> None:
        """Write the record. Its keys are sorted, so ``axes`` says which choice is the first one."""
        rows = []
        for trial in self.over():
            scores = sorted(trial.intermediate_values.items())
            rows.append(
                {
                    "label": self.search.label(trial.params),
                    "choices": trial.params,
                    "settings": without_folders(self.search.settings(trial.params)),
                    "state": trial.user_attrs["state"],
                    "seconds": trial.user_attrs["seconds"],
                    "dev": [{"step": step, METRIC: score} for step, score in scores],
                    "best": trial.value if trial.user_attrs["state"] == "finished" else None,
                }
            )
        finished = [row for row in rows if row["best"] is not None]
        best = [row["label"] for row in sorted(finished, key=lambda row: -row["best"])]
        corpus = self.corpus or (load(self.record) or {}).get("corpus")
        axes = [{"name": axis, "choices": list(choices)} for axis, choices in self.search.axes.items()]
        content = {"search": self.search.identity(), "axes": axes, "trials": rows, "best": best, "corpus": corpus}
        self.record.parent.mkdir(parents=True, exist_ok=True)
        write_results(self.record, content | {"environment": environment()}, overwrite=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "no output")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("search", type=Path, help="YAML file of experiments/searches")
    parser.add_argument("--output_dir", type=Path, required=True, help="working folders of the trials")
    parser.add_argument("--results_dir", type=Path, default=Path("experiments/results"))
    parser.add_argument("--name", help="of the search and its record (default: the file's)")
    parser.add_argument("--at_once", type=int, default=1, help="trials at a time")
    args = parser.parse_args(argv)
    if args.at_once < 1:
        parser.error(f"argument --at_once: must be at least 1, got {args.at_once}")
    try:
        search = Search.read(args.search)
        if args.name:
            check_name("--name", args.name)
            search = replace(search, name=args.name)
        with locked(args.output_dir):
            record = args.results_dir / "searches" / f"{search.name}.json"
            runner = Runner(search, args.output_dir, record, args.at_once)
            complete = runner.run()
    except PlanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    best = (load(record) or {}).get("best", [])
    print(f"best on dev: {'; '.join(best[:3]) or 'none'}\nrecord: {record}", flush=True)
    return 128 + signal.SIGTERM if runner.stopped else 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
