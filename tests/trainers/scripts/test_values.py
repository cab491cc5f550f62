"""Values of training arguments that used to end in a traceback, or in a training with nonsense: one line each."""

from collections.abc import Callable
from pathlib import Path

import pytest

NUMBERS = {
    "learning_rate": ("nan", "-0.001", "inf"),
    "num_train_epochs": ("nan", "-1", "0"),
    "weight_decay": ("nan", "-0.1"),
    "max_grad_norm": ("nan", "-1"),
    "warmup_steps": ("nan", "-1"),
    "adam_beta1": ("nan", "1.5", "-0.1"),
    "adam_beta2": ("1",),
    "adam_epsilon": ("nan", "-1"),
    "label_smoothing_factor": ("2", "nan"),
    "gradient_accumulation_steps": ("0", "-1"),
    "per_device_train_batch_size": ("0", "-8"),
    "dataloader_num_workers": ("-1",),
    "eval_steps": ("nan", "-5"),
    "logging_steps": ("nan", "-1"),
    "save_total_limit": ("0",),
    "seed": ("-1", "5000000000"),
    "max_steps": ("0", "-7", "1_0", "٣"),
    "temperature": ("nan", "-1", "inf", "0"),
    "contrastive_weight": ("nan", "-1"),
    "hard_negative_weight": ("nan",),
    "mlm_weight": ("nan", "-0.1", "inf"),
    "dropout": ("nan", "-0.1", "1", "2"),
    "geometry_threshold": ("nan",),
    "augmentation_rate": ("nan", "2"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NUMBERS.items() for value in values])
def test_a_number_that_is_nonsense(started: Callable[..., str], backbone: Path, name: str, value: str) -> None:
    line = started("run_unsup.py", backbone, f"--{name}={value}", "--augmentation", "delete")
    assert name in line
    assert value.rstrip("0").rstrip("-+e.") in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume_from_checkpoint", "nowhere"], "resume_from_checkpoint must be True or a checkpoint's folder"),
        (["--resume_from_checkpoint", ""], "resume_from_checkpoint must be True or a checkpoint's folder, got ''"),
        (["--config", ""], "--config must be a preset's name or file, got ''"),
        (["--output_dir", ""], "output_dir must be a folder, got ''"),
        (["--rtd_weight", "1", "--rtd_generator", ""], "rtd_generator must be a masked LM's name or folder, got ''"),
        (["--layers", "0", "0"], "layers must differ, got [0, 0]"),
        (["--text_form", "loud"], "text_form must be 'tokenized' or 'raw', got 'loud'"),
        (["--dev_columns", "a", "a", "a"], "dev_columns must name 3 different columns"),
        (["--columns", "text", "text"], "columns must be different"),
        (["--label_free_samples", "0", "--metric_for_best_model", "x"], "metric_for_best_model must be left out"),
        (["--optim", "best"], "best"),
        (["--lr_scheduler_type", "up"], "up"),
        (["--report_to", "nobody"], "nobody"),
        (["--eval_strategy", "often"], "often"),
        (["--lr_scheduler_kwargs", '{"a": '], "lr_scheduler_kwargs"),
        (["--lr_scheduler_kwargs", '{"a": 1}'], "a"),
        (["--accelerator_config", '{"nothing": 1}'], "accelerator_config"),
        (
            ["--lr_scheduler_type", "polynomial", "--lr_scheduler_kwargs", '{"power": 1, "power": 5}'],
            "lr_scheduler_kwargs: 'power' must be given once in an object, got it twice",
        ),
        (["--accelerator_config", "nowhere.json"], "nowhere.json"),
        (["--deepspeed", "nowhere.json"], ""),
        (["--fsdp", "wide"], ""),
        (["--optim_args", "a"], ""),
        (["--dataloader_prefetch_factor", "2"], "dataloader_prefetch_factor"),
        (["--torch_compile_backend", "none at all"], "DynamoBackend"),
        (["--log_level", "loud"], "loud"),
        (["--debug", "deep"], "deep"),
        (["--ddp_backend", "smoke"], ""),
    ],
)
def test_a_value_that_cannot_be(started: Callable[..., str], backbone: Path, words: list[str], message: str) -> None:
    assert message in started("run_unsup.py", backbone, *words)


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--temperature", "1e-42"], "loss term 'contrastive' is nan", 1),
        (["--method", "informin", "--reconstruction_weight", "1e39"], "loss term 'reconstruction' is inf", 1),
        (["--learning_rate", "1e38", "--max_steps", "3"], "finite", 2),  # the embeddings of the dev score
    ],
)
def test_a_loss_that_overflows_is_one_line(
    started: Callable[..., str], backbone: Path, words: list[str], message: str, code: int
) -> None:
    assert message in started("run_unsup.py", backbone, *words, "--logging_steps", "1", code=code)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mlm_probability", "nan"], "mlm_probability"),
        (["--heldout_share", "nan"], "heldout_share"),
        (["--block_length", "0"], "block_length"),
        (["--learning_rate", "nan"], "learning_rate"),
        (["--head_layers", "-1"], "head_layers"),
        (["--split_layer", "-1"], "split_layer"),
        (["--objective", "nothing"], "objective"),
    ],
)
def test_values_of_pre_training(started: Callable[..., str], backbone: Path, words: list[str], message: str) -> None:
    assert message in started("run_pretrain.py", backbone, *words)
