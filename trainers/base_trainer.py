"""Transformers' Trainer with hooks: it logs each loss term, resumes exactly, and stops if a loss is not finite.

Shape suffixes: S micro-batches of a logging window, T terms and diagnostics.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import RandomSampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from csekit.modeling.distributed import world_size
from csekit.trainers.callbacks import Report, StopOnTerminate
from csekit.trainers.data.datasets import EpochMixin, SetEpochCallback, ShuffledRows
from csekit.trainers.progress import ProgressLines

logger = logging.getLogger(__name__)

TRAINING_FOLDER = "training"


class NonFiniteLossError(RuntimeError):
    """A loss term became NaN or infinite. All checkpoints are older."""


class TermsTrainer(Trainer):
    """Trainer of a model that returns ``loss``, ``loss_dict`` and ``metrics``.

    Every log entry holds ``loss/<term>`` and ``metrics/<diagnostic>``, averaged over its steps and over processes.
    Checkpoints go to ``output_dir/training``. The trainer removes ``index`` from a batch; errors name these rows.

    Arguments:
        train_dataset: map-style, or a stream; the trainer sets its epoch.
        callbacks, kwargs: as in Transformers.
    """

    def __init__(self, *, train_dataset: EpochMixin, callbacks: Sequence[TrainerCallback] = (), **kwargs: Any) -> None:
        self._window: list[Tensor] = []
        self._origins: list[tuple[int, Tensor | None]] = []  # step and rows of the corpus
        self._names: list[str] = []
        self.stop_on_terminate = StopOnTerminate()
        own = [SetEpochCallback(train_dataset), Report(), self.stop_on_terminate]
        super().__init__(train_dataset=train_dataset, callbacks=[*own, *callbacks], **kwargs)
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(ProgressLines(self.args.log_format))

    @property
    def training_dir(self) -> str:
        """The folder of checkpoints and trainer state: ``output_dir/training``."""
        return os.path.join(str(self.args.output_dir), TRAINING_FOLDER)

    def _get_output_dir(self, trial: Any) -> str:
        return self.training_dir if trial is None else super()._get_output_dir(trial)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:  # type: ignore[override]
        """Train as Transformers does. ``True`` resumes from the last complete checkpoint, or starts from the beginning
        if there is none.

        A resumed run is bitwise equal to an uninterrupted one on the same kind of machine, with any number of workers.
        The exception is ``dataloader_persistent_workers``: their start draws from the global random state.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.training_dir)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.stop_on_terminate.restore()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Fetch batches as Transformers does, but no further step for a finished run that is resumed."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is not RandomSampler or not self.accelerator.dataloader_config.use_seedable_sampler:
            return sampler
        seed = torch.initial_seed() if self.args.data_seed is None else self.args.data_seed
        return ShuffledRows(len(sampler), seed)

    # The log: one detached row per step, which is read when the log is written

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        index = inputs.pop("index", None)
        outputs = model(**inputs)
        terms = {f"loss/{name}": value for name, value in outputs.loss_dict.items()}
        metrics = {f"metrics/{name}": value for name, value in outputs.metrics.items()}
        self._names = [*terms, *metrics]
        self._window.append(torch.stack([value.float() for value in (*terms.values(), *metrics.values())]))
        self._origins.append((self.state.global_step + 1, index))
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._window:
            rows_ST = self._checked_window()
            micro_batches = Counter(step for step, _ in self._origins)
            weights_S = rows_ST.new_tensor([1 / micro_batches[step] for step, _ in self._origins])
            means_T = self.accelerator.reduce(weights_S @ rows_ST / len(micro_batches), reduction="mean")
            logs |= dict(zip(self._names, means_T.tolist(), strict=True))
            self._window, self._origins = [], []
        super().log(logs, start_time)

    def _checked_window(self) -> Tensor:
        """Return the micro-batches since the last log entry, (S, T).

        Raises:
            NonFiniteLossError: a loss term is not finite.
        """
        rows_ST = torch.stack(self._window)
        terms = [i for i, name in enumerate(self._names) if name.startswith("loss/")]
        broken_ST = ~rows_ST[:, terms].isfinite()
        anywhere = broken_ST.any().float()
        if world_size() > 1:
            dist.all_reduce(anywhere)
        if not anywhere:
            return rows_ST
        if not broken_ST.any():
            raise NonFiniteLossError("a loss term is not finite in another process")
        row, column = broken_ST.nonzero()[0].tolist()
        step, index = self._origins[row]
        name, value = self._names[terms[column]].removeprefix("loss/"), rows_ST[row, terms[column]].item()
        samples = index.tolist() if index is not None else "unknown"
        raise NonFiniteLossError(
            f"step {step}: loss term {name!r} is {value}; rows of the corpus in that batch, from 0: {samples}. "
            f"All checkpoints in {self.training_dir} are older."
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self._window:
            self._checked_window()
        finite = torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all()
        if not finite:
            raise NonFiniteLossError(
                f"step {self.state.global_step}: weights are not finite, so no checkpoint was written"
            )
        super()._save_checkpoint(model, trial)

    def save_training(self) -> Path:
        """Write the model and the trainer's state to ``training/``."""
        training = Path(self.training_dir)
        self.save_model(str(training), _internal_call=True)  # without this flag Transformers also publishes the model
        if self.args.should_save:
            self.state.save_to_json(str(training / "trainer_state.json"))
        return training


def last_checkpoint(folder: str) -> str | None:
    """Return the last complete checkpoint. Trainer state is written last, so an interrupted checkpoint has none."""
    whole = [file.parent for file in Path(folder).glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda checkpoint: int(checkpoint.name.split("-")[1]))) if whole else None


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """Use the model's own ``forward`` inside the context; in mixed precision accelerate wraps it in autocast."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


def warn_of_launcher() -> None:
    """Warn if a launcher was asked for several processes and started only one."""
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        logger.warning(
            "a launcher set MASTER_ADDR but this is one process ('accelerate launch --cpu' starts only one): "
            "use 'torchrun --nproc_per_node N' for several processes on CPU"
        )
