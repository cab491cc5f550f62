"""``--torch_compile``: layers are compiled once for a whole run, and nothing else is."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from csekit.trainers import CSETrainingArguments


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [0, 64])
def test_a_compiled_run(small_run: Callable[..., Any], tmp_path: Path, bucket: int) -> None:
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "compile_bucket": bucket}
    trainer = small_run(tmp_path / "run", dev=True, **compiled)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    # the dev set, which the trainer embeds meanwhile, has no graph of its own
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    saved = load_file(tmp_path / "run" / "training" / "checkpoint-5" / "model.safetensors")
    assert saved.keys() == before.keys()
    assert any(not torch.equal(saved[name], before[name]) for name in saved if "encoder.layer.0" in name)
    assert type(trainer.model_wrapped) is type(trainer.model)
    assert any("eval_dev_spearman" in entry for entry in trainer.state.log_history)


GRAPHS = {"torch_compile_mode": "reduce-overhead", "compile_bucket": 512}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"compile_bucket": -1, "torch_compile": True}, r"compile_bucket must be 0 \(off\), or .*, got -1"),
        ({"compile_bucket": 512}, "compile_bucket must be 0 .* a number of tokens with torch_compile, got 512"),
        ({"compile_bucket": 1.5}, "compile_bucket must be"),
        (
            {"torch_compile_mode": "reduce-overhead"},
            "compile_bucket must be a number of tokens, such as 512, .* got 0",
        ),
        ({"torch_compile_mode": "max-autotune"}, "with torch_compile_mode 'max-autotune', which records"),
        (GRAPHS | {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1 with .* got 2"),
        (GRAPHS | {"cache_chunk_size": 8}, "cache_chunk_size must be 0 with torch_compile_mode 'reduce-overhead'"),
        (GRAPHS | {"gradient_checkpointing": True}, "gradient_checkpointing must be False with .* got True"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        CSETrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **given)


def test_settings_for_graphs(tmp_path: Path) -> None:
    args = CSETrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **GRAPHS)
    assert args.torch_compile and args.compile_bucket == 512


@pytest.mark.gpu
def test_graphs_train(small_run: Callable[..., Any], tmp_path: Path) -> None:
    """A run with CUDA graphs, evaluations between its steps: finite terms, and every layer moved."""
    compiled = GRAPHS | {"torch_compile": True, "bf16": True, "use_cpu": False}
    trainer = small_run(tmp_path / "run", dev=True, **compiled)
    before = {name: value.detach().cpu().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses and all(math.isfinite(loss) for loss in losses)
    after = {name: value.detach().cpu() for name, value in trainer.model.named_parameters()}
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in before if "encoder.layer.0" in name)
