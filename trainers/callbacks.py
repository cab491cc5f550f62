"""Callbacks of the trainer."""

import logging
import signal
import threading
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from csekit.evaluation.geometry_scores import positive_pairs, space_scores
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts import EmbeddedPairs
from csekit.modeling.distributed import world_size
from csekit.modeling.fast_adamw import RowSteps
from csekit.trainers.checkpoints import as_checkpoint

logger = logging.getLogger(__name__)


class Report(TrainerCallback):
    """Evaluate and log after the last step as well: the last state can be the best one, and its loss may not be
    finite. Log at every scheduled checkpoint as well."""

    _started = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started = state.global_step

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
        if state.global_step == self._started:  # a finished run that was resumed: nothing new
            control.should_save = control.should_log = control.should_evaluate = False


class RowStepsCallback(TrainerCallback):
    """Let the optimiser of a training take sparse gradients, until it is removed."""

    def __init__(self) -> None:
        self.steps: RowSteps | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = kwargs["optimizer"]
        self.steps = RowSteps(getattr(optimizer, "optimizer", optimizer))  # without accelerate's wrapper

    def remove(self) -> None:
        if self.steps is not None:
            self.steps.remove()


class Resume(TrainerCallback):
    """Find the best checkpoint of a resumed run also after its folder was moved. Transformers looks for the recorded
    path alone.

    Arguments:
        checkpoint: the folder that training resumes from, None for a new start.
    """

    def __init__(self, checkpoint: str | None = None) -> None:
        self.checkpoint = checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.checkpoint is not None:
            best = as_checkpoint(Path(self.checkpoint)).best()
            state.best_model_checkpoint = None if best is None else str(best.path)


class StopOnTerminate(TrainerCallback):
    """On SIGTERM, finish the step, write a checkpoint and stop; ``interrupted`` is True afterwards.

    The signal may reach several processes at different steps; they agree at logging steps.
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
        self.interrupted = self._received = False
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
            control.should_save = True

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.interrupted and not ended(state):
            control.should_save = control.should_log = control.should_evaluate = False
        elif self.interrupted:  # the checkpoint holds the epoch's scores and log as well
            control.should_save |= control.should_log or control.should_evaluate

    def restore(self) -> None:
        """Reinstall the handler that was there before training."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None


def ended(state: TrainerState) -> bool:
    """Return True after the last step of an epoch, or of the training."""
    return not (state.epoch or 0) % 1 or state.global_step >= state.max_steps


class MeasuredTrainer(Protocol):
    """The attributes of a trainer that ``GeometryCallback`` uses."""

    embedded_dev: EmbeddedPairs | None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add an entry to the log."""


class GeometryCallback(TrainerCallback):
    """Log the shape of the dev set's embeddings at every evaluation: ``geometry/alignment`` of the pairs with a gold
    score above the threshold, ``geometry/uniformity``, ``geometry/mean_cosine`` and ``geometry/effective_rank`` of all
    sentences (MSSE, Fig. 6).

    It reuses the embeddings of the dev score: it encodes nothing and draws no random number. 2,900 sentences take
    about a second on one core.

    Arguments:
        trainer: the trainer whose dev set is measured and whose log is written.
        dev: scored pairs.
        threshold: pairs with a higher score are positives.

    Raises:
        ValueError: there is no dev set, or no pair is above the threshold.
    """

    def __init__(self, trainer: MeasuredTrainer, dev: Pairs | None, threshold: float = 4.0) -> None:
        if dev is None:
            raise ValueError("geometry needs a dev set of scored pairs, got none (--data_dir or --dev_file)")
        try:
            positive_pairs(dev, threshold)
        except ValueError as error:
            raise ValueError(f"geometry_{error}") from None
        self.trainer, self.dev, self.threshold = trainer, dev, threshold

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        embedded = self.trainer.embedded_dev  # None on processes that did not score it
        scores = [None if embedded is None else space_scores(embedded, self.dev, self.threshold)]
        if world_size() > 1:  # the log is the same on every process
            dist.broadcast_object_list(scores, src=0)
        self.trainer.log({f"geometry/{name}": value for name, value in (scores[0] or {}).items()})
