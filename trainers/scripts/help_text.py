"""The help of the training commands: options in groups, in the order of use. The reference of the docs is the same."""

import argparse
import enum
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments
from transformers.hf_argparser import string_to_bool

_OWN_NAMES = {int: "INTEGER", float: "NUMBER", bool: "BOOL"}


@dataclass(frozen=True)
class Group:
    """A group of options in ``--help``.

    Arguments:
        title: its title.
        text: one sentence about it.
        names: the names of its options, in order; those that a command does not have are left out.
    """

    title: str
    text: str
    names: Sequence[str]


@dataclass(frozen=True)
class Details:
    """What ``--help`` shows of options whose arguments are built from no dataclass.

    Arguments:
        groups: their groups.
        texts: the text of each option.
        defaults: the default of each option.
        aliases: a second, shorter name of an option.
        hidden: names of options that are not shown.
    """

    groups: Sequence[Group] = ()
    texts: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    hidden: Sequence[str] = ()


@dataclass(frozen=True)
class Option:
    """An option as help and reference show it.

    Arguments:
        name: ``--learning_rate NUMBER``.
        text: what it does.
        choices: the allowed values that the text does not name.
        default: its default, or an empty text.
    """

    name: str
    text: str
    choices: Sequence[str]
    default: str


@dataclass(frozen=True)
class Section:
    """A group with its options."""

    title: str
    text: str
    options: Sequence[Option]


BEFORE_METHOD = (
    Group(
        "Encoder and method",
        "What is trained, and from which start.",
        (
            "config", "model_name_or_path", "method", "objectives", "imports", "objective", "dropout", "layers",
            "model_type", "config_overrides", "vocab_size", "tokenizer_name", "small_budget_init", "split_layer",
            "head_layers", "head_init", "generator_name_or_path", "train_generator", "discriminator_weight",
        ),
    ),
    Group(
        "Data",
        "The text to train on: give --train_file or --dataset_name.",
        (
            "train_file", "dataset_name", "columns", "max_seq_length", "block_length", "max_train_samples",
            "streaming", "train_fraction", "filter_overlap", "augmentation", "augmentation_rate",
            "augmentation_span",
        ),
    ),
)  # fmt: skip

AFTER_METHOD = (
    Group("Masking", "Which words the masked LM predicts.", ("mlm_probability", "whole_word_masking")),
    Group(
        "Objectives",
        "How the auxiliary objectives are trained.",
        ("objective_learning_rate", "objective_warmup_steps", "objectives_from", "teachers", "mask_contrastive_input"),
    ),
    Group(
        "Training",
        "How the weights are learned.",
        (
            "learning_rate", "per_device_train_batch_size", "num_train_epochs", "max_steps", "warmup_steps",
            "lr_scheduler_type", "weight_decay", "max_grad_norm", "gradient_accumulation_steps", "cache_chunk_size",
            "seed", "bf16", "fp16", "use_cpu", "torch_compile", "compile_bucket", "dataloader_num_workers",
            "resume_from_checkpoint", "allow_changed",
        ),
    ),
    Group(
        "Evaluation",
        "What is scored, and what chooses the checkpoint.",
        (
            "dev_file", "data_dir", "test_file", "dev_columns", "text_form", "select_on", "metric_for_best_model",
            "load_best_model_at_end", "eval_steps", "label_free_samples", "do_predict", "geometry",
            "geometry_threshold", "per_device_eval_batch_size", "bf16_full_eval", "heldout_file", "heldout_share",
        ),
    ),
    Group(
        "Output",
        "What is written, printed and published.",
        (
            "output_dir", "overwrite", "save_steps", "save_total_limit", "logging_steps", "log_format", "disable_tqdm",
            "report_to", "run_name", "project", "push_to_hub", "hub_model_id", "hub_private_repo", "help", "help_all",
        ),
    ),
)  # fmt: skip

#: Transformers' arguments in these groups, in a few words.
_SHORT = {
    "help": "Show the options; with --method NAME those of the method.",
    "max_steps": "Steps of the optimiser; -1: as many as num_train_epochs has.",
    "warmup_steps": "Steps in which the learning rate rises; below 1 a share of all steps.",
    "lr_scheduler_type": "How the learning rate falls.",
    "weight_decay": "Weight decay of matrices; biases and norms do not decay.",
    "max_grad_norm": "Greatest norm of the gradient, which is scaled down to it.",
    "gradient_accumulation_steps": "Batches whose gradients are averaged for one step; they share no negatives.",
    "seed": "Seed of all random numbers: the order of the rows, dropout, masks.",
    "bf16": "Train with bfloat16 mixed precision.",
    "fp16": "Train with float16 mixed precision.",
    "use_cpu": "Train on the CPU even if there is a GPU.",
    "torch_compile": "Compile the layers of the encoders.",
    "dataloader_num_workers": "Processes that prepare batches; 0: the training process itself.",
    "resume_from_checkpoint": "True continues the run in output_dir; or the folder of a checkpoint.",
    "per_device_eval_batch_size": "Texts that are encoded at once in an evaluation.",
    "bf16_full_eval": "Embed the dev set in bfloat16 during training; unset: as bf16. Final scores are of float32.",
    "disable_tqdm": "Print no progress bars; --no_progress is the same.",
    "report_to": "Trackers: tensorboard, trackio, wandb and others of Transformers; all; or none.",
    "run_name": "Name of the run in a tracker.",
    "project": "Project of the run in trackio.",
    "push_to_hub": "Publish the run at its end. The login is checked before training starts.",
    "hub_model_id": "Repository on the Hub: me/my-encoder.",
    "hub_private_repo": "Make the repository private if it is new.",
}


def sections(parser: argparse.ArgumentParser, details: Details, full: bool = False) -> list[Section]:
    """Return the options of a training command in their groups.

    Arguments:
        parser: the command's parser.
        details: groups and texts of the method's options.
        full: True for all of Transformers' arguments in a last group.
    """
    actions: dict[str, argparse.Action] = {}
    for action in parser._actions:
        actions.setdefault(action.dest, action)  # not --no_<name>, which comes second
    known = {name for group in (*BEFORE_METHOD, *AFTER_METHOD, *details.groups) for name in group.names}
    known |= {*details.aliases.values(), *details.hidden}
    foreign = {action.dest for action in parser._actions} & set(TrainingArguments.__dataclass_fields__) - known
    further = set(actions) - known - foreign  # new arguments of csekit
    found = []
    for group in (*BEFORE_METHOD, *details.groups, *AFTER_METHOD):
        names = (
            [*(name for name in actions if name in further), *group.names] if group.title == "Output" else group.names
        )
        options = [_option(actions[name], details) for name in names if name in actions]
        if options:
            found.append(Section(group.title, group.text, options))
    if full:
        rest = [_option(action, details) for name, action in actions.items() if name in foreign]
        found.append(Section("Transformers", "The other arguments of Transformers' TrainingArguments.", rest))
    return found


def render(parts: Sequence[Section], width: int) -> str:
    """Return sections as text for a terminal of this width."""
    column = 30
    lines = []
    for part in parts:
        lines += ["", *textwrap.wrap(f"{part.title}: {part.text}", max(60, width))]
        for option in part.options:
            text = option.text + (f" One of {', '.join(option.choices)}." if option.choices else "")
            text += f" Default: {option.default}." if option.default else ""
            wrapped = textwrap.wrap(text, max(30, width - column), break_long_words=False, break_on_hyphens=False)
            name = f"  {option.name}"
            first = wrapped.pop(0) if len(name) < column and wrapped else ""
            lines += [f"{name:{column}}{first}".rstrip(), *(" " * column + line for line in wrapped)]
    return "\n".join(lines[1:]) + "\n"


def _option(action: argparse.Action, details: Details) -> Option:
    """Return what is shown of an argument: its longest name with underscores, its text, choices and default."""
    name = next((word for word in action.option_strings if word == "--import"), f"--{action.dest}")
    names = [name] if action.dest not in details.aliases else [name, f"--{details.aliases[action.dest]}"]
    text = _SHORT.get(action.dest, "") if _foreign_text(action) else ""
    text = text or details.texts.get(action.dest, "") or " ".join((action.help or "").split()).replace("%%", "%")
    choices = [str(choice) for choice in action.choices or () if str(choice) not in text]
    value = details.defaults.get(action.dest) if action.default is argparse.SUPPRESS else action.default
    default = "" if value is None or action.dest.startswith("help") or "default" in text.lower() else _plain(value)
    return Option(f"{', '.join(names)}{_value(action)}", text, choices, default)


def _foreign_text(action: argparse.Action) -> bool:
    """Return True for an argument with the text of Transformers, or of argparse."""
    original = TrainingArguments.__dataclass_fields__.get(action.dest)
    return action.dest == "help" or (original is not None and action.help == original.metadata.get("help"))


def _plain(value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _value(action: argparse.Action) -> str:
    """Return the word for an argument's value, with a space in front."""
    if action.nargs == 0:
        return ""
    kind: Any = bool if action.type is string_to_bool else action.type
    word = _OWN_NAMES.get(kind, "TEXT")
    return f" [{word}]" if action.nargs == "?" else f" {word} …" if action.nargs in ("*", "+") else f" {word}"


def argument_texts(kind: type) -> dict[str, str]:
    """Return the texts of a class's arguments, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        doc = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        block = re.search(r"^Arguments:\n((?: +.*\n?|\n)+)", doc, re.MULTILINE)
        for entry in re.split(r"^    (?=\S)", block[1] if block else "", flags=re.MULTILINE):
            names, colon, text = entry.partition(":")
            found.update({name.strip(): _sentence(text) for name in names.split(",") if colon})
    return found


def first_line(kind: type) -> str:
    """Return the first line of a class's own docstring as a sentence."""
    return _sentence(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0])


def _sentence(text: str) -> str:
    """Return a docstring's text for a terminal: one line without markup, with a full stop. A word begins with a
    capital, a value or a symbol does not."""
    text = " ".join(text.split())
    word = re.match("[a-z]{2,}(?![·\\w])|a ", text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
    text = text[:1].upper() + text[1:] if word else text
    return text if not text or text[-1] in ".!?" else f"{text}."
