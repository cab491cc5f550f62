"""The trainer of sentence encoders: optimiser groups, selection on a dev set, export."""

import copy
import itertools
import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import DynamoBackend
from torch import nn
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, TrainOutput

from csekit.encoding.chunks import KeptTokens
from csekit.encoding.encoder import TextEncoder, evaluating
from csekit.encoding.provenance import environment
from csekit.evaluation.geometry import label_free_criteria
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import write_results
from csekit.evaluation.sts import EmbeddedPairs, score_pairs
from csekit.evaluation.transfer import evaluate_transfer
from csekit.evaluation.transfer_data import TransferTask
from csekit.modeling import CSEModel
from csekit.modeling.backbone import dropout_fields
from csekit.modeling.distributed import world_size
from csekit.modeling.drafts import full_disk_told
from csekit.modeling.export import check_exportable, length_limit
from csekit.modeling.fast_compile import begin_step, compile_layers, uncompiled
from csekit.modeling.fast_memory import give_back
from csekit.modeling.objectives import further_columns
from csekit.modeling.tokenization import pad, tokenize, training_length
from csekit.trainers.arguments import EVAL_STEPS, EVALUATIONS, CSETrainingArguments
from csekit.trainers.base_trainer import TRAINING_FOLDER, warn_of_launcher, without_autocast
from csekit.trainers.batches.collator import CSECollator, check_length
from csekit.trainers.callbacks import GeometryCallback
from csekit.trainers.data.augmentation import check_augmentation, check_further_positives, make_augmentation
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.datasets import StreamingSentenceDataset
from csekit.trainers.data.teachers import TEACHERS_FOLDER, Teachers, references_of
from csekit.trainers.export_check import ExportMismatchError, check_embeddings, check_score, same_score
from csekit.trainers.hub.card import write_model_card
from csekit.trainers.hub.hub_trainer import HubTrainer
from csekit.trainers.memory import check_memory
from csekit.trainers.objective_warmup import (
    OBJECTIVES_FOLDER,
    WEIGHTS,
    check_own_weights,
    check_warmup,
    load_objectives,
    objectives_alone,
    own_parameters,
    save_objectives,
)
from csekit.trainers.run_record import history, kept_scores, trainer_results
from csekit.trainers.run_settings import config_settings, digest, plain, vocabulary_digest

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 64  # sentences of the sample that go through the encoder at once: no more memory than a training step
GAP_STEPS = 5  # a step in so many measures the gaps, each of which costs a forward pass
CHECKED_TEXTS = 32  # training sentences that are embedded to check an export without a dev set
SECOND_VIEW = ("symmetric", "same_view_negatives", "hard_negative_weight")  # the contrast with this view reads them
CONTRAST = (*SECOND_VIEW, "angular_margin", "mask_identical", "contrast_dims")
LABEL_FREE = {"alignment": False, "uniformity": False, "effective_rank": True}  # True: greater is better


class CSETrainer(HubTrainer):
    """Trainer for :class:`CSEModel` and its methods.

    Arguments:
        model: from ``from_backbone`` or a training checkpoint.
        args: :class:`CSETrainingArguments`.
        corpus: the texts, from ``load_corpus``.
        tokenizer: the backbone's.
        dev: scored pairs for selection; ``dev.name`` names the metric (``stsb`` gives ``stsb_spearman``). None: keep
            the last checkpoint, or the best by the label-free criterion that ``metric_for_best_model`` names.
        transfer: tasks whose dev scores are computed at every evaluation and select the checkpoint (DiffCSE, Table
            13): by ``transfer_accuracy``, their mean, or the ``<task>_accuracy`` that ``metric_for_best_model`` names.
            The test sides are not encoded.
        kwargs: further arguments of Transformers' Trainer.

    Every log entry holds ``loss/<term>`` and ``metrics/<diagnostic>``, averaged over its steps and over processes.
    ``embedded_dev`` holds the embeddings of the last dev score, on the process that computed it. After
    :meth:`save_models`, ``saved_scores`` holds the dev score of the encoder on disk in float32, if it was computed.

    Raises:
        ValueError: a combination that cannot work: a single column without dropout, an augmentation of pairs, a batch
            of one row, several GPUs in one process, an unknown ``metric_for_best_model``, ``cache_chunk_size`` with an
            objective that is not ``cacheable``, ``torch_compile`` with an encoder without a list of layers,
            ``compile_bucket`` with an encoder that computes padded batches, a text without tokens.
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
        transfer: Sequence[TransferTask] = (),
        **kwargs: Any,
    ) -> None:
        args = copy.copy(args)  # those of the caller stay as they are
        check_setting(model, args, corpus)
        spread_evaluations(args, corpus)
        model.cache_gradients(args.cache_chunk_size)
        folder, columns = Path(str(args.output_dir)) / TEACHERS_FOLDER, taught_columns(model, corpus)
        margins = any(objective.teaches_margins for objective in model.auxiliaries())
        self.teachers = Teachers(corpus, args.teachers or [], folder, columns, margins)
        check_teachers(model, self.teachers)
        self.corpus, self.dev, self.transfer, self.tokenizer = corpus, dev, list(transfer), tokenizer
        self.embedded_dev: EmbeddedPairs | None = None
        self._dev_tokens: KeptTokens = {}
        self.saved_scores: dict[str, float] = {}
        geometry = [GeometryCallback(self, dev, args.geometry_threshold)] if args.geometry else []
        self._select(args, dev)
        stopping = early_stopping(args)
        self.collator = collator = CSECollator(
            tokenizer,
            args.max_seq_length,
            model.batch_specs,
            args.seed,
            model.config.prompt_template,
            augmentation=make_augmentation(args.augmentation, args.augmentation_rate, args.augmentation_span),
            mask_contrastive_input=args.mask_contrastive_input,
            second_template=model.config.second_prompt_template,
            place=corpus.source.place,
        )
        for template in collator.templates:
            corpus.check_tokens(tokenizer, template)
        self.teachers.check_tokens()
        limit = length_limit(model.backbone, tokenizer)
        check_length(collator.max_length, args.max_seq_length, limit, "the encoder's limit")
        check_memory(model, args, corpus, tokenizer)
        if args.objective_warmup_steps:
            check_warmup(model)
        model.load_frozen()
        if args.objectives_from is not None:
            load_objectives(model, Path(args.objectives_from))
        sample = [row[0] for row in corpus.sample(args.label_free_samples)] if args.label_free_samples else []
        self._sample = sample
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):  # else training would do so, with a warning
            if getattr(tokenizer, name) is not None:
                setattr(model.config, name, getattr(tokenizer, name))
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=corpus.dataset,
            eval_dataset=dev or sample or ["nothing to evaluate"],
            processing_class=tokenizer,
            callbacks=[*kwargs.pop("callbacks", ()), *geometry, *stopping],
            **kwargs,
        )
        if args.torch_compile:
            self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO  # it would compile the whole model
            backend, mode = str(args.torch_compile_backend), args.torch_compile_mode
            compile_layers(self.model, backend, mode, args.compile_bucket)
        if isinstance(corpus.dataset, StreamingSentenceDataset):
            corpus.dataset.repeat = True  # the Trainer takes a stream for one epoch of max_steps
            corpus.dataset.block_size = args.train_batch_size * args.world_size

    def _select(self, args: CSETrainingArguments, dev: Pairs | None) -> None:
        """Choose the metric of the best checkpoint. Raises ValueError for an unknown one."""
        available = {f"{dev.name}_spearman": True} if dev is not None else {}
        available |= LABEL_FREE if args.label_free_samples else {}
        if self.transfer:
            available |= {f"{name}_accuracy": True for name in ("transfer", *(task.name for task in self.transfer))}
        if args.select_last and self.transfer:
            args.metric_for_best_model = "transfer_accuracy"
        elif args.select_last and dev is not None:
            args.metric_for_best_model = f"{dev.name}_spearman"
        elif args.select_last:
            args.metric_for_best_model, args.load_best_model_at_end = None, False
            return
        name = str(args.metric_for_best_model).removeprefix("eval_")
        if not available:
            raise ValueError(
                f"metric_for_best_model must be left out, got {name!r}: there is no dev set (--data_dir, --dev_file), "
                "and label_free_samples is 0"
            )
        if name not in available:
            raise ValueError(f"metric_for_best_model must be one of {sorted(available)}, got {name!r}")
        args.metric_for_best_model, args.greater_is_better = name, available[name]

    # The objectives' warm-up

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:  # type: ignore[override]
        with self.locked():
            with self.args.main_process_first(desc="vectors of teachers"):
                self.collator.teachers = self.teachers.vectors(progress=self.args.process_index == 0)
            for objective in self.model.auxiliaries():
                if count := objective.references:
                    found = [references_of(vectors, count) for vectors in self.collator.teachers]
                    objective.set_references([torch.from_numpy(vectors) for vectors in found])
            if self.args.objective_warmup_steps and self.check_resume(resume_from_checkpoint) is None:
                self.warm_up_objectives(resume=bool(resume_from_checkpoint))
                if self.stop_on_terminate.interrupted:
                    return TrainOutput(0, 0.0, {})
            try:
                return super().train(resume_from_checkpoint, **kwargs)
            finally:
                self.model.measure_gaps(True)

    def warm_up_objectives(self, resume: bool = False) -> None:
        """Train the objectives' own weights alone for ``objective_warmup_steps``, and save them in
        ``output_dir/objectives``, with the log of the warm-up.

        The encoder stays as it is. Training itself then draws the same batches and the same dropout as without
        warm-up.

        Arguments:
            resume: take the weights of a finished warm-up in that folder, or continue an interrupted one.

        Raises:
            ValueError: no objective has weights of its own.
        """
        folder = Path(str(self.args.output_dir)) / OBJECTIVES_FOLDER
        if resume and (folder / WEIGHTS).is_file():
            load_objectives(self.model, folder)
            return
        args = copy.copy(self.args)
        args.output_dir, args.max_steps, args.objective_warmup_steps = str(folder), args.objective_warmup_steps, 0
        if args.objective_learning_rate is not None:
            args.learning_rate = args.objective_learning_rate
        args.eval_strategy, args.load_best_model_at_end = IntervalStrategy.NO, False
        args.metric_for_best_model, args.select_last = None, True
        args.label_free_samples, args.geometry, args.push_to_hub, args.torch_compile = 0, False, False, False
        args.early_stopping_patience = 0
        args.report_to = []
        with objectives_alone(self.model):
            trainer = CSETrainer(self.model, args, self.corpus, self.tokenizer)
            trainer.stage = "the objectives' warm-up (objective_warmup_steps)"
            trainer.teachers = self.teachers  # their vectors are computed once
            trainer.train(resume_from_checkpoint=resume)
            trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
        self.stop_on_terminate.interrupted = trainer.stop_on_terminate.interrupted
        if not self.stop_on_terminate.interrupted and self.is_world_process_zero():
            record = {"steps": args.max_steps, "learning_rate": args.learning_rate, "log": history(trainer)[1]}
            with full_disk_told(folder):
                save_objectives(self.model.objectives.state_dict(), folder, record)
            shutil.rmtree(folder / TRAINING_FOLDER, ignore_errors=True)

    # Optimiser: one group per rate, one clipping norm per clip group

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            source: Any = self.model if model is None else model
            decayed = set(self.get_decay_parameter_names(source))
            with_decay = {id(p) for name, p in source.named_parameters() if name in decayed}
            kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, source)
            groups = []
            own, rate, own_rate = (
                own_parameters(self.model),
                options.get("lr", self.args.learning_rate),
                self.args.objective_learning_rate,
            )
            split = own if own_rate is not None else set()
            for group in self.model.parameter_groups():
                for decay, apart in itertools.product((True, False), (False, True)):
                    chosen = [p for p in group["params"] if (id(p) in with_decay, id(p) in split) == (decay, apart)]
                    lr = (own_rate if apart and own_rate is not None else rate) * group.get("lr_scale", 1.0)
                    weight_decay = self.args.weight_decay if decay else 0.0
                    if chosen:
                        groups.append({"params": chosen, "lr": lr, "weight_decay": weight_decay})
            self.optimizer = kind(groups, **options)
        return self.optimizer

    @cached_property
    def clip_groups(self) -> dict[str, list[nn.Parameter]]:
        """The trainable parameters by the name of their clipping norm."""
        groups: dict[str, list[nn.Parameter]] = {}
        for group in self.model.parameter_groups():
            groups.setdefault(group.get("clip_group", "encoder"), []).extend(group["params"])
        return groups

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        if len(self.clip_groups) == 1:
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients()
        return {name: self.clip(group) for name, group in self.clip_groups.items()}["encoder"]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.args.torch_compile:
            begin_step(self.args.torch_compile_mode)
        self.model.measure_gaps(self.gaps_are_due())
        return super().training_step(*args, **kwargs)

    def gaps_are_due(self) -> bool:
        """Return True if the micro-batch to come measures the diagnostics ``<name>_gap``: the first one behind an
        entry of the log, so that every entry has them, and the first one of every ``GAP_STEPS``-th step behind it."""
        step = self.state.global_step + 1
        for (other, _), names in zip(reversed(self._origins), reversed(self._names), strict=True):
            if other <= step - GAP_STEPS:
                break
            if any(name.endswith("_gap") for name in names):
                return False
        return True

    # Selection

    def evaluate(  # type: ignore[override]
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the dev set and the label-free criteria. The global random state does not change.

        Returns:
            ``{prefix}_{dev.name}_spearman`` (×100), ``{prefix}_transfer_accuracy`` (×100), ``{prefix}_alignment``,
            ``…_uniformity``, ``…_effective_rank``; the same on every process.
        """
        self.check_evaluated(eval_dataset)
        if self._window and self.is_in_train:
            self._checked_window()
        scores: list[dict[str, float] | None] = [self.dev_scores() if self.args.process_index == 0 else None]
        if world_size() > 1:
            dist.broadcast_object_list(scores, src=0)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in (scores[0] or {}).items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def dev_scores(self, precision: str | None = None, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """Compute the scores of :meth:`evaluate` in this process, by name without prefix.

        Arguments:
            precision: of the dev set's embeddings, ``fp32`` or ``bf16``; None: that of :meth:`evaluate`, bf16 with
                ``bf16_full_eval``.
            known: the dev set's score, if it need not be computed: :attr:`saved_scores`.
        """
        scores = dict(known or {})
        if self.dev is not None and not known:
            given = precision or ("bf16" if self.args.bf16_full_eval else "fp32")
            self.embedded_dev = EmbeddedPairs(lambda texts: self._embed(texts, given, self._dev_tokens), [self.dev])
            scores[f"{self.dev.name}_spearman"] = score_pairs(self.embedded_dev, self.dev)["spearman"]
        if self.transfer:
            tasks = evaluate_transfer(self.embed, self.transfer, mode="dev").tasks
            scores["transfer_accuracy"] = sum(task.accuracy for task in tasks.values()) / len(tasks)
            scores |= {f"{name}_accuracy": task.accuracy for name, task in tasks.items()}
        if self._sample:
            first, second = self._dropout_views()
            criteria = label_free_criteria(self.embed(self._sample), first, second)
            scores |= {name: criteria[name] for name in LABEL_FREE}
        give_back()
        return scores

    def embed(self, texts: list[str]) -> Any:
        """Embed texts with the current weights: (N, H) numpy. Texts are truncated at the encoder's limit.

        The precision is that of the weights, whatever that of training: the exported encoder gives the same scores.
        """
        return self._embed(texts, "fp32")

    def _embed(self, texts: list[str], precision: str, kept: KeptTokens | None = None) -> Any:
        template = self.model.config.prompt_template
        encoder = TextEncoder(self.model, self.tokenizer, prompt_template=template, precision=precision)
        encoder.kept_tokens = kept
        with without_autocast(self.model), embeddings_alone(self.model), self._uncompiled():
            return encoder.encode(texts)

    def _uncompiled(self) -> AbstractContextManager[None]:
        return uncompiled(self.model) if self.args.torch_compile else nullcontext()

    def _dropout_views(self) -> tuple[Any, Any]:
        """Return two dropout views of the sample's embeddings, drawn with a fixed seed, (n, H) numpy each."""
        template = self.model.config.prompt_template
        length = training_length(self.tokenizer, self.args.max_seq_length, template)
        rows = tokenize(self.tokenizer, self._sample, length, template)
        ids = rows.input_ids
        parts = [pad(self.tokenizer, ids[first : first + SAMPLE_ROWS]) for first in range(0, len(ids), SAMPLE_ROWS)]
        batches = [{name: value.to(self.args.device) for name, value in part.items()} for part in parts]
        with evaluating(self.model), isolated_rng(self.args.seed), self._uncompiled():
            self.model.train()
            first, second = (
                torch.cat([self.model.pooled(each["input_ids"], each["attention_mask"]) for each in batches])
                for _ in range(2)
            )
            if self.model.config.projector_at_inference:
                self.model.eval()  # batch statistics stay as they are
                first, second = self.model.projector(first), self.model.projector(second)
        return first.float().cpu().numpy(), second.float().cpu().numpy()

    # The end of a run

    def save_run(self) -> Path:
        """Write the run's folder as the training scripts do: the model, ``results.json`` and the model card.

        The model goes to ``training/`` and, if its pooling has a plain form, is exported to the root. The results hold
        the settings, the log and the dev scores; ``csekit card --scores`` adds other scores to the card.

        Returns:
            the folder to load from.

        Raises:
            ExportMismatchError: the saved encoder is not the one that training selected.
            FolderInUseError: another process works in the run's folder.
            DiskFullError: there is no room for it; an earlier export stays.
        """
        with self.locked():
            folder = self.save_models()
            if self.is_world_process_zero():
                self.write_record()
            return folder

    def write_record(self) -> None:
        results = self.results() | {"environment": environment()}
        folder = Path(str(self.args.output_dir))
        write_results(folder / "results.json", results, overwrite=True)
        write_model_card(folder, results, base_model=self.model.backbone.name_or_path or "")

    def save_models(self) -> Path:
        """Write the model, load what was written and compare its dev score with the record; without a dev set compare
        some embeddings. Return and errors are those of :meth:`save_run`."""
        with self.locked():
            training = folder = self.save_training()
            if not self.args.should_save:
                return training
            try:
                folder = self.model.export(str(self.args.output_dir), self.tokenizer)
            except ValueError as error:
                logger.warning("%s", error)
            self._check_saved(folder)
            return folder

    def _check_saved(self, folder: Path) -> None:
        """Load the saved encoder and compare it with the record of the training, or with the weights in memory."""
        if self.dev is None:
            texts = [row[0] for row in self.corpus.sample(CHECKED_TEXTS)]
            check_embeddings(folder, texts, self.embed(texts), self.args.device)
            return
        name = f"{self.dev.name}_spearman"
        recorded = kept_scores(self).get(name)
        if recorded is None:  # training did not score the step that is kept
            recorded = self.dev_scores()[name]
        exact = not self.args.bf16_full_eval and all(p.dtype == torch.float32 for p in self.model.parameters())
        try:
            found = check_score(folder, self.dev, recorded, self.args.device, "fp32" if exact else "bf16")
        except ExportMismatchError:
            # bf16 ranks nearly equal cosines by its rounding. The saved encoder is sound if the weights in memory
            # still have the recorded score, and it has their embeddings in float32
            if exact or not same_score(self.dev_scores()[name], recorded, len(self.dev), "bf16"):
                raise
            texts = [*self.dev.sentences1, *self.dev.sentences2]
            check_embeddings(folder, texts, self.embed(texts), self.args.device)
        self.saved_scores = {name: found} if exact else {}

    def run_settings(self) -> dict[str, Any]:
        """Return the settings that decide the run's result: arguments, model, corpus, dev set, tokenizer."""
        corpus, dev = self.corpus.describe(), self.dev
        if corpus["checksum"] or corpus["fingerprint"]:
            del corpus["name"]  # the file may be renamed
        if isinstance(self.corpus.dataset, StreamingSentenceDataset):
            corpus["max_samples"] = self.corpus.dataset.max_samples
        pairs = () if dev is None else (*dev.sentences1, *dev.sentences2, *map(str, dev.scores))
        own = {
            "model_name_or_path": Path(self.model.backbone.name_or_path or "").name,
            "tokenizer": vocabulary_digest(self.tokenizer),
            "corpus": corpus,
            "dev": {"name": dev and dev.name, "checksum": digest(pairs)},
            "select_on": [task.name for task in self.transfer],
        }
        if self.teachers.checksums:
            own["teachers' vectors"] = self.teachers.checksums
        return {**super().run_settings(), **config_settings(self.model.config), **plain(own)}

    def results(self) -> dict[str, Any]:
        """Return the results of the run, for its card."""
        return trainer_results(self)


def steps_of(rows: int, args: CSETrainingArguments) -> int:
    """Return the optimiser steps that Transformers' Trainer takes in ``num_train_epochs`` over these rows."""
    batches = rows / (args.train_batch_size * args.world_size)
    per_epoch = math.floor(batches) if args.dataloader_drop_last else math.ceil(batches)
    return math.ceil(args.num_train_epochs * max(math.ceil(per_epoch / args.gradient_accumulation_steps), 1))


def taught_columns(model: CSEModel, corpus: Corpus) -> int:
    """Return how many columns need vectors of teachers: all contrastive ones, or the first alone."""
    further = further_columns(model.batch_specs)
    return len(corpus.columns) - further if any(o.teaches_all_columns for o in model.auxiliaries()) else 1


def check_teachers(model: CSEModel, teachers: Teachers) -> None:
    """Raise ValueError if the vectors of teachers have not the size that an objective compares them in."""
    own = model.config.projected_size
    comparing = [objective for objective in model.auxiliaries() if objective.in_teachers_space]
    names = [objective.config.name for objective in comparing]
    sizes = teachers.sizes()[: max(objective.teachers for objective in comparing)] if comparing else []
    for name, size in zip(teachers.names, sizes, strict=False):
        if size != own:
            raise ValueError(
                f"teachers must have vectors of {own} dimensions with {names[0]!r}, {name} has {size}: map to them "
                f"with --projector linear --projector_size {size} --projector_at_inference True, or choose "
                "--distill_loss similarities"
            )


def early_stopping(args: CSETrainingArguments) -> list[TrainerCallback]:
    """Return the callback of ``early_stopping_patience``. Raises ValueError without scores to stop by."""
    patience = args.early_stopping_patience
    if not patience:
        return []
    if args.metric_for_best_model is None or args.eval_strategy == IntervalStrategy.NO:
        raise ValueError(
            "early_stopping_patience must be 0 without scores to stop by (--data_dir, --dev_file or "
            f"--metric_for_best_model, and --eval_strategy), got {patience}"
        )
    return [EarlyStoppingCallback(patience)]


def spread_evaluations(args: CSETrainingArguments, corpus: Corpus) -> None:
    """Let a run of fewer than 1,000 steps be evaluated eight times, unless the arguments name an interval."""
    known = args.max_steps > 0 or not corpus.streaming
    if args.spread_evaluations and known:
        steps = args.max_steps if args.max_steps > 0 else steps_of(corpus.rows, args)
        args.eval_steps = args.save_steps = max(1, min(EVAL_STEPS, steps // EVALUATIONS))


@contextmanager
def embeddings_alone(model: CSEModel) -> Iterator[None]:
    """Inside the context, inference computes only the states that are pooled."""
    model.returns_states = False
    try:
        yield
    finally:
        model.returns_states = True


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Seed the random generators inside the context and restore the global random state afterwards."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(seed)
        yield


def check_objectives(model: CSEModel, args: CSETrainingArguments, corpus: Corpus, columns: int) -> None:
    """Raise ValueError for an objective that does not fit the corpus, its contrastive columns or the arguments."""
    for objective in model.auxiliaries():
        if columns < objective.columns:
            raise ValueError(
                f"the objective {objective.config.name!r} needs {objective.columns} columns (query, positive, "
                f"negative), {corpus.name} has {', '.join(corpus.columns)}"
            )
        if args.gradient_checkpointing and objective.attention_layers:
            raise ValueError(
                f"gradient_checkpointing must be False with {objective.config.name!r}, which reads the attention of "
                "the encoder's layers: to save memory, set --cache_chunk_size"
            )
        if objective.equates_columns and model.config.contrastive_weight and columns > 2:
            raise ValueError(
                f"{objective.config.name!r} gives every text of a row the same vector, and the contrast takes the "
                f"third column for negatives: {corpus.name} has {', '.join(corpus.columns)}; use two columns, or "
                "--contrastive_weight 0"
            )
    if (weight := model.config.hard_negative_weight) and columns < 3:
        raise ValueError(
            f"hard_negative_weight must be 0 without a third column, the hard negative, got {weight} and "
            f"{', '.join(corpus.columns)} of {corpus.name}"
        )
    contrasted = model.config.contrastive_weight and model.config.further_positives_weight
    read = contrasted or any(o.reads_positives and o.config.weight for o in model.auxiliaries())
    if model.config.positive_kinds and not read:
        logger.warning(
            "further_positives %r are encoded, and nothing reads them: set further_positives_weight and "
            "contrastive_weight above 0, or add an objective that reads them (group, peer)",
            model.config.further_positives,
        )
    tell_unread(model, corpus.columns[2] if columns > 2 else None)
    margins = [o.config.name for o in model.auxiliaries() if o.teaches_margins]
    others = [o.config.name for o in model.auxiliaries() if o.teachers and not o.teaches_margins]
    if margins and others:
        raise ValueError(
            f"{margins[0]!r} reads a cross-encoder and {others[0]!r} an encoder: --teachers names one kind"
        )
    teachers = max((objective.teachers for objective in model.auxiliaries()), default=0)
    if teachers != len(args.teachers or []):
        raise ValueError(
            f"teachers must name as many encoders as the objectives read, {teachers}, got {args.teachers}"
        )
    for objective in model.auxiliaries():
        if not corpus.streaming and objective.references > corpus.rows:
            raise ValueError(
                f"{objective.config.name}_references must be at most the corpus's rows, {corpus.rows}, "
                f"got {objective.references}"
            )


def tell_unread(model: CSEModel, negatives: str | None) -> None:
    """Warn of what nothing reads: settings of a contrast whose weight is 0, the column of its hard negatives, and
    settings of an objective that another one of its settings leaves out."""
    config = model.config
    weight, names = (
        ("second_view_weight", SECOND_VIEW) if config.contrastive_weight else ("contrastive_weight", CONTRAST)
    )
    unread = [name for name in names if getattr(config, name)]
    others = any(o.config.weight and (o.columns > 2 or o.equates_columns) for o in model.auxiliaries())
    if negatives is not None and not others:
        unread.append(f"the column {negatives!r}, the hard negative of the contrast")
    if unread and not getattr(config, weight):
        logger.warning("%s: no effect with %s 0", ", ".join(unread), weight)
    for objective in model.auxiliaries():
        for name, setting in objective.config.unread().items():
            logger.warning("%s: no effect with %s", name, setting)


def check_equal_views(model: CSEModel, args: CSETrainingArguments, columns: int, fields: str) -> None:
    """Check that an encoder without dropout gives no sentence an equal positive.

    Arguments:
        columns: number of the contrastive ones.
        fields: names of the encoder's dropout, for the message.

    Raises:
        ValueError: two views that are compared, or a further positive and its sentence, are the same text.
    """
    config = model.config
    contrast = config.contrastive_weight and config.second_view_weight
    weighted = [objective for objective in model.auxiliaries() if objective.config.weight]
    compared = contrast or any(each.compares_views and not each.one_view for each in weighted)
    one_text = columns == 1 and args.augmentation == "none" and config.second_prompt_template is None
    changed = args.mask_contrastive_input or any(config.view_changes)
    if one_text and compared and not changed:
        raise ValueError(
            f"the two views of a sentence differ by dropout alone, and the encoder's is 0 ({fields}): "
            "set dropout, e.g. --dropout 0.1, choose an --augmentation, perturb a view, or train on pairs"
        )
    if "dropout" in config.positive_kinds and not args.mask_contrastive_input and not config.view_changes[0]:
        raise ValueError(
            "further_positives 'dropout' differs from its sentence by dropout alone, and the encoder's is 0 "
            f"({fields}): set dropout, e.g. --dropout 0.1, or leave it out, got {config.further_positives!r}"
        )


def check_setting(model: CSEModel, args: CSETrainingArguments, corpus: Corpus) -> None:
    """Check the combination of model, arguments and corpus. Raises ValueError for one that cannot work."""
    dropout = dropout_fields(model.config.encoder_config)
    further = further_columns(model.batch_specs)
    if len(corpus.columns) <= further:
        reading = {"column", "parts"} & {*model.config.positive_kinds}
        raise ValueError(
            f"{f'further_positives {model.config.further_positives!r}' if reading else 'the objectives'} need "
            f"{('one more column', 'two more columns')[further - 1]} after the sentence's, {corpus.name} has only "
            f"{', '.join(corpus.columns)}"
        )
    if corpus.streaming and args.max_steps < 1:
        raise ValueError(f"max_steps must be at least 1 with streaming: a stream has no length, got {args.max_steps}")
    check_objectives(model, args, corpus, len(corpus.columns) - further)
    check_own_weights(model, args.objective_learning_rate, args.objectives_from)
    augmentation = make_augmentation(args.augmentation, args.augmentation_rate, args.augmentation_span)
    check_augmentation(augmentation, corpus, further)
    check_further_positives(model.config.positive_kinds, corpus)
    adapters = (model.config.lora or {}).get("lora_dropout", 0)
    if not any(dropout.values()) and not adapters:
        check_equal_views(model, args, len(corpus.columns) - further, ", ".join(dropout))
    if "alignment" in str(args.metric_for_best_model) and not any(dropout.values()) and not adapters:
        raise ValueError(
            "metric_for_best_model must not be 'alignment' without dropout: both views of a sentence are then equal, "
            f"and the encoder's dropout is 0 ({', '.join(dropout)})"
        )
    rows = args.per_device_train_batch_size * args.world_size
    if rows < 2:
        raise ValueError(
            f"per_device_train_batch_size must be at least 2, the other rows are the negatives, got {rows}"
        )
    try:
        check_exportable(model.config.pooling)
    except ValueError as error:
        if args.push_to_hub:
            raise
        logger.warning("%s (it will be in %s/%s)", error, args.output_dir, TRAINING_FOLDER)
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs in one process would contrast within each GPU only: start with "
            f"'torchrun --nproc_per_node {args.n_gpu}' or 'accelerate launch', or set CUDA_VISIBLE_DEVICES to one"
        )
    warn_of_launcher()
