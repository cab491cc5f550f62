"""The progress of a training on the terminal: a line for each log entry in aligned columns, and a live bar.

step  epoch     loss  contrastive     rtd  stsb_spearman  rows/s   left
  25   0.02   0.3120       0.2871  0.0249                    412   0:52
  50   0.03   0.2015       0.1790  0.0225         83.12*     409   0:49
* best stsb_spearman; the weights of step 50 are kept
"""

import json
import math
import sys
import time
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from csekit.trainers.callbacks import StopOnTerminate

#: Forms of the lines: aligned columns, or one JSON object for each log entry.
LOG_FORMATS = ("table", "json")
_WIDTH = 8  # of a column, at least
_SHOWN = ("_spearman", "_accuracy", "_loss")  # evaluations besides the one that selects


class ProgressLines(TrainerCallback):
    """Print a line for each log entry of the main process, and a live bar if standard output is a terminal.

    A line waits for the evaluation of its step, so that loss and dev score stand in one line.

    Arguments:
        log_format: ``table`` or ``json``.
        label: the word in front of the bar.
        stop: the trainer's callback for SIGTERM; the last line tells an interrupted run from a finished one.
    """

    def __init__(self, log_format: str = "table", label: str = "step", stop: StopOnTerminate | None = None) -> None:
        self.log_format = log_format
        self.label = label
        self.stop = stop
        self._row: dict[str, Any] = {}
        self._head: list[str] = []
        self._bar: Progress | None = None
        self._best: float | None = None

    # Events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started, self._first = time.monotonic(), state.global_step
        self._seconds, self._rows, self._step_started = 0.0, 0, time.monotonic()
        self._best = state.best_metric
        self._head = []
        if (
            state.is_world_process_zero
            and sys.stdout.isatty()
            and not args.disable_tqdm
            and self.log_format == "table"
        ):
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=Console(), transient=True)
            self._task = self._bar.add_task(self.label, total=state.max_steps, completed=state.global_step)
            self._bar.start()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._print_row(state)
        self._step_started = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seconds += time.monotonic() - self._step_started
        self._rows += args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if self.log_format == "json":
            print(json.dumps({"step": state.global_step, **logs}), flush=True)
            return
        metric = str(args.metric_for_best_model).removeprefix("eval_")
        for name, value in logs.items():
            if isinstance(value, float | int) and not name.startswith(("metrics/", "geometry/", "total_flos")):
                self._take(name, float(value), metric, bool(args.greater_is_better))
        if "loss" in logs and self._seconds:
            self._row["rows/s"] = f"{self._rows / self._seconds:.0f}"
            self._row["left"] = self._left(state)
            self._seconds, self._rows = 0.0, 0

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._print_row(state)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if state.is_world_process_zero and self._head and state.best_global_step:
            print(self._about_the_best(args, state))

    # Lines

    def _about_the_best(self, args: TrainingArguments, state: TrainerState) -> str:
        """Return the last line: what the asterisk means, and how the training ended."""
        best = f"* best {str(args.metric_for_best_model).removeprefix('eval_')}"
        place = f"at step {state.global_step} of {state.max_steps}"
        if self.stop is not None and self.stop.interrupted:
            return f"{best} so far; training was interrupted {place}"
        if args.load_best_model_at_end:
            best += f"; the weights of step {state.best_global_step} are kept"
        return best if state.global_step >= state.max_steps else f"{best}; training stopped early, {place}"

    #: Names in the log that have another form in the columns.
    _SHORT: ClassVar[dict[str, str]] = {"learning_rate": "lr"}

    def _take(self, name: str, value: float, metric: str, greater: bool) -> None:
        """Put an entry of the log into the row."""
        if name.startswith("eval_"):
            name = name.removeprefix("eval_")
            best = ""
            worst = -math.inf if greater else math.inf
            known = worst if self._best is None else self._best
            if name == metric and (value > known if greater else value < known):  # never nan
                self._best, best = value, "*"
            if name == metric or name.endswith(_SHOWN):
                self._row[name] = f"{value:.2f}{best}"
        elif name == "epoch":
            self._row.setdefault(name, f"{value:.2f}")
        elif name in ("learning_rate", "grad_norm"):
            self._row[self._SHORT.get(name, name)] = f"{value:.2g}"
        else:
            self._row[name.removeprefix("loss/")] = f"{value:.4f}" if abs(value) >= 1e-4 else f"{value:.1e}"

    def _left(self, state: TrainerState) -> str:
        done = state.global_step - self._first
        seconds = (time.monotonic() - self._started) / max(done, 1) * (state.max_steps - state.global_step)
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

    def _print_row(self, state: TrainerState) -> None:
        """Print the row of the last log entry. The head is printed first, and again if a column is new."""
        if not self._row:
            return
        row, self._row = {"step": str(state.global_step), **self._row}, {}
        new = [name for name in row if name not in self._head]
        if new:
            order = ["step", "epoch", "loss"]
            tail = ["lr", "grad_norm", "rows/s", "left"]
            named = [name for name in dict.fromkeys([*self._head, *row]) if name not in (*order, *tail)]
            self._head = [*order, *named, *tail]
            self._print(self._head)
        self._print([row.get(name, "") for name in self._head])

    def _print(self, cells: list[str]) -> None:
        widths = [max(len(name), _WIDTH) for name in self._head]
        text = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)
