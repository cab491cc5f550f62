"""Transformers' Trainer with hooks: every loss term in the log, selection on a dev set, per-group clipping.

Shape suffixes: S micro-batches of a logging window, T terms and diagnostics.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import TrainOutput

from csekit.evaluation.encoding import encode, evaluating
from csekit.evaluation.geometry import label_free_criteria
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts import evaluate_pairs
from csekit.modeling import CSEModel
from csekit.modeling.configuration_cse import dropout_fields
from csekit.modeling.distributed import world_size
from csekit.modeling.export import check_exportable
from csekit.modeling.tokenization import pad, tokenize

from .arguments import CSETrainingArguments
from .callbacks import Report, StopOnTerminate
from .collator import CSECollator
from .corpora import Corpus
from .corpus_datasets import SetEpochCallback, StreamingSentenceDataset

logger = logging.getLogger(__name__)

TRAINING_FOLDER = "training"
LABEL_FREE = {"alignment": False, "uniformity": False, "effective_rank": True}  # whether greater is better


class NonFiniteLossError(RuntimeError):
    """A loss term became NaN or infinite. The last checkpoint is from before."""


class CSETrainer(Trainer):
    """Trainer for :class:`CSEModel` and its methods.

    Arguments:
        model: from ``from_backbone`` or a training checkpoint.
        args: :class:`CSETrainingArguments`.
        corpus: what ``load_corpus`` returned.
        tokenizer: the backbone's.
        dev: scored pairs for selection; ``dev.name`` names the metric (``stsb`` gives ``stsb_spearman``). None: the
            last checkpoint is kept, or the best by a label-free criterion where ``metric_for_best_model`` names one.
        kwargs: further arguments of Transformers' Trainer.

    Every log entry holds ``loss/<term>`` and ``metrics/<diagnostic>``, averaged over its steps and over processes.

    Raises:
        ValueError: a combination that cannot work, before any step: a single column without dropout, a batch of one
            row, several GPUs in one process, an unknown ``metric_for_best_model``.
    """

    args: CSETrainingArguments
    model: CSEModel

    def __init__(
        self,
        model: CSEModel,
        args: CSETrainingArguments,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        dev: Pairs | None = None,
        **kwargs: Any,
    ) -> None:
        check_setting(model, args, corpus)
        self.corpus, self.dev, self.tokenizer = corpus, dev, tokenizer
        self._select(args, dev)
        collator = CSECollator(
            tokenizer, args.max_seq_length, model.batch_specs, args.seed, model.config.prompt_template
        )
        model.load_frozen()
        self._window: list[Tensor] = []
        self._origins: list[tuple[int, Tensor | None]] = []  # step and rows of the corpus
        self._names: list[str] = []
        self.stop_on_terminate = StopOnTerminate()
        sample = [row[0] for row in corpus.sample(args.label_free_samples)] if args.label_free_samples else []
        self._sample = sample
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=corpus.dataset,
            eval_dataset=dev or sample or ["nothing to evaluate"],
            processing_class=tokenizer,
            callbacks=[
                SetEpochCallback(corpus.dataset),
                Report(),
                self.stop_on_terminate,
                *kwargs.pop("callbacks", []),
            ],
            **kwargs,
        )
        if isinstance(corpus.dataset, StreamingSentenceDataset):
            corpus.dataset.repeat = True  # the Trainer takes a stream for one epoch of max_steps
            corpus.dataset.block_size = args.train_batch_size * args.world_size

    def _select(self, args: CSETrainingArguments, dev: Pairs | None) -> None:
        """Settle by which metric the best checkpoint is chosen."""
        available = {f"{dev.name}_spearman": True} if dev is not None else {}
        available |= LABEL_FREE if args.label_free_samples else {}
        if args.select_last and dev is not None:
            args.metric_for_best_model = f"{dev.name}_spearman"
        elif args.select_last:
            args.metric_for_best_model, args.load_best_model_at_end = None, False
            return
        name = str(args.metric_for_best_model).removeprefix("eval_")
        if name not in available:
            raise ValueError(f"metric_for_best_model must be one of {sorted(available)}, got {name!r}")
        args.metric_for_best_model, args.greater_is_better = name, available[name]

    @property
    def training_dir(self) -> str:
        """Where checkpoints and trainer state go: ``output_dir/training``."""
        return os.path.join(str(self.args.output_dir), TRAINING_FOLDER)

    def _get_output_dir(self, trial: Any) -> str:
        return self.training_dir if trial is None else super()._get_output_dir(trial)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:  # type: ignore[override]
        """As in Transformers; ``True`` resumes from the last whole checkpoint, or starts afresh where there is none.

        A resumed run goes on bitwise as if never stopped, on the same kind of machine, with any number of workers
        (but for ``dataloader_persistent_workers``, whose start draws from the global random state)."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.training_dir)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.stop_on_terminate.restore()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """As in Transformers, but a finished run that is resumed takes no further step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    # Optimiser: one group per rate, one clipping norm per clip group

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            source: Any = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(source))
            with_decay = {id(p) for name, p in source.named_parameters() if name in decayed}
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, source)
            groups = []
            for group in self.model.parameter_groups():
                for decay in (True, False):
                    chosen = [p for p in group["params"] if (id(p) in with_decay) is decay]
                    rate = self.args.learning_rate * group.get("lr_scale", 1.0)
                    weight_decay = self.args.weight_decay if decay else 0.0
                    if chosen:
                        groups.append({"params": chosen, "lr": rate, "weight_decay": weight_decay})
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        groups: dict[str, list[nn.Parameter]] = {}
        for group in self.model.parameter_groups():
            groups.setdefault(group.get("clip_group", "encoder"), []).extend(group["params"])
        if len(groups) == 1:
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients()
        norms = {name: nn.utils.clip_grad_norm_(group, self.args.max_grad_norm) for name, group in groups.items()}
        return norms["encoder"]

    # The log: one detached row a step, read when it is written

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
        """The micro-batches since the last log entry, (S, T); stops the run where a loss term is not finite."""
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
            f"Checkpoints in {self.training_dir} are from before."
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self._window:
            self._checked_window()
        finite = torch.stack([p.detach().isfinite().all() for p in self.model.parameters()]).all()
        if not finite:
            raise NonFiniteLossError(
                f"step {self.state.global_step}: weights are not finite; no checkpoint is written"
            )
        super()._save_checkpoint(model, trial)

    # Selection

    def evaluate(  # type: ignore[override]
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the dev set and the label-free criteria. The global random state is not touched.

        Returns:
            ``{prefix}_{dev.name}_spearman`` (×100), ``{prefix}_alignment``, ``…_uniformity``, ``…_effective_rank``;
            the same on every process.
        """
        if self._window and self.is_in_train:
            self._checked_window()
        scores: list[dict[str, float] | None] = [self.dev_scores() if self.args.process_index == 0 else None]
        if world_size() > 1:
            dist.broadcast_object_list(scores, src=0)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in (scores[0] or {}).items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def dev_scores(self) -> dict[str, float]:
        """The scores of :meth:`evaluate` without prefix, computed in this process."""
        scores: dict[str, float] = {}
        if self.dev is not None:
            scores[f"{self.dev.name}_spearman"] = evaluate_pairs(self.embed, self.dev)["spearman"]
        if self._sample:
            first, second = self._dropout_views()
            criteria = label_free_criteria(self.embed(self._sample), first, second)
            scores |= {name: criteria[name] for name in LABEL_FREE}
        return scores

    def embed(self, texts: list[str]) -> Any:
        """Embeddings of the model as it is, (N, H) numpy; sentences up to the encoder's own limit. Computed in the
        weights' own precision whatever that of training is: the scores are those of the exported encoder."""
        with without_autocast(self.model):
            return encode(self.model, self.tokenizer, texts, prompt_template=self.model.config.prompt_template)

    def _dropout_views(self) -> tuple[Any, Any]:
        """Two dropout views of the sample's embeddings, by a fixed seed, (n, H) numpy each."""
        rows = tokenize(self.tokenizer, self._sample, self.args.max_seq_length, self.model.config.prompt_template)
        batch = {name: value.to(self.args.device) for name, value in pad(self.tokenizer, rows.input_ids).items()}
        with evaluating(self.model), isolated_rng(self.args.seed):
            self.model.train()
            views = [self.model.pooled(batch["input_ids"], batch["attention_mask"])[0] for _ in range(2)]
        return views[0].float().cpu().numpy(), views[1].float().cpu().numpy()

    # The end of a run

    def save_run(self) -> Path:
        """Write the model as it is to ``training/`` and, where its pooling has a native form, export it to the root.

        Returns:
            the folder to load from.
        """
        training = Path(self.training_dir)
        self.save_model(str(training))
        if not self.args.should_save:
            return training
        self.state.save_to_json(str(training / "trainer_state.json"))
        try:
            return self.model.export(str(self.args.output_dir), self.tokenizer)
        except ValueError as error:
            logger.warning("%s", error)
            return training


def last_checkpoint(folder: str) -> str | None:
    """The last whole checkpoint. Its state is written last, so one that a kill cut short has none."""
    whole = [file.parent for file in Path(folder).glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda checkpoint: int(checkpoint.name.split("-")[1]))) if whole else None


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """The model's own ``forward`` inside; in mixed precision accelerate puts autocast around it."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Seeded randomness inside, the global random state as it was outside."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(seed)
        yield


def check_setting(model: CSEModel, args: CSETrainingArguments, corpus: Corpus) -> None:
    """Refuse what cannot work before anything long starts. Raises ValueError."""
    dropout = dropout_fields(model.config.encoder_config)
    further = max((spec.further_columns for spec in model.batch_specs.values()), default=0)
    if len(corpus.columns) <= further:
        raise ValueError(
            f"the objectives want a further column behind the sentence's, {corpus.name} has only "
            f"{', '.join(corpus.columns)}"
        )
    if len(corpus.columns) - further == 1 and not any(dropout.values()):
        raise ValueError(
            f"the two views of a sentence differ by dropout alone, and the encoder's is 0 ({', '.join(dropout)}): "
            "set dropout, e.g. --dropout 0.1, or give pairs"
        )
    rows = args.per_device_train_batch_size * args.world_size
    if rows < 2:
        raise ValueError(
            f"per_device_train_batch_size must be at least 2, the other rows are the negatives, got {rows}"
        )
    try:
        check_exportable(model.config.pooling, model.config.prompt_template)
    except ValueError as error:
        logger.warning("%s (it will be in %s/%s)", error, args.output_dir, TRAINING_FOLDER)
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs in one process would contrast within each GPU only: start with "
            f"'torchrun --nproc_per_node {args.n_gpu}' or 'accelerate launch', or set CUDA_VISIBLE_DEVICES to one"
        )
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        logger.warning(
            "a launcher set MASTER_ADDR but this is one process ('accelerate launch --cpu' starts only one): "
            "use 'torchrun --nproc_per_node N' for several processes on CPU"
        )
