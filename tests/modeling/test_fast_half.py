"""16-bit states between the layers: less is kept, the gradients are as near to float32's as autocast's own."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from csekit.modeling import CSEModel, SimCSEModel
from csekit.modeling.backbone import layer_list
from csekit.modeling.fast_half import products_speedup
from csekit.modeling.fast_packing import run_encoder

#: Families whose layers are shared, or which a norm follows, keep autocast's states.
PLAIN = {"bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "deberta-v2"}


@pytest.fixture
def model(family: str, checkpoint: Any) -> CSEModel:
    return SimCSEModel.from_backbone(checkpoint(family), dropout=0.0).train()


def batch(rows: int = 6, tokens: int = 9) -> tuple[Tensor, Tensor]:
    lengths = torch.arange(rows) % tokens + 1
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    return torch.randint(8, 90, (rows, tokens)), mask


def first_states(model: CSEModel, **options: Any) -> tuple[torch.dtype, Any]:
    """The type in which the second layer gets its states, and the encoder's output."""
    seen: list[torch.dtype] = []
    second = layer_list(model.backbone)[1]
    handle = second.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].dtype))
    ids, mask = batch()
    output = run_encoder(model.backbone, mask, ids, **options)
    handle.remove()
    return seen[0], output


@pytest.mark.parametrize("trains", [True, False])
def test_states_between_the_layers_have_16_bits(family: str, model: CSEModel, trains: bool) -> None:
    if family not in PLAIN:
        pytest.skip(f"{family} has no plain list of layers")
    with torch.set_grad_enabled(trains), torch.autocast("cpu", torch.bfloat16):
        dtype, output = first_states(model, output_hidden_states=True)
    assert dtype == torch.bfloat16
    assert {states.dtype for states in (output.last_hidden_state, *output.hidden_states)} == {torch.float32}


@pytest.mark.parametrize("why", ["float32", "switch", "gradient checkpointing"])
def test_where_they_stay_as_they_are(why: str, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).train()
    if why == "switch":
        monkeypatch.setenv("CSEKIT_FAST", "0")
    if why == "gradient checkpointing":
        model.gradient_checkpointing_enable()
    with torch.autocast("cpu", torch.bfloat16, enabled=why != "float32"):
        assert first_states(model)[0] == torch.float32


def gradients(model: CSEModel, bf16: bool) -> Tensor:
    """The gradient of a loss in all weights, one vector."""
    torch.manual_seed(0)
    ids, mask = batch()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        states = run_encoder(model.backbone, mask, ids).last_hidden_state
    weights = torch.randn_like(states)
    (states * weights * mask.unsqueeze(-1)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.backbone.parameters() if p.grad is not None])


def test_gradients_are_as_near_as_those_of_autocast(
    family: str, model: CSEModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, ours = gradients(copy.deepcopy(model), bf16=False), gradients(copy.deepcopy(model), bf16=True)
    monkeypatch.setattr("csekit.modeling.fast_half._first_layer", lambda model: None)
    theirs = gradients(copy.deepcopy(model), bf16=True)
    if family in PLAIN - {"electra"}:  # a linear map before its first layer gives 16 bits anyway
        assert not torch.equal(ours, theirs)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm()
    assert (theirs - exact).norm() < 0.05 * exact.norm()


def kept_bytes(run: Callable[[], Any]) -> int:
    """Bytes of the different tensors that are kept for the backward pass."""
    kept: dict[int, tuple[Tensor, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor, tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run()
    assert output.last_hidden_state.requires_grad
    return sum(size for _, size in kept.values())


def test_less_is_kept(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer keeps half of both norms' inputs, and one 16-bit input of linear maps instead of four."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).train()
    ids, mask = batch(rows=16, tokens=16)
    hidden, layers = model.backbone.config.hidden_size, model.backbone.config.num_hidden_layers

    def run() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return run_encoder(model.backbone, mask, ids)

    ours = kept_bytes(run)
    monkeypatch.setattr("csekit.modeling.fast_half._first_layer", lambda model: None)
    saved = kept_bytes(run) - ours
    tokens = int(mask.sum())
    assert saved >= (layers - 1) * tokens * hidden * (2 * 2 + 2 * 2)


def test_norms_of_16_bit_states_compute_in_float32() -> None:
    norm, states = nn.LayerNorm(64), torch.randn(5, 64).bfloat16()
    torch.testing.assert_close(norm(states), norm(states.float()).bfloat16())


def test_measuring_products_draws_no_random_numbers() -> None:
    """It comes before a training whose seed counts."""
    before = torch.get_rng_state()
    assert 0 < products_speedup(size=64, turns=2) < float("inf")
    assert torch.equal(torch.get_rng_state(), before)
