"""Training arguments: Transformers' own, with the defaults of the papers."""

from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments


@dataclass
class CSETrainingArguments(TrainingArguments):
    """``TrainingArguments`` with two own fields and other defaults. ``output_dir`` is the run's folder: its root
    becomes the exported encoder, ``training/`` holds checkpoints and trainer state.

    Defaults that differ, and why:

    - ``learning_rate`` 3e-5, ``per_device_train_batch_size`` 64, ``num_train_epochs`` 1: SimCSE's BERT-base setting;
      linear decay, no warm-up, no weight decay, clipping at 1.0 and seed 42 are Transformers' defaults already.
    - evaluation and checkpoint every 125 steps and after the last one, the best by STS-B dev restored at the end,
      best and last kept (``save_total_limit`` 2): the papers' selection. ``save_steps`` follows ``eval_steps``.
    - ``logging_steps`` 25, ``logging_nan_inf_filter`` off: the filter waits for the device at every step; a loss that
      is not finite is found when it is logged, and stops the run.
    - ``do_predict``: the test sets are scored once, at the end. A search over settings turns it off.
    - ``remove_unused_columns`` off (the collator reads rows as they are), ``ddp_find_unused_parameters`` off (there
      are none), no dispatching of batches (positions of masked tokens cannot be sliced over processes), ``use_cpu``
      where there is no accelerator (bf16 on CPU asks for it).
    """

    max_seq_length: int = field(default=32, metadata={"help": "Tokens of a training sentence, special ones included."})
    label_free_samples: int = field(
        default=256,
        metadata={"help": "Training sentences that the label-free criteria are computed on; 0: none."},
    )

    do_predict: bool = field(default=True, metadata={"help": "Score the test sets at the end."})
    output_dir: str = field(default="runs/csekit", metadata={"help": "The run's folder."})
    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Sentences a step and process."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the corpus."})
    eval_strategy: str = field(default="steps", metadata={"help": "When the dev set is evaluated."})
    eval_steps: float | None = field(default=125, metadata={"help": "Steps between evaluations."})
    save_strategy: str = field(default="steps", metadata={"help": "When checkpoints are written."})
    save_steps: float | None = field(
        default=None, metadata={"help": "Steps between checkpoints; default: eval_steps."}
    )  # type: ignore[assignment]
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept: the best and the last."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Restore the best checkpoint at the end."})
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": "stsb_spearman, dev_spearman, or one without labels: alignment, uniformity, effective_rank. "
            "Default: the dev set's Spearman where there is a dev set, else the last checkpoint is kept."
        },
    )
    logging_steps: float = field(default=25, metadata={"help": "Steps between log entries, each their average."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Would wait for the device at every step."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "The collator reads rows as they are."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every parameter is used."})
    accelerator_config: dict | str | None = field(
        default_factory=lambda: {"dispatch_batches": False}, metadata={"help": "As in Transformers."}
    )

    def __post_init__(self) -> None:
        if self.max_seq_length < 3:
            raise ValueError(f"max_seq_length must be at least 3, got {self.max_seq_length}")
        if self.label_free_samples < 0 or self.label_free_samples == 1:
            raise ValueError(f"label_free_samples must be 0 or at least 2, got {self.label_free_samples}")
        if str(self.resume_from_checkpoint).lower() in ("true", "false"):  # the command line has only text
            self.resume_from_checkpoint = str(self.resume_from_checkpoint).lower() == "true"  # type: ignore[assignment]
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 500
        self.select_last = self.metric_for_best_model is None  # until the trainer knows the dev set
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        super().__post_init__()
