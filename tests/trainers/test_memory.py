"""A training that cannot fit into memory is refused, and one that can is not."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from csekit.modeling import CSEConfig, CSEModel
from csekit.trainers import memory


def test_a_run_that_cannot_fit_is_one_line_before_it_starts(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 200_000)
    with pytest.raises(
        ValueError, match=r"needs at least .* GB of memory .* cpu has 0.0 GB: lower per_device_train_b"
    ):
        small_run(tmp_path / "run")
    assert not (tmp_path / "run" / "training").exists()
    monkeypatch.undo()
    assert small_run(tmp_path / "run").train().global_step > 0


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "mpnet", "modernbert"])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_bound_is_below_what_the_encoder_keeps(family: str, bf16: bool) -> None:
    """All that autograd keeps for the backward pass is counted, weights left out."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256}
    config = AutoConfig.for_model(family, vocab_size=99, pad_token_id=0, **sizes)
    model = CSEModel(CSEConfig(encoder_config=config)).train()
    ids = torch.randint(5, 99, (8, 1, 20))
    weights, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", enabled=bf16):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    args = SimpleNamespace(
        per_device_train_batch_size=8, cache_chunk_size=0, gradient_checkpointing=False, bf16=bf16, fp16=False
    )
    bound = memory.bytes_of_activations(model, args, columns=1, tokens=20)
    assert output.loss.requires_grad
    assert 0 < bound <= sum(kept.values())


@pytest.mark.parametrize(("device", "dense"), [("cuda", True), ("cpu", False)])
def test_the_states_are_those_of_adamw(device: str, dense: bool) -> None:
    """On a CPU without the embeddings, which may have a gradient of a few rows."""
    config = AutoConfig.for_model("bert", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    model = CSEModel(CSEConfig(encoder_config=config)).train()
    optimiser = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 9, (4, 1, 5))
    model(input_ids=ids, attention_mask=torch.ones_like(ids)).loss.backward()
    optimiser.step()
    counted = [p for name, p in model.named_parameters() if dense or not re.search("_embeddings.weight$", name)]
    moments = [optimiser.state[p][name] for p in counted if p in optimiser.state for name in ("exp_avg", "exp_avg_sq")]
    gradients = [p.grad for p in counted if p.grad is not None]
    args = SimpleNamespace(device=torch.device(device), optim="adamw_torch_fused")
    held, of_gradients = memory.bytes_of_states(model, args)
    weights = sum(4 * p.numel() for p in model.parameters()) if device == "cuda" else 0
    assert held == weights + sum(4 * tensor.numel() for tensor in moments)
    assert of_gradients == sum(4 * tensor.numel() for tensor in gradients)
    args.optim = "adafactor"
    assert memory.bytes_of_states(model, args) == (weights, of_gradients)


@pytest.mark.parametrize("changed", [{"optim": "sgd"}, {"gradient_accumulation_steps": 1}])
def test_a_run_that_fits_is_not_refused(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """An optimiser without moments needs no room for them, and gradients take that of activations."""
    needed = []

    def no_room(device: torch.device) -> int:
        needed.append(True)
        return -1

    def bound(**given: Any) -> int:
        monkeypatch.setattr(memory, "free_bytes", no_room)
        monkeypatch.setattr(memory, "_gb", lambda size: f"{int(size)} bytes")
        with pytest.raises(ValueError, match="needs at least") as error:
            small_run(tmp_path / f"bound-{len(needed)}", **given)
        return int(re.search(r"at least (\d+) bytes", str(error.value))[1])

    usual = {"optim": "adamw_torch", "gradient_accumulation_steps": 2}
    more, less = bound(**usual), bound(**usual | changed)
    assert less < more
    monkeypatch.setattr(memory, "free_bytes", lambda device: less)
    assert small_run(tmp_path / "fits", **usual | changed).train().global_step > 0
