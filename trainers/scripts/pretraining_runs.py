"""The parts of the pre-training script: arguments, texts, model, results file."""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from csekit.encoding.pretrained import broken_model_told, check_backbone, check_files, load_tokenizer
from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import (
    EncoderForPreTraining,
    InfoCSEForPreTraining,
    InfoCSEPretrainingConfig,
    RTDForPreTraining,
    RTDPretrainingConfig,
)
from csekit.modeling.backbone import set_dropout
from csekit.modeling.configuration_infocse_pretraining import PRETRAINING_OBJECTIVES
from csekit.modeling.modeling_rtd_pretraining import check_generator
from csekit.modeling.settings import check_number
from csekit.trainers.arguments import PretrainingArguments
from csekit.trainers.batches.packing import Blocks
from csekit.trainers.data.corpora import Corpus, load_corpus
from csekit.trainers.data.tokenizer_training import train_tokenizer
from csekit.trainers.pretraining import PretrainingTrainer, small_budget_init_
from csekit.trainers.run_record import changed_arguments, history, without_folders
from csekit.trainers.scripts.help_text import Section
from csekit.trainers.scripts.run_arguments import CorpusArguments, build_parser, parse_arguments

#: The objectives of pre-training: those of :class:`InfoCSEForPreTraining`, and replaced-token detection.
OBJECTIVES = (*PRETRAINING_OBJECTIVES, RTDPretrainingConfig.objective)
#: The arguments that one objective alone reads.
_OF_OBJECTIVE = {
    "condenser": ("split_layer", "head_layers", "head_init"),
    RTDPretrainingConfig.objective: ("generator_name_or_path", "train_generator", "discriminator_weight"),
}
_SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


@dataclass
class PretrainRunArguments(CorpusArguments):
    """The model to pre-train and its texts. Without ``model_name_or_path`` the model is new."""

    objective: str = field(
        default="condenser",
        metadata={
            "help": "condenser (stage 1 of InfoCSE, with an auxiliary head), mlm (a plain masked LM) or rtd "
            "(replaced-token detection, a discriminator for DiffCSE)."
        },
    )
    split_layer: int | None = field(
        default=None,
        metadata={"help": "With condenser: k, the layer that the head reads; default: 6, half in shallow encoders."},
    )
    head_layers: int = field(default=2, metadata={"help": "With condenser: layers of the auxiliary head."})
    head_init: str = field(
        default="top_layers",
        metadata={
            "help": "With condenser: the auxiliary head's first weights, top_layers (the encoder's) or new (as "
            "Condenser's code)."
        },
    )
    generator_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "With rtd: the masked LM that replaces tokens, with the encoder's vocabulary; default: the "
            "encoder's own."
        },
    )
    train_generator: bool = field(
        default=True, metadata={"help": "With rtd: train the generator beside the discriminator, as ELECTRA."}
    )
    discriminator_weight: float = field(
        default=50.0, metadata={"help": "With rtd: factor of the discriminator's loss beside the generator's."}
    )
    model_type: str = field(default="bert", metadata={"help": "Family of a new model."})
    config_overrides: str | None = field(
        default=None, metadata={"help": "Sizes of a new model: hidden_size=256,num_hidden_layers=4,…"}
    )
    vocab_size: int | None = field(
        default=None, metadata={"help": "Train a lower-casing WordPiece tokenizer of this size on the corpus."}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer of a new model, instead of training one."}
    )
    small_budget_init: bool = field(
        default=False, metadata={"help": "Start a BERT from word vectors of counts and near-identity attention."}
    )
    heldout_file: str | None = field(default=None, metadata={"help": "Text to evaluate on, as train_file."})
    heldout_share: float = field(
        default=0.01, metadata={"help": "Without heldout_file: this share of the corpus is held out; 0: none."}
    )

    def check(self) -> None:
        """Raise ValueError for arguments that are missing or contradict each other."""
        super().check()
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}, got {self.objective!r}")
        if self.objective == RTDPretrainingConfig.objective and self.model_name_or_path is None:
            raise ValueError("objective 'rtd' needs --model_name_or_path: its networks start from a checkpoint")
        check_number("discriminator_weight", self.discriminator_weight, 0)
        defaults = {field.name: field.default for field in fields(self)}
        for objective, names in _OF_OBJECTIVE.items():
            for name in names if self.objective != objective else ():
                if (value := getattr(self, name)) != defaults[name]:
                    raise ValueError(
                        f"--{name} must be left out with objective {self.objective!r}: it is for {objective!r}, "
                        f"got {value!r}"
                    )
        if not 0 <= self.heldout_share <= 0.5:
            raise ValueError(f"heldout_share must lie in [0, 0.5], got {self.heldout_share}")
        fresh = {
            "--model_type": self.model_type if self.model_type != defaults["model_type"] else None,
            "--config_overrides": self.config_overrides,
            "--vocab_size": self.vocab_size,
            "--tokenizer_name": self.tokenizer_name,
            "--small_budget_init": self.small_budget_init or None,
        }
        given = [name for name, value in fresh.items() if value is not None]
        if self.model_name_or_path is not None and given:
            raise ValueError(f"{given[0]} must be left out with --model_name_or_path: it is for a new model")
        if self.model_name_or_path is None and (self.vocab_size is None) == (self.tokenizer_name is None):
            raise ValueError(
                "give --model_name_or_path, or for a new model either --vocab_size (a tokenizer is trained) "
                "or --tokenizer_name"
            )
        if self.small_budget_init and self.model_type != "bert":
            raise ValueError(f"model_type must be 'bert' for small_budget_init, got {self.model_type!r}")


def parse_pretrain_arguments(
    argv: Sequence[str] | None = None, about: str = ""
) -> tuple[PretrainRunArguments, PretrainingArguments]:
    """Parse a command line of pre-training; arguments and errors as in :func:`parse_run_arguments`."""
    own = {name: (objective,) for objective, names in _OF_OBJECTIVE.items() for name in names}
    kinds = (PretrainRunArguments, PretrainingArguments)
    run, args, _ = parse_arguments(kinds, argv, about=about, choices={"objective": own})
    return run, args


def pretrain_sections() -> list[Section]:
    """Return the options of pre-training in groups, as ``--help`` shows them."""
    return build_parser((PretrainRunArguments, PretrainingArguments)).sections()


def check_networks(run: PretrainRunArguments) -> None:
    """Check the generator of replaced-token detection before the texts are read.

    Raises:
        ValueError: it cannot be loaded, its family has no masked LM, or its vocabulary is not the encoder's.
    """
    if run.objective != RTDPretrainingConfig.objective:
        return
    name = str(run.model_name_or_path)
    generator = run.generator_name_or_path or name
    with broken_model_told(name):
        check_files(name)
    with broken_model_told(generator):
        check_files(generator)
        check_generator(name, generator)


def load_texts(run: PretrainRunArguments) -> tuple[Corpus, list[str], list[str]]:
    """Return the corpus, its texts for training, and the held-out texts: ``heldout_file``, or ``heldout_share``
    of the texts at even distances, of which the first is one.

    Raises:
        ValueError: a file is not valid; the message names file and line.
    """
    corpus = load_corpus(
        run.train_file, run.dataset_name, columns=run.columns, max_samples=run.max_train_samples, tell=False
    )
    texts = corpus_texts(corpus)
    if run.heldout_file is not None:
        return corpus, texts, corpus_texts(load_corpus(run.heldout_file, columns=run.columns))
    held = held_out(len(texts), run.heldout_share)
    kept = set(held)
    return corpus, [text for i, text in enumerate(texts) if i not in kept], [texts[i] for i in held]


def held_out(count: int, share: float) -> list[int]:
    """Return which of ``count`` texts are held out, in rising order; of a share of 1/n every n-th."""
    exact = Fraction(repr(share))
    return [math.floor(i / exact) for i in range(math.ceil(count * exact))] if share else []


def corpus_texts(corpus: Corpus, chunk: int = 10_000) -> list[str]:
    """Return all texts of a corpus, row by row."""
    dataset: Any = corpus.dataset
    starts = range(0, len(dataset), chunk)
    rows = (row for i in starts for row in dataset.__getitems__(range(i, min(i + chunk, len(dataset)))))
    return [text for row in rows for text in row["texts"]]


def make_tokenizer(run: PretrainRunArguments, texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """Return the checkpoint's tokenizer, the named one, or one trained on the texts."""
    if run.vocab_size is not None:
        return train_tokenizer(texts, run.vocab_size)
    name = str(run.model_name_or_path or run.tokenizer_name)
    with broken_model_told(name):
        if run.model_name_or_path is not None:
            check_files(name)
        return load_tokenizer(name, None, None)


def tell_texts(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, args: PretrainingArguments) -> None:
    """Print the columns of a corpus of several; warn, on the main process, of a tokenizer that does not fit it."""
    if len(corpus.columns) > 1:
        print(f"{corpus.name}: columns {', '.join(map(repr, corpus.columns))} are texts (--columns names others)")
    fit = corpus.tokenizer_report(tokenizer, args.block_length)
    if fit.warning and args.process_index == 0:
        print(f"warning: {fit.warning}", file=sys.stderr)


def make_model(run: PretrainRunArguments, tokenizer: PreTrainedTokenizerBase, blocks: Blocks) -> EncoderForPreTraining:
    """Return the model to train, from the checkpoint or new. New weights are drawn from the global generator.

    Raises:
        ValueError: sizes that do not fit together, a family without the objective, or a generator that does not fit.
    """
    if run.objective == RTDPretrainingConfig.objective:
        return make_discriminator(run, tokenizer)
    own: dict[str, Any] = {
        "objective": run.objective,
        "split_layer": run.split_layer,
        "head_layers": run.head_layers,
        "head_init": run.head_init,
    }
    if run.model_name_or_path is not None:
        name = run.model_name_or_path
        with broken_model_told(name):
            model = InfoCSEForPreTraining.from_backbone(name, dropout=run.dropout, **own)
            check_backbone(name, model.backbone, tokenizer)
        return model
    encoder = new_encoder_config(tokenizer, run.model_type, run.config_overrides)
    set_dropout(encoder, run.dropout)
    model = InfoCSEForPreTraining(InfoCSEPretrainingConfig(encoder_config=encoder, **own))
    if run.small_budget_init:
        small_budget_init_(model, blocks, tokenizer)
    return model


def make_discriminator(run: PretrainRunArguments, tokenizer: PreTrainedTokenizerBase) -> RTDForPreTraining:
    """Return the discriminator to train, with its generator; errors as in :func:`make_model`."""
    name = str(run.model_name_or_path)
    own: dict[str, Any] = {
        "generator_name_or_path": run.generator_name_or_path,
        "train_generator": run.train_generator,
        "discriminator_weight": run.discriminator_weight,
    }
    with broken_model_told(name):
        model = RTDForPreTraining.from_backbone(name, dropout=run.dropout, **own)
        check_backbone(name, model.backbone, tokenizer)
    return model


def new_encoder_config(
    tokenizer: PreTrainedTokenizerBase, model_type: str, overrides: str | None = None
) -> PreTrainedConfig:
    """Return the config of an encoder for a tokenizer.

    Arguments:
        tokenizer: gives the size of the vocabulary and the special ids.
        model_type: the encoder's family.
        overrides: ``name=value,…``, fields of the family's config.

    Raises:
        ValueError: an unknown family or field, or a value of another type.
    """
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer))
    for name in _SPECIAL_IDS:
        if getattr(config, name, None) is not None and getattr(tokenizer, name, None) is not None:
            setattr(config, name, getattr(tokenizer, name))
    for pair in filter(None, (overrides or "").split(",")):
        name, _, value = pair.partition("=")
        try:
            config.update_from_string(f"{name.strip()}={value.strip()}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"config_overrides of {model_type!r}: {pair!r}: {error}") from None
    config.dtype = torch.float32
    return config


def write_pretraining(
    trainer: PretrainingTrainer,
    run: PretrainRunArguments,
    corpus: Corpus,
    before: dict[str, float],
    after: dict[str, float],
    seconds: dict[str, float],
) -> Path:
    """Write ``results.json`` into the run's folder: setting, held-out scores before, during and after, log, time."""
    evaluations, log = history(trainer)
    config: Any = trainer.model.config
    blocks: Any = trainer.train_dataset
    heldout = trainer.heldout
    encoder = {name: value for name, value in config.encoder_config.to_diff_dict().items() if name[0] != "_"}
    results = {
        "name": Path(str(trainer.args.output_dir)).resolve().name,
        "method": "pretraining",
        "backbone": Path(run.model_name_or_path).name if run.model_name_or_path else None,
        "corpus": corpus.describe(),
        "blocks": {"train": len(blocks), "heldout": len(heldout) if heldout is not None else 0},
        "tokens": int(blocks.lengths_N.sum()),
        "config": {
            **own_settings(config),
            "small_budget_init": run.small_budget_init,
            "trained_tokenizer": run.vocab_size is not None,
            "dropout": run.dropout,
            "encoder": encoder,
        },
        "arguments": changed_arguments(trainer.args),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "seed": trainer.args.seed,
        "heldout": {"before": before, "after": after, "history": evaluations},
        "steps": trainer.state.global_step,
        "log": log,
        "environment": environment(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }
    return write_results(Path(str(trainer.args.output_dir)) / "results.json", results, overwrite=True)


def own_settings(config: Any) -> dict[str, Any]:
    """Return the objective with its settings, a generator's folder as its last part."""
    if isinstance(config, RTDPretrainingConfig):
        names = ("objective", "generator_name_or_path", "train_generator", "discriminator_weight")
        return without_folders({name: getattr(config, name) for name in names})
    head = {name: getattr(config, name) for name in ("head_layers", "head_init")}
    return {
        "objective": config.objective,
        "split_layer": config.split_layer,
        **(head if config.objective == "condenser" else dict.fromkeys(head)),
    }


def next_command(config: Any, folder: Path) -> str:
    """Return the command that starts from the checkpoint, for a terminal."""
    if isinstance(config, RTDPretrainingConfig):
        return f"csekit train --method diffcse --objectives_from {shlex.quote(str(folder))}"
    return f"csekit train --model_name_or_path {shlex.quote(str(folder))}"


def heldout_table(before: dict[str, float], after: dict[str, float]) -> str:
    """Return a table of the held-out scores before and after training, for a terminal."""
    lines = [f"{'held-out text':28}{'before':>10}{'after':>10}"]
    return "\n".join(lines + [f"{name:28}{before[name]:>10.4f}{value:>10.4f}" for name, value in after.items()])
