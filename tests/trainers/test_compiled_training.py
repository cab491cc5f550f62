"""``--torch_compile``: layers are compiled once for a whole run, and nothing else is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_compiled_run(small_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", dev=True, torch_compile=True, torch_compile_backend="eager")
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
