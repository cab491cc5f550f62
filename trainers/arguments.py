"""Training arguments: Transformers' own, with the defaults of the papers."""

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.optimization import get_scheduler
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import SchedulerType

from csekit.encoding.json_files import parse_json, read_json
from csekit.modeling.fast_compile import GRAPH_MODES
from csekit.modeling.fast_half import computes_bf16, tell_float32, tell_no_tiles
from csekit.modeling.settings import check_number, check_type
from csekit.trainers.data.augmentation import make_augmentation
from csekit.trainers.progress import LOG_FORMATS

#: Steps between evaluations, and how often a shorter run is evaluated.
EVAL_STEPS, EVALUATIONS = 125, 8

#: What to install for a tracker.
_TRACKERS = {"tensorboard": "csekit[trackers]", "trackio": "csekit[trackers]", "wandb": "wandb"}

#: Least value of Transformers' whole numbers, and of its other numbers; None is allowed where its type says so.
_WHOLE = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "eval_accumulation_steps": 1,
    "save_total_limit": 1,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": 1,
    "seed": 0,
    "data_seed": 0,
    "torch_empty_cache_steps": 1,
    "ddp_bucket_cap_mb": 1,
    "ddp_timeout": 1,
}
_AT_LEAST_0 = ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "eval_delay", "neftune_noise_alpha")
_ABOVE_0 = ("num_train_epochs", "logging_steps", "eval_steps", "save_steps", "adam_epsilon")
_BELOW_1 = ("adam_beta1", "adam_beta2", "label_smoothing_factor")
#: Arguments with another name in later versions of Transformers, which warn of the old one until they lose it.
_RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
#: Steps of a scheduler that is made for a check.
_ANY_STEPS = 1000
#: Largest seed that NumPy takes.
_LARGEST_SEED = 2**32 - 1


@dataclass
class RunTrainingArguments(TrainingArguments):
    """Transformers' ``TrainingArguments`` with the defaults that all trainings of csekit share. ``output_dir`` is the
    run's folder: its root becomes the exported model, ``training/`` holds checkpoints and trainer state.

    Defaults that differ, and why:

    - Evaluation and checkpoints happen at the same steps and after the last step (``save_steps`` follows
      ``eval_steps``); the best and the last checkpoint are kept (``save_total_limit`` 2).
    - ``logging_steps`` is 25. ``logging_nan_inf_filter`` is off, since the filter synchronises with the device at
      every step; the trainer checks losses when it logs them and stops the run if one is not finite.
    - ``restore_callback_states_from_checkpoint`` is on: a resumed run must stop early where one without a break does.
    - ``hub_strategy`` is ``end``: ``push_to_hub`` publishes the whole run once, in one commit.
    - ``remove_unused_columns`` is off: the collator reads the rows unchanged. ``ddp_find_unused_parameters`` is off:
      every parameter is used. Batches are not dispatched: the positions of masked tokens cannot be sliced over
      processes. ``use_cpu`` is on if there is no accelerator: bf16 on CPU needs it.

    ``bf16`` and ``bf16_full_eval`` become False on a CPU that has no bfloat16 products, with a warning: torch would
    take many times as long as for float32.
    """

    output_dir: str = field(default="runs/csekit", metadata={"help": "The run's folder."})
    eval_strategy: str = field(default="steps", metadata={"help": "When the dev set is evaluated."})
    eval_steps: float | None = field(default=125, metadata={"help": "Steps between evaluations."})
    save_strategy: str = field(default="steps", metadata={"help": "When checkpoints are written."})
    save_steps: float | None = field(
        default=None, metadata={"help": "Steps between checkpoints; default: eval_steps."}
    )  # type: ignore[assignment]
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept: the best and the last."})
    logging_steps: float = field(default=25, metadata={"help": "Steps between log entries, each their average."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Off: the filter synchronises with the device at every step."}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "The collator reads rows as they are."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every parameter is used."})
    log_format: str = field(
        default="table",
        metadata={"help": "Log entries on the terminal: table (aligned columns) or json (a line each)."},
    )
    hub_strategy: str = field(default="end", metadata={"help": "Must be end: the whole run is published at the end."})
    allow_changed: list[str] | None = field(
        default=None,
        metadata={"help": "Settings that a resumed run may change, such as learning_rate or corpus."},
    )
    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "Early stopping goes on counting in a resumed run."}
    )
    accelerator_config: dict | str | None = field(  # type: ignore[type-arg]
        default_factory=lambda: {"dispatch_batches": False},
        metadata={"help": "Options of accelerate; batches are not dispatched."},
    )

    def __post_init__(self) -> None:
        if str(self.resume_from_checkpoint).lower() in ("true", "false"):  # the command line has only text
            self.resume_from_checkpoint = str(self.resume_from_checkpoint).lower() == "true"  # type: ignore[assignment]
        if self.resume_from_checkpoint == "":
            raise ValueError("resume_from_checkpoint must be True or a checkpoint's folder, got ''")
        if not str(self.output_dir).strip():
            raise ValueError(f"output_dir must be a folder, got {self.output_dir!r}")
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 500
        if self.log_format not in LOG_FORMATS:
            raise ValueError(f"log_format must be one of {', '.join(map(repr, LOG_FORMATS))}, got {self.log_format!r}")
        _check_numbers(self)
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        asked = [name for name in ("bf16", "bf16_full_eval") if getattr(self, name)]
        if asked and self.use_cpu and not computes_bf16("cpu"):
            tell_float32(asked[0])
            self.bf16 = self.bf16_full_eval = False  # type: ignore[assignment]
        elif self.bf16 and self.use_cpu:
            tell_no_tiles("bf16")
        _check_mappings(self)
        for old, new in _RENAMED.items():
            if hasattr(self, new) and getattr(self, new) is None:  # a version that has both names
                setattr(self, new, getattr(self, old))
        try:
            super().__post_init__()
        except (TypeError, AttributeError, KeyError, NotImplementedError) as error:
            raise ValueError(f"training arguments: {error}") from error
        _check_accelerator(self)
        _check_scheduler(self)
        _check_trackers(self)


def _check_trackers(args: RunTrainingArguments) -> None:
    """Raise ValueError for a tracker in ``report_to`` that is not installed."""
    installed = get_available_reporting_integrations()
    for name in args.report_to or ():
        if name in _TRACKERS and name not in installed:
            raise ValueError(f"report_to {name!r} needs {name}: pip install '{_TRACKERS[name]}'")


def _check_numbers(args: RunTrainingArguments) -> None:
    """Check the numbers that Transformers takes as they are: NaN, a negative rate or half a step.

    Raises:
        ValueError: a number that is not allowed.
    """
    for name, least in _WHOLE.items():
        if (value := getattr(args, name)) is not None:
            check_type(name, value, int)
            check_number(name, value, least, _LARGEST_SEED if name.endswith("seed") else 2**31 - 1)
    for name in (*_AT_LEAST_0, *_ABOVE_0):
        if (value := getattr(args, name)) is not None:
            check_number(name, value, 0, open_ends="low" if name in _ABOVE_0 else "")
    for name in _BELOW_1:
        check_number(name, getattr(args, name), 0, 1, open_ends="high")
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor must be 0, got {args.label_smoothing_factor}: no loss here is smoothed"
        )
    if args.neftune_noise_alpha is not None:
        raise ValueError(
            f"neftune_noise_alpha must be left out, got {args.neftune_noise_alpha}: it would divide the "
            "noise by the tokens of a whole packed batch, not of a text"
        )
    check_type("max_steps", args.max_steps, int)
    if args.max_steps != -1 and not 1 <= args.max_steps < 2**31:
        raise ValueError(f"max_steps must be at least 1, or -1 for num_train_epochs, got {args.max_steps}")


def _check_mappings(args: RunTrainingArguments) -> None:
    """Check the arguments that are mappings, JSON or files. Raises ValueError that names the argument."""
    for name in args._VALID_DICT_FIELDS:
        value = getattr(args, name)
        if isinstance(value, str) and value.startswith("{"):
            parse_json(value, name, once=True)
        elif isinstance(value, str) and value and not os.path.isfile(value):
            raise ValueError(f"{name} must be JSON in braces or a file, got {value!r}: no such file")
    if isinstance(args.accelerator_config, str):
        text = args.accelerator_config
        inline = text.startswith("{")
        config = parse_json(text, "accelerator_config", once=True) if inline else read_json(Path(text), once=True)
    else:
        config = args.accelerator_config
    allowed = {field.name for field in fields(AcceleratorConfig)}
    for name in config if isinstance(config, dict) else ():
        if name not in allowed:
            raise ValueError(f"accelerator_config must have fields of {', '.join(sorted(allowed))}, got {name!r}")


def _check_accelerator(args: RunTrainingArguments) -> None:
    """Keep batches from being dispatched. Raises ValueError for options that a contrast over processes, or an
    exact resume, forbids."""
    config: Any = args.accelerator_config
    config.dispatch_batches = bool(config.dispatch_batches)
    reasons = {
        "dispatch_batches": (False, "masked positions cannot be sliced over processes"),
        "even_batches": (True, "all processes need equally many rows"),
        "use_seedable_sampler": (True, "a resumed run would draw other batches"),
    }
    for name, (needed, reason) in reasons.items():
        if (value := getattr(config, name)) != needed:
            raise ValueError(f"accelerator_config must have {name} {needed}, got {value}: {reason}")
    if config.split_batches and args.world_size > 1:
        raise ValueError(
            "accelerator_config must have split_batches False with several processes, got True: "
            "per_device_train_batch_size is the batch of each process"
        )


def _check_scheduler(args: RunTrainingArguments) -> None:
    """Make the scheduler once. Raises ValueError for options that it does not take, or that it lacks."""
    kind, options = SchedulerType(args.lr_scheduler_type), args.lr_scheduler_kwargs
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    try:
        get_scheduler(kind, optimizer, 0, _ANY_STEPS, options)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"lr_scheduler_type {kind.value!r}: {error} (lr_scheduler_kwargs)") from error


def follows_score(args: TrainingArguments) -> bool:
    """Return True if the learning rate follows ``metric_for_best_model`` instead of the steps."""
    return SchedulerType(args.lr_scheduler_type).value in ("reduce_lr_on_plateau", "greedy")


@dataclass
class CSETrainingArguments(RunTrainingArguments):
    """Arguments of contrastive training: :class:`RunTrainingArguments` with further fields and SimCSE's settings.

    Defaults that differ from those of Transformers, and why:

    - ``learning_rate`` 3e-5, ``per_device_train_batch_size`` 64, ``num_train_epochs`` 1 are SimCSE's BERT-base
      setting. Its linear decay, no warm-up, no weight decay, clipping at 1.0 and seed 42 are Transformers' defaults.
    - The dev set is scored every 125 steps and the best checkpoint is restored at the end, as in the papers. A run of
      fewer than 1,000 steps is scored eight times, unless you set ``eval_steps`` or ``save_steps``. With
      ``save_steps`` alone it is scored every 125 steps if that is a multiple of 125, else as often as it is saved.
    - ``do_predict`` is on: the test sets are scored once, at the end. Turn it off in a search over settings.

    Two arguments of Transformers work differently:

    - ``bf16_full_eval`` embeds the dev set in bf16 while training evaluates it, which is faster and changes Spearman
      (×100) by some hundredths. It follows ``bf16`` unless you set it. The scores before and after training, and those
      of the test sets, are always of float32.
    - ``torch_compile`` compiles the encoders' layers instead of the whole model: once, for batches of all lengths.
      ``torch_compile_mode`` ``reduce-overhead`` and ``max-autotune`` record CUDA graphs and need ``compile_bucket``.
    """

    max_seq_length: int = field(
        default=32, metadata={"help": "Tokens of a training sentence, special ones included, a template's not."}
    )
    label_free_samples: int = field(
        default=256,
        metadata={"help": "Number of training sentences for the label-free criteria; 0: none."},
    )
    geometry: bool = field(
        default=False,
        metadata={"help": "Log alignment, uniformity and anisotropy of the dev set at every evaluation (geometry/…)."},
    )
    geometry_threshold: float = field(
        default=4.0, metadata={"help": "Dev pairs with a higher gold score are the positives of geometry/alignment."}
    )
    augmentation: str = field(
        default="none",
        metadata={
            "help": "The positive of a single sentence: none (dropout alone), its words changed (shuffle, delete, "
            "repeat, reverse), or a span of it masked (mask)."
        },
    )
    augmentation_rate: float | None = field(
        default=None,
        metadata={
            "help": "Share of the words that the augmentation changes; default: 0.2, for shuffle and reverse 1."
        },
    )
    augmentation_span: int | None = field(
        default=None,
        metadata={"help": "Characters that the augmentation mask hides; default: 5."},
    )
    mask_contrastive_input: bool = field(
        default=False,
        metadata={
            "help": "Let the contrast read the masked copies of the objective mlm (InforMin-CL's released code)."
        },
    )
    cache_chunk_size: int = field(
        default=0,
        metadata={
            "help": "Texts that a network processes at once, for batches that do not fit in memory: same loss and "
            "gradient, less memory, about a third more time. 0: the whole batch."
        },
    )
    compile_bucket: int = field(
        default=0,
        metadata={
            "help": "With torch_compile: fill packed batches up to a multiple of this many tokens, so that few CUDA "
            "graphs are recorded; 512 is a start. 0: off."
        },
    )

    teachers: list[str] | None = field(
        default=None,
        metadata={
            "help": "Frozen encoders for the objectives that read teachers or a guide: NAME or NAME:POOLING, or a "
            ".npy file with the vectors of the corpus's rows. Each row is encoded once, into OUTPUT_DIR/teachers."
        },
    )
    objective_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Peak learning rate of the objectives' own weights; default: learning_rate."},
    )
    objective_warmup_steps: int = field(
        default=0,
        metadata={
            "help": "Steps before training in which the objectives' own weights train alone, on the embeddings of the "
            "unchanged encoder; OUTPUT_DIR/objectives keeps them for --objectives_from."
        },
    )
    objectives_from: str | None = field(
        default=None,
        metadata={"help": "Folder with objectives' weights of another run (objectives.safetensors) to start from."},
    )

    eval_steps: float | None = field(
        default=None,
        metadata={
            "help": "Steps between evaluations; default: 125, or an eighth of a run of fewer than 1,000 steps, or "
            "save_steps if that is given and no multiple of 125."
        },
    )
    early_stopping_patience: int = field(
        default=0,
        metadata={"help": "Stop after this many evaluations in a row without a better score; 0: train to the end."},
    )
    bf16_full_eval: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Embed the dev set in bfloat16 during training; default: as training computes (bf16)."},
    )
    do_predict: bool = field(default=True, metadata={"help": "Score the test sets at the end."})
    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Sentences a step and process."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the corpus."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Restore the best checkpoint at the end."})
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": "stsb_spearman, dev_spearman, transfer_accuracy, or one without labels: alignment, uniformity, "
            "effective_rank. Default: the score of the transfer tasks or the dev set; without both, the last "
            "checkpoint is kept."
        },
    )

    def __post_init__(self) -> None:
        numbers = (
            "max_seq_length",
            "label_free_samples",
            "cache_chunk_size",
            "compile_bucket",
            "early_stopping_patience",
        )
        for name in numbers:
            check_type(name, getattr(self, name), int)
        check_type("geometry_threshold", self.geometry_threshold, float)
        if self.max_seq_length < 3:
            raise ValueError(f"max_seq_length must be at least 3, got {self.max_seq_length}")
        if self.label_free_samples < 0 or self.label_free_samples == 1:
            raise ValueError(f"label_free_samples must be 0 or at least 2, got {self.label_free_samples}")
        if self.cache_chunk_size < 0:
            raise ValueError(f"cache_chunk_size must be 0 (off) or a number of texts, got {self.cache_chunk_size}")
        if self.early_stopping_patience < 0:
            raise ValueError(f"early_stopping_patience must be at least 0, got {self.early_stopping_patience}")
        rate = self.objective_learning_rate
        if rate is not None and not 0 <= rate < math.inf:
            raise ValueError(f"objective_learning_rate must be at least 0 and finite, got {rate}")
        if self.objective_warmup_steps < 0:
            raise ValueError(f"objective_warmup_steps must be at least 0, got {self.objective_warmup_steps}")
        if self.objective_warmup_steps and self.objectives_from is not None:
            raise ValueError("give objective_warmup_steps or objectives_from, got both")
        if self.train_sampling_strategy not in ("random", "sequential"):
            raise ValueError(
                f"train_sampling_strategy must be 'random' or 'sequential', got {self.train_sampling_strategy!r}, "
                "which needs the tokens of all rows before training"
            )
        make_augmentation(  # raises ValueError for wrong values
            self.augmentation, self.augmentation_rate, self.augmentation_span
        )
        if self.bf16_full_eval is None:
            self.bf16_full_eval = bool(self.bf16)
        self.spread_evaluations = self.eval_steps is None and self.save_steps is None
        if self.eval_steps is None:  # checkpoints are the best only where they were scored
            saved = self.save_steps if isinstance(self.save_steps, (int, float)) else 0
            self.eval_steps = saved if saved > 0 and saved % EVAL_STEPS else EVAL_STEPS
        self.select_last = (
            self.metric_for_best_model is None
        )  # the trainer may choose a metric once it has the dev set
        super().__post_init__()
        _check_compile(self)


def _check_compile(args: CSETrainingArguments) -> None:
    """Check the settings of ``torch_compile`` that depend on each other. Raises ValueError."""
    bucket, mode = args.compile_bucket, args.torch_compile_mode
    if bucket < 0 or (bucket and not args.torch_compile):
        raise ValueError(f"compile_bucket must be 0 (off), or a number of tokens with torch_compile, got {bucket}")
    if mode not in GRAPH_MODES:
        return
    if not bucket:
        raise ValueError(
            f"compile_bucket must be a number of tokens, such as 512, with torch_compile_mode {mode!r}, which records "
            "a CUDA graph for each size of a batch, got 0"
        )
    for name, needed in (
        ("gradient_accumulation_steps", 1),
        ("cache_chunk_size", 0),
        ("gradient_checkpointing", False),
    ):
        if (value := getattr(args, name)) != needed:
            raise ValueError(
                f"{name} must be {needed} with torch_compile_mode {mode!r}, whose CUDA graphs reuse the memory of "
                f"each step, got {value}"
            )


@dataclass
class PretrainingArguments(RunTrainingArguments):
    """Arguments of pre-training (stage 1 of InfoCSE, or a plain masked LM): :class:`RunTrainingArguments` with three
    further fields and the paper's settings.

    Defaults that differ from those of Transformers, and why:

    - ``learning_rate`` 1e-4, ``weight_decay`` 0.01, ``warmup_steps`` 0.1 (a share), ``num_train_epochs`` 8: InfoCSE's
      §4.2 and Condenser's, on which it builds. Their batch is 1024 blocks over all processes; 32 fits on any device.
    - The held-out text is scored every 500 steps; the last checkpoint is the result.
    """

    block_length: int = field(default=128, metadata={"help": "Tokens of a block of packed text, [CLS] included."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of words (or tokens) to predict."})
    whole_word_masking: bool = field(default=True, metadata={"help": "Mask all pieces of a word, or none."})

    learning_rate: float = field(default=1e-4, metadata={"help": "Peak learning rate."})
    weight_decay: float = field(
        default=0.01, metadata={"help": "Weight decay of matrices; biases and norms do not decay."}
    )
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up; below 1 a share of all steps."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Blocks a step and process."})
    num_train_epochs: float = field(default=8.0, metadata={"help": "Passes over the corpus."})
    eval_steps: float | None = field(default=500, metadata={"help": "Steps between evaluations."})

    def __post_init__(self) -> None:
        check_type("block_length", self.block_length, int)
        if self.block_length < 3:
            raise ValueError(f"block_length must be at least 3, got {self.block_length}")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability must lie between 0 and 1, got {self.mlm_probability}")
        super().__post_init__()
