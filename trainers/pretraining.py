"""Pre-training on Transformers' Trainer: stage 1 of InfoCSE, a plain masked LM, or replaced-token detection.

`small_budget_init_` helps short runs of a new model: its word vectors and its attention do not start at random.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import IntervalStrategy, SchedulerType

from csekit.encoding.encoder import evaluating
from csekit.modeling import EncoderForPreTraining, InfoCSEForPreTraining
from csekit.modeling.drafts import full_disk_told
from csekit.modeling.export import length_limit
from csekit.modeling.initialization import (
    load_word_embeddings_,
    near_identity_attention_,
    near_identity_transform_,
    ppmi_embeddings,
)
from csekit.trainers.arguments import PretrainingArguments, follows_score
from csekit.trainers.base_trainer import TermsTrainer, warn_of_launcher, without_autocast
from csekit.trainers.batches.masking import MaskingVocabulary
from csekit.trainers.batches.packing import Blocks, PretrainingCollator
from csekit.trainers.export_check import check_backbone
from csekit.trainers.objective_warmup import OBJECTIVES_FOLDER, save_objectives
from csekit.trainers.run_record import history
from csekit.trainers.run_settings import array_digest, config_settings, plain, vocabulary_digest

CHECKED_BLOCKS = 4  # blocks on which the exported encoder is compared with the trained one
HELDOUT_SEED = 0  # seed of the masks of held-out text and of the draws in it, the same for all runs


class PretrainingTrainer(TermsTrainer):
    """Trainer for :class:`InfoCSEForPreTraining` and :class:`RTDForPreTraining`. It logs each term of the loss
    (``loss/mlm``, ``loss/aux_mlm``, ``loss/rtd``) and the accuracies.

    Arguments:
        model: new, or from ``from_backbone`` or ``from_pretrained``.
        args: :class:`PretrainingArguments`.
        blocks: the training text, from ``pack``.
        tokenizer: the tokenizer of the blocks.
        heldout: blocks of other text, scored every ``eval_steps`` and at the end; None: no evaluation.
        kwargs: further arguments of Transformers' Trainer.

    Raises:
        ValueError: the blocks are longer than the encoder's limit, the vocabulary is larger than the encoder's, one
            process has several GPUs, ``load_best_model_at_end`` without held-out text, an unknown
            ``metric_for_best_model``, or ``push_to_hub``.
    """

    args: PretrainingArguments
    model: EncoderForPreTraining

    def __init__(
        self,
        model: EncoderForPreTraining,
        args: PretrainingArguments,
        blocks: Blocks,
        tokenizer: PreTrainedTokenizerBase,
        heldout: Blocks | None = None,
        **kwargs: Any,
    ) -> None:
        args = copy.copy(args)  # those of the caller stay as they are
        _check(model, args, blocks, tokenizer, heldout)
        if heldout is None:
            args.eval_strategy = IntervalStrategy.NO
        model.load_frozen()
        self.tokenizer, self.heldout = tokenizer, heldout
        masks, scored = (tokenizer, args.mlm_probability), model.scores_all_tokens
        self._mask_heldout = PretrainingCollator(*masks, HELDOUT_SEED, scored)
        super().__init__(
            model=model,
            args=args,
            data_collator=PretrainingCollator(*masks, args.seed, scored),
            train_dataset=blocks,
            eval_dataset=heldout,
            processing_class=tokenizer,
            **kwargs,
        )
        if heldout is not None and args.metric_for_best_model is not None:
            self._select()

    def evaluate(  # type: ignore[override]
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score the held-out text: return :meth:`heldout_scores` with a prefix, the same on every process."""
        self.check_evaluated(eval_dataset)
        if self._window and self.is_in_train:
            self._checked_window()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.heldout_scores().items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def heldout_scores(self) -> dict[str, float]:
        """Return ``loss``, its terms, and their accuracies in [0, 1]; {} without held-out text.

        They are exact means over all tokens that they count, without dropout, in the precision of the weights. The
        masks and a generator's random numbers are the same on every call, and the global random state does not change.
        Every process scores the whole text.
        """
        if self.heldout is None:
            return {}
        totals: dict[str, Any] = {}
        tokens: dict[str, Any] = {}
        terms: dict[str, Any] = {}
        for output in self._outputs(len(self.heldout)):
            terms = output.loss_dict
            for name, value in {**terms, **output.metrics}.items():
                totals[name] = totals.get(name, 0.0) + value.double() * output.counts[name]
                tokens[name] = tokens.get(name, 0) + output.counts[name]
        scores = {name: float(total) / max(int(tokens[name]), 1) for name, total in totals.items()}
        return {"loss": sum(scores[name] for name in terms), **scores}

    def _outputs(self, count: int) -> Iterator[Any]:
        """Yield the model's outputs for the first ``count`` blocks of the held-out text, batch by batch."""
        heldout: Any = self.heldout
        size = self.args.per_device_eval_batch_size
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with without_autocast(self.model), evaluating(self.model), torch.random.fork_rng(devices=devices):
            torch.manual_seed(HELDOUT_SEED)
            for start in range(0, count, size):
                rows = [heldout[i] for i in range(start, min(start + size, count))]
                batch = self._prepare_inputs(self._mask_heldout(rows))
                batch.pop("index")
                yield self.model(**batch)

    def _select(self) -> None:
        """Choose the direction of ``metric_for_best_model``. Raises ValueError for an unknown one."""
        (output,) = self._outputs(1)
        available = dict.fromkeys(("loss", *output.loss_dict), False) | dict.fromkeys(output.metrics, True)
        name = str(self.args.metric_for_best_model).removeprefix("eval_")
        if name not in available:
            raise ValueError(f"metric_for_best_model must be one of {sorted(available)}, got {name!r}")
        self.args.metric_for_best_model, self.args.greater_is_better = name, available[name]

    def save_run(self) -> Path:
        """Write the model as it is to ``training/`` and export it to the root of the run's folder (see
        ``export_checkpoint``), and weights for ``objectives_from`` to ``objectives/``. Load the encoder again and
        compare its states on a few blocks.

        Returns:
            the folder to load from.

        Raises:
            ExportMismatchError: the saved encoder is not the one in memory.
            FolderInUseError: another process works in the run's folder.
            DiskFullError: there is no room for it; an earlier export stays.
        """
        folder = Path(str(self.args.output_dir))
        with self.locked():
            self.save_training()
            if self.args.should_save:
                self.model.export_checkpoint(folder, self.tokenizer)
                self._check_saved(folder)
                if weights := self.model.objective_weights():
                    record = {"steps": self.state.global_step, "learning_rate": self.args.learning_rate}
                    with full_disk_told(folder):
                        save_objectives(weights, folder / OBJECTIVES_FOLDER, record | {"log": history(self)[1]})
        return folder

    @torch.no_grad()
    def _check_saved(self, folder: Path) -> None:
        blocks: Any = self.train_dataset
        ids_bL = torch.from_numpy(blocks.ids_NL[:CHECKED_BLOCKS].astype(np.int64))
        real_bL = torch.arange(ids_bL.shape[1]) < torch.from_numpy(blocks.lengths_N[:CHECKED_BLOCKS])[:, None]
        batch = {"input_ids": ids_bL, "attention_mask": real_bL.long()}
        with without_autocast(self.model), evaluating(self.model):
            here = {name: value.to(self.args.device) for name, value in batch.items()}
            states_bLH = self.model.backbone(**here).last_hidden_state
        check_backbone(folder, batch, states_bLH)

    def run_settings(self) -> dict[str, Any]:
        """Return the settings that decide the run's result: arguments, model, text, tokenizer."""
        blocks: Any = self.train_dataset
        heldout = () if self.heldout is None else (self.heldout.ids_NL,)
        own = {
            "model_name_or_path": Path(self.model.backbone.name_or_path or "").name,
            "tokenizer": vocabulary_digest(self.tokenizer),
            "corpus": {"checksum": array_digest(blocks.ids_NL, blocks.words_NL), "blocks": len(blocks)},
            "heldout": {"checksum": array_digest(*heldout)},
        }
        return {**super().run_settings(), **config_settings(self.model.config), **plain(own)}


def _check(
    model: EncoderForPreTraining,
    args: PretrainingArguments,
    blocks: Blocks,
    tokenizer: PreTrainedTokenizerBase,
    heldout: Blocks | None,
) -> None:
    vocabulary = int(model.config.encoder_config.vocab_size)
    if len(tokenizer) > vocabulary:
        raise ValueError(
            f"the encoder's vocab_size must be at least {len(tokenizer)} (the tokenizer), got {vocabulary}"
        )
    limit = length_limit(model.backbone, tokenizer)
    longest = max(blocks.block_length, heldout.block_length if heldout is not None else 0)
    if longest > limit:
        raise ValueError(f"block_length must be at most {limit}, the encoder's limit, got {longest}")
    if args.push_to_hub:
        raise ValueError(
            "push_to_hub must be False: it publishes sentence encoders; upload this run's folder with: hf upload"
        )
    if heldout is None and args.load_best_model_at_end:
        raise ValueError("load_best_model_at_end must be False without held-out text, got True")
    if heldout is None and follows_score(args):
        kind = SchedulerType(args.lr_scheduler_type).value
        raise ValueError(f"lr_scheduler_type must not be {kind!r} without held-out text, whose loss it follows")
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs in one process cannot share a batch of masked positions: start with "
            f"'torchrun --nproc_per_node {args.n_gpu}' or 'accelerate launch', or set CUDA_VISIBLE_DEVICES to one"
        )
    warn_of_launcher()


def small_budget_init_(model: InfoCSEForPreTraining, blocks: Blocks, tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace the random weights of a new BERT by a start that helps short trainings: word vectors from co-occurrence
    counts, and attention that begins as a mean, in the auxiliary head as well.

    Raises:
        TypeError: the encoder is not of the BERT architecture.
    """
    near_identity_attention_(model.backbone)
    near_identity_transform_(model.mlm_head.model)
    if model.auxiliary_head is not None:
        near_identity_attention_(model.auxiliary_head.model)
    special_V = MaskingVocabulary.from_tokenizer(tokenizer).special
    known = max(int(model.config.encoder_config.vocab_size), len(special_V))
    special_V = np.pad(special_V, (0, known - len(special_V)))
    rows = blocks.sentences(special_V)
    width = cast(nn.Embedding, model.backbone.get_input_embeddings()).embedding_dim
    load_word_embeddings_(model.backbone, ppmi_embeddings(rows, known, width))
