"""Callbacks of the trainer."""

import logging
import signal
import threading
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class Report(TrainerCallback):
    """Evaluate after the last step too, since the last state can be the best one. Log then, since it may be no longer
    finite, and at every checkpoint, so that a resumed run logs the same averages."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        last = state.global_step >= state.max_steps
        control.should_evaluate |= last and args.eval_strategy == "steps"
        control.should_log |= last or control.should_save

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        control.should_log |= control.should_save


class StopOnTerminate(TrainerCallback):
    """SIGTERM: finish the step, write a checkpoint, stop. ``interrupted`` tells that this happened.

    With several processes the signal may reach them at different steps; they agree at logging steps.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._received = False
        self._previous: Any = None

    def _receive(self, signum: int, frame: Any) -> None:
        self._received = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._receive)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        received = self._received
        if args.world_size > 1:
            if state.global_step % max(int(args.logging_steps), 1):
                return
            flag = torch.tensor(float(received), device=args.device)
            dist.all_reduce(flag)
            received = bool(flag)
        if received:
            logger.warning("SIGTERM: writing a checkpoint at step %d and stopping.", state.global_step)
            self.interrupted = control.should_training_stop = True
            control.should_save = control.should_log = True

    def restore(self) -> None:
        """Give the signal back to whoever had it before training."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None
