"""Weights converted together: autocast's values and gradients, bit for bit."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from csekit.modeling import METHODS, CSEModel, fast_weights
from csekit.modeling.fast_compile import compile_layers
from csekit.modeling.fast_weights import weights_converted

CPU = torch.device("cpu")
MSSE = {"pooling": "mask", "prompt_template": '"{sentence}" means {mask}.'}
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "simcse": ("simcse", {}),
    "infocse": ("infocse", {"aux_mlm_head_init": "top_layers"}),
    "unfrozen": ("infocse", {"aux_mlm_head_init": "top_layers", "aux_mlm_detach": False}),
    "diffcse": ("diffcse", {}),
    "msse": ("msse", MSSE),
    "mlm": ("joint", {"mlm_weight": 0.5}),
    "lora": ("simcse", {"lora": {"r": 2}}),
}


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert on CPU, too."""
    monkeypatch.setattr(fast_weights, "converts", lambda _: True)


def step(model: CSEModel, batch: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    model.zero_grad()
    torch.manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch, return_loss=True).loss
    loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()} | {"loss": loss}


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that two steps have the same loss and gradients, bit for bit."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert (value is None) == (found[key] is None), key
        assert value is None or (torch.equal(value, found[key]) and value.dtype == found[key].dtype), key


@pytest.mark.parametrize("name", STEPS)
def test_losses_and_gradients_are_those_of_autocast(
    name: str, checkpoint: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "lora":
        pytest.importorskip("peft", reason="needs the extra 'lora'")
    method, fields = STEPS[name]
    torch.manual_seed(0)
    model = METHODS[method].from_backbone(checkpoint("bert"), temperature=0.2, **fields).train()
    twin, batch, read = copy.deepcopy(model), batch_of(model), []
    watched = next(module for module in twin.backbone.modules() if type(module) is nn.Linear)
    watched.register_forward_pre_hook(lambda module, _: read.append(module.weight.dtype))
    expected = step(model, batch)
    monkeypatch.setattr(fast_weights, "converts", lambda _: True)
    for _ in range(2):
        found = step(twin, batch)
        same(found, expected)
    assert set(read) == {torch.bfloat16}
    assert isinstance(watched.weight, nn.Parameter) and watched.weight.dtype == torch.float32


@pytest.mark.parametrize("lora", [None, {"r": 2, "init_lora_weights": False}])
def test_a_copy_that_follows_the_encoder_in_the_step(
    lora: dict[str, Any] | None, checkpoint: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's copy encoded with what it held before it followed, random weights at first; with adapters a step
    ended in an error of types."""
    if lora is not None:
        pytest.importorskip("peft", reason="needs the extra 'lora'")
    torch.manual_seed(0)
    fields = {"temperature": 0.2, "queue_weight": 1.0, "queue_size": 16, "lora": lora}
    model = METHODS["joint"].from_backbone(checkpoint("bert"), **fields).train()
    twin, batch = copy.deepcopy(model), batch_of(model)
    expected = [step(model, batch, seed) for seed in range(2)]
    monkeypatch.setattr(fast_weights, "converts", lambda _: True)
    for seed in range(2):
        same(step(twin, batch, seed), expected[seed])
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_families(family: str, checkpoint: Any, make_batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = METHODS["simcse"].from_backbone(checkpoint(family), temperature=0.2).train()
    batch = make_batch(4, 1, 9)
    expected = step(model, batch)
    monkeypatch.setattr(fast_weights, "converts", lambda _: True)
    found = step(model, batch)
    same(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again(reentrant: bool, checkpoint: Any, make_batch: Any, monkeypatch: Any) -> None:
    """Gradient checkpointing computes layers in the backward pass, when the parameters are back."""
    torch.manual_seed(0)
    model = METHODS["simcse"].from_backbone(checkpoint("bert"), temperature=0.2).train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = make_batch(4, 1, 9)
    expected = step(model, batch)
    monkeypatch.setattr(fast_weights, "converts", lambda _: True)
    found = step(model, batch)
    same(found, expected)


@pytest.mark.usefixtures("everywhere")
def test_without_autocast_and_after_an_error_weights_are_the_parameters(checkpoint: Any) -> None:
    model = METHODS["simcse"].from_backbone(checkpoint("bert")).train()
    linear = next(module for module in model.backbone.modules() if type(module) is nn.Linear)
    with weights_converted(model, CPU):
        assert linear.weight.dtype == torch.float32
    before = {name: value.clone() for name, value in model.state_dict().items()}
    autocast = torch.autocast("cpu", torch.bfloat16)
    with pytest.raises(ValueError, match="in the middle"), autocast, weights_converted(model, CPU):
        assert linear.weight.dtype == torch.bfloat16
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        raise ValueError("in the middle")
    assert linear.weight is linear._parameters["weight"]


@pytest.mark.usefixtures("everywhere")
def test_an_error_while_weights_are_converted_leaves_the_parameters(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained weights were in their places when the frozen ones found no memory."""
    model = METHODS["infocse"].from_backbone(checkpoint("bert"), aux_mlm_head_init="top_layers").train()
    copies, calls = fast_weights._copies, []

    def full(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return copies(*arguments)

    monkeypatch.setattr(fast_weights, "_copies", full)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError), autocast, weights_converted(model, CPU):
        pass
    assert len(calls) == 2
    assert all(m.weight is m._parameters["weight"] for m in model.modules() if type(m) is nn.Linear)


@pytest.mark.usefixtures("everywhere")
def test_several_processes_leave_it_to_autocast(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = METHODS["simcse"].from_backbone(checkpoint("bert")).train()
    linear = next(module for module in model.backbone.modules() if type(module) is nn.Linear)
    monkeypatch.setattr(fast_weights, "world_size", lambda: 2)
    with torch.autocast("cpu", torch.bfloat16), weights_converted(model, CPU):
        assert linear.weight.dtype == torch.float32


@pytest.mark.usefixtures("everywhere")
def test_compiled_layers_are_left_to_autocast(checkpoint: Any) -> None:
    model = METHODS["simcse"].from_backbone(checkpoint("bert")).train()
    layers = [module for module in model.backbone.modules() if type(module) is nn.Linear]
    for expected in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", torch.bfloat16), weights_converted(model, CPU):
            assert layers[0].weight.dtype == expected
        compile_layers(model, backend="eager")
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["simcse", "infocse", "diffcse", "msse", "mlm"])
def test_on_a_gpu(name: str, checkpoint: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout: equal up to the order of sums on the device."""
    method, fields = STEPS[name]
    torch.manual_seed(0)
    model = METHODS[method].from_backbone(checkpoint("bert"), temperature=0.2, dropout=0.0, **fields).train().cuda()
    batch = {k: v.cuda() if torch.is_tensor(v) else v for k, v in batch_of(model).items()}
    found = {}
    for converts in (False, True):
        monkeypatch.setattr(fast_weights, "converts", lambda _, answer=converts: answer)
        model.zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch, return_loss=True).loss
        loss.backward()
        found[converts] = [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    torch.testing.assert_close(found[True], found[False], rtol=1e-2, atol=1e-3)
