"""Transformers' Trainer with hooks: it logs each loss term, resumes exactly, and stops if a loss is not finite.

Shape suffix: T terms and diagnostics.
"""

import logging
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.utils.data import RandomSampler
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SchedulerType, TrainOutput, has_length
from transformers.training_args import OptimizerNames

from csekit.encoding.pretrained import all_finite
from csekit.encoding.workers import end_with_parent
from csekit.modeling.distributed import world_size
from csekit.modeling.drafts import DiskFullError, full_disk_told, whole_files
from csekit.modeling.export import MODEL_FILES
from csekit.modeling.fast_embedding import clip_gradients, use_plain_gradients, use_row_gradients
from csekit.modeling.fast_memory import freed_memory_kept
from csekit.modeling.quiet import quiet_weights
from csekit.trainers.arguments import RunTrainingArguments, follows_score
from csekit.trainers.callbacks import Report, Resume, RowStepsCallback, StopOnTerminate
from csekit.trainers.checkpoints import (
    MANIFEST,
    STATE,
    as_checkpoint,
    check_optimizer,
    checked,
    finish_checkpoint,
    resumable,
)
from csekit.trainers.data.datasets import EpochMixin, SetEpochCallback, ShuffledRows
from csekit.trainers.progress import ProgressLines
from csekit.trainers.run_lock import check_held, held
from csekit.trainers.run_settings import SETTINGS, RunSettings, argument_settings
from csekit.trainers.unused_weights import freeze_unused

logger = logging.getLogger(__name__)

TRAINING_FOLDER = "training"
OPEN_WINDOW = "log_window_{}.pt"  # of each process, in a checkpoint between two entries of the log
_STATE_FILES = (STATE, "training_args.bin")


class NonFiniteLossError(RuntimeError):
    """A loss term became NaN or infinite. All checkpoints are older."""


class TermsTrainer(Trainer):
    """Trainer of a model that returns ``loss``, ``loss_dict`` and ``metrics``.

    Every log entry holds ``loss``, ``loss/<term>`` and ``metrics/<diagnostic>``, averaged over its steps and over
    processes. Checkpoints go to ``output_dir/training``; one between two entries holds what the next will average. The
    trainer removes ``index`` from a batch; errors name these rows.

    Arguments:
        train_dataset: map-style, or a stream; the trainer sets its epoch.
        callbacks, kwargs: as in Transformers.

    Raises:
        ValueError: the learning rate follows a score, and none is named; ``dataloader_drop_last`` leaves no batch; a
            function for loss or scores, which nothing would call; options that the optimiser does not take.
        ImportError: the optimiser is not installed.
    """

    args: RunTrainingArguments
    #: Names what is trained, for messages.
    stage: str = "the training"

    def __init__(self, *, train_dataset: EpochMixin, callbacks: Sequence[TrainerCallback] = (), **kwargs: Any) -> None:
        self._window: list[Tensor] = []
        self._origins: list[tuple[int, Tensor | None]] = []  # step and rows of the corpus
        self._names: list[list[str]] = []  # of the values of each micro-batch
        self._row_gradients = False
        self._settings = RunSettings({})
        self.stop_on_terminate = StopOnTerminate()
        self._resume = Resume()
        own = [SetEpochCallback(train_dataset), Report(), self.stop_on_terminate, self._resume]
        for name in ("compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} must be left out: the model computes its loss and the trainer its scores")
        args = kwargs["args"]
        if follows_score(args) and args.metric_for_best_model is None and args.eval_strategy != IntervalStrategy.NO:
            kind = SchedulerType(args.lr_scheduler_type).value
            raise ValueError(f"metric_for_best_model must name a score with lr_scheduler_type {kind!r}, got None")
        try:  # an optimiser that is not installed, before any work
            self.get_optimizer_cls_and_kwargs(args, kwargs["model"])
        except ValueError as error:
            raise ValueError(f"optim {args.optim.value!r}: {error} (optim_args)") from error
        batch = args.train_batch_size * args.world_size
        if args.dataloader_drop_last and has_length(train_dataset) and (rows := len(train_dataset)) < batch:  # type: ignore[arg-type]
            raise ValueError(f"dataloader_drop_last must be False with fewer rows, {rows}, than a batch has, {batch}")
        super().__init__(train_dataset=train_dataset, callbacks=[*own, *callbacks], **kwargs)
        if self.args.bf16_full_eval or self.args.fp16_full_eval:  # Transformers leaves it where it is until it trains
            self._move_model_to_device(kwargs["model"], self.args.device)
        if args.world_size > 1:
            freeze_unused(kwargs["model"])
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(ProgressLines(self.args.log_format, stop=self.stop_on_terminate))

    @property
    def training_dir(self) -> str:
        """The folder of checkpoints and trainer state: ``output_dir/training``."""
        return os.path.join(str(self.args.output_dir), TRAINING_FOLDER)

    def _get_output_dir(self, trial: Any) -> str:
        return self.training_dir if trial is None else super()._get_output_dir(trial)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:  # type: ignore[override]
        """Train as Transformers does. ``True`` resumes from the last whole checkpoint, or starts from the beginning if
        there is none. The run's folder is locked meanwhile.

        A resumed run is bitwise equal to an uninterrupted one on the same kind of machine, with any number of workers.
        The exception is ``dataloader_persistent_workers``: their start draws from the global random state.

        Raises:
            FolderInUseError: another process works in the run's folder.
            CheckpointError: the named checkpoint is not there, or is broken, or holds the model alone.
            SettingsChangedError: the settings are not those of the run that is resumed, see ``allow_changed``.
            DiskFullError: there is no room for a checkpoint. Those before it are whole.
        """
        source: Any = self.model
        with self.locked():
            checkpoint, self._settings = self._resumed(resume_from_checkpoint)
            self._read_window(checkpoint)
            self._resume.checkpoint = checkpoint
            if self.args.process_index == 0:
                self._settings.write(Path(self.training_dir))
            try:
                self._row_gradients = self._leaves_gradients() and use_row_gradients(source)
                with freed_memory_kept(), self._row_steps():
                    return super().train(resume_from_checkpoint=checkpoint, **kwargs)
            finally:
                use_plain_gradients(source)
                self._row_gradients = False
                self.stop_on_terminate.restore()

    def _leaves_gradients(self) -> bool:
        """Return True if nothing but torch's own AdamW reads the gradients of a step: on CPU, in one process, without
        a callback that comes between the backward pass and the step."""
        adamw = self.args.optim in (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)
        chosen = self.optimizer is None and self.optimizer_cls_and_kwargs is None and adamw
        between = [
            callback
            for callback in self.callback_handler.callbacks
            if type(callback).on_pre_optimizer_step is not TrainerCallback.on_pre_optimizer_step
            or type(callback).on_optimizer_step is not TrainerCallback.on_optimizer_step
        ]
        alone = self.accelerator.distributed_type == DistributedType.NO and self.args.device.type == "cpu"
        return chosen and alone and not between

    @contextmanager
    def _row_steps(self) -> Iterator[None]:
        """Inside the context, let the optimiser take sparse gradients, if embeddings have them."""
        if not self._row_gradients:
            yield
            return
        callback = RowStepsCallback()
        self.add_callback(callback)
        try:
            yield
        finally:
            self.remove_callback(callback)
            callback.remove()

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        if not self._row_gradients:
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients()
        return self.clip(list(model.parameters()))

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm for the log; where nothing was clipped, Transformers' own takes no sparse gradients."""
        if grad_norm is None and self._row_gradients:
            grad_norm = clip_gradients(model.parameters(), math.inf)
        return super()._get_grad_norm(model, grad_norm=grad_norm)

    def clip(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Clip the common norm of these gradients to ``max_grad_norm``. Return the norm before, a scalar."""
        return clip_gradients(parameters, self.args.max_grad_norm)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the run's folder inside the context, on the main process. Raises FolderInUseError."""
        return held(str(self.args.output_dir)) if self.args.process_index == 0 else nullcontext()

    def check_resume(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """Return the checkpoint that :meth:`train` would resume from, None for a new start; raise what it would raise
        for one that cannot be resumed."""
        return self._resumed(resume_from_checkpoint)[0]

    def _resumed(self, wanted: str | bool | None) -> tuple[str | None, RunSettings]:
        """Return the checkpoint to resume from, None for a new start, and the record of the run."""
        settings, training = self.run_settings(), Path(self.training_dir)
        if not wanted:
            return None, RunSettings(settings)
        needs_best = bool(self.args.load_best_model_at_end)
        folder = training if wanted is True else checked(Path(str(wanted)), needs_best).parent
        record = RunSettings.read(folder)
        lineage = record.lineage if record else {}
        checkpoint = resumable(training, lineage, needs_best) if wanted is True else Path(str(wanted))
        if checkpoint is not None:
            check_optimizer(checkpoint)
        if record is None:
            if checkpoint is not None:
                logger.warning("%s: the run recorded no settings, so they were not compared", folder)
            return None if checkpoint is None else str(checkpoint), RunSettings(settings)
        step = None if wanted is True or checkpoint is None else as_checkpoint(checkpoint).step
        continued = record.continued(settings, self.args.allow_changed or [], folder / SETTINGS, step)
        return (None, RunSettings(settings)) if checkpoint is None else (str(checkpoint), continued)

    def check_evaluated(self, eval_dataset: Any) -> None:
        """Raise ValueError for another data set than the trainer's own, which alone :meth:`evaluate` scores."""
        if eval_dataset is not None:
            raise ValueError(
                f"eval_dataset must be None: evaluate scores the trainer's dev set, got {type(eval_dataset).__name__}"
            )

    def run_settings(self) -> dict[str, Any]:
        """Return the settings that decide the run's result, as flat plain values."""
        return argument_settings(self.args)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Fetch batches as Transformers does, but no further step for a finished run that is resumed."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the scheduler as Transformers does; one that follows a score learns which scores are better. Tell a
        warm-up that is longer than the training."""
        self._tell_long_warmup(num_training_steps)
        given: Any = self.args.lr_scheduler_kwargs
        if follows_score(self.args):
            mode = "max" if self.args.greater_is_better else "min"
            self.args.lr_scheduler_kwargs = {"mode": mode, **(given or {})}
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        finally:
            self.args.lr_scheduler_kwargs = given

    def _tell_long_warmup(self, steps: int) -> None:
        warmup = self.args.get_warmup_steps(steps)
        reads = not follows_score(self.args) and self.args.lr_scheduler_type != SchedulerType.CONSTANT
        if warmup > steps and reads and self.args.process_index == 0:
            logger.warning(
                "warmup_steps %d is longer than %s of %d steps: the learning rate ends at about %.2g and never "
                "reaches %g",
                *(warmup, self.stage, steps, self.args.learning_rate * (steps - 1) / warmup, self.args.learning_rate),
            )

    def get_train_dataloader(self) -> Any:
        """Return Transformers' loader, whose workers end with this process."""
        prepared: Any = super().get_train_dataloader()
        loader = getattr(prepared, "base_dataloader", prepared)  # accelerate wraps it
        loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)
        return prepared

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is not RandomSampler:
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
        values = {"loss": outputs.loss.detach(), **terms, **metrics}
        self._names.append([*values])
        self._window.append(torch.stack([value.float() for value in values.values()]))
        self._origins.append((self.state.global_step + 1, index))
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._window:
            own = window_means(self._checked_window(), [step for step, _ in self._origins])
            means_T = torch.tensor(list(own.values()), dtype=torch.float32, device=self.args.device)
            means_T = self.accelerator.reduce(means_T, reduction="mean")
            logs |= dict(zip(own, means_T.tolist(), strict=True))
            self._window, self._names, self._origins = [], [], []
        super().log(logs, start_time)

    def _checked_window(self) -> list[dict[str, float]]:
        """Return the values of each micro-batch since the last log entry, by name.

        Raises:
            NonFiniteLossError: a loss term is not finite.
        """
        values = iter(torch.cat(self._window).tolist())
        rows = [{name: next(values) for name in names} for names in self._names]
        terms = [(number, name) for number, row in enumerate(rows) for name in row if name.startswith("loss/")]
        broken = [(number, name) for number, name in terms if not math.isfinite(rows[number][name])]
        anywhere = bool(broken)
        if world_size() > 1:
            told = torch.tensor(float(anywhere), device=self.args.device)
            dist.all_reduce(told)
            anywhere = bool(told)
        if not anywhere:
            return rows
        if not broken:
            raise NonFiniteLossError("a loss term is not finite in another process")
        number, term = broken[0]
        step, index = self._origins[number]
        name, value = term.removeprefix("loss/"), rows[number][term]
        samples = index.tolist() if index is not None else "unknown"
        raise NonFiniteLossError(
            f"step {step}: loss term {name!r} is {value}; rows of the corpus in that batch, from 0: {samples}. "
            f"All checkpoints in {self.training_dir} are older."
        )

    def _write_window(self, checkpoint: Path) -> None:
        """Write the micro-batches since the last log entry, if there are any."""
        path = checkpoint / OPEN_WINDOW.format(self.args.process_index)
        path.unlink(missing_ok=True)  # of a broken checkpoint of this step
        if self._window:
            torch.save({"names": self._names, "rows": self._window, "origins": self._origins}, path)

    def _read_window(self, checkpoint: str | None) -> None:
        """Read what :meth:`_write_window` wrote; without such a file the next log entry starts at the next step."""
        self._window, self._names, self._origins = [], [], []
        path = Path(checkpoint or "") / OPEN_WINDOW.format(self.args.process_index)
        if checkpoint is not None and path.is_file():
            written = torch.load(path, map_location=self.args.device)
            self._window, self._origins, names = written["rows"], written["origins"], written["names"]
            of_all = bool(names) and isinstance(names[0], str)  # as earlier versions wrote them
            self._names = [names] * len(self._window) if of_all else names

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Compare as Transformers does; a new best step gets a checkpoint even if none is due. Return True also for
        an interrupted run, which Transformers asks with ``save_strategy`` best whether to write one."""
        best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= best and self.args.load_best_model_at_end
        return best or self.stop_on_terminate.interrupted

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self._window:
            self._checked_window()
        finite = torch.stack([all_finite(p.detach()) for p in model.parameters()]).all()
        if not finite:
            raise NonFiniteLossError(
                f"step {self.state.global_step}: weights are not finite, so no checkpoint was written"
            )
        path = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        keep, self.args.save_total_limit = self.args.save_total_limit, None  # older ones go when this one is whole
        try:
            with full_disk_told(path):
                if self.args.should_save:
                    check_held(str(self.args.output_dir))
                    (path / MANIFEST).unlink(missing_ok=True)
                super()._save_checkpoint(model, trial)
                self._write_window(path)
                self.accelerator.wait_for_everyone()  # each process writes its random state
                if self.args.should_save:
                    finish_checkpoint(path, self._settings.run, keep, self.state.best_model_checkpoint)
        except DiskFullError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise DiskFullError(
                f"{error}; earlier checkpoints are whole: make room and continue with --resume_from_checkpoint True"
            ) from error
        finally:
            self.args.save_total_limit = keep

    def _save(self, *args: Any, **kwargs: Any) -> None:
        with quiet_weights():
            super()._save(*args, **kwargs)

    def save_training(self) -> Path:
        """Write the model and the trainer's state to ``training/``, whole or not at all."""
        training = Path(self.training_dir)
        owned = (*MODEL_FILES, *_STATE_FILES)
        with whole_files(training, owned) if self.args.should_save else nullcontext(training) as draft:
            self.save_model(str(draft), _internal_call=True)  # without this flag Transformers also publishes the model
            if self.args.should_save:
                self.state.save_to_json(str(draft / STATE))
        return training


def window_means(rows: Sequence[Mapping[str, float]], steps: Sequence[int]) -> dict[str, float]:
    """Return the mean over steps of each value, by name. A step's value is the mean over its micro-batches. Those that
    lack a value do not count for it.

    Arguments:
        rows: the values of each micro-batch.
        steps: the step of each micro-batch.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for row, step in zip(rows, steps, strict=True):
        for name, value in row.items():
            found.setdefault(name, defaultdict(list))[step].append(value)
    return {name: mean(mean(values) for values in of_steps.values()) for name, of_steps in found.items()}


def mean(values: Iterable[float]) -> float:
    """Return the mean, nan or infinity if a value is."""
    given = list(values)
    return sum(given) / len(given)


def _start_worker(initialise: Callable[[int], None] | None, number: int) -> None:
    end_with_parent()
    if initialise is not None:
        initialise(number)


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
