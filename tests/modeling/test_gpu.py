"""On a GPU: the CPU's losses and gradients, finite steps in bf16, no waiting for the device, CUDA graphs."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from csekit.modeling import METHODS, CSEModel, SimCSEModel
from csekit.modeling.fast_compile import begin_step, compile_layers, uncompiled

DEVICE = "cuda"
MSSE = {"pooling": "mask", "prompt_template": '"{sentence}" means {mask}.'}
#: Method, fields, and the fields in which nothing is drawn.
STEPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "simcse": ("simcse", {}, {}),
    "informin": ("informin", {}, {}),
    "infocse": ("infocse", {"aux_mlm_head_init": "top_layers"}, {}),
    "diffcse": ("diffcse", {}, {"rtd_edit_sampling": "argmax"}),
    "msse": ("msse", MSSE, {"icm_decoder_dropout": 0.0, "icm_element_dropout": 0.0}),
    "mlm": ("joint", {"mlm_weight": 0.5}, {}),
    "edited": ("joint", {"edited_weight": 0.5}, {"edited_edit_sampling": "argmax"}),
    "conditional_mlm": ("joint", {"conditional_mlm_weight": 0.5}, {}),
    "corrective_lm": ("joint", {"corrective_lm_weight": 0.5}, {"corrective_lm_edit_sampling": "argmax"}),
}


def build(checkpoint: Any, name: str, **more: Any) -> tuple[CSEModel, CSEModel]:
    """A method's model in training mode, and its copy on the GPU."""
    method, fields, _ = STEPS[name]
    torch.manual_seed(0)
    model = METHODS[method].from_backbone(checkpoint("bert"), temperature=0.2, **fields, **more).train()
    return model, copy.deepcopy(model).to(DEVICE)


def moved(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch on the GPU; its token counts stay on the host."""
    return {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in batch.items()}


def same_gradients(model: CSEModel, twin: CSEModel, rtol: float, atol: float) -> None:
    for (name, expected), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None), name
        if expected.grad is not None:
            grads = found.grad.to(expected.grad.device), expected.grad
            torch.testing.assert_close(*grads, rtol=rtol, atol=atol, msg=lambda told, name=name: f"{name}: {told}")


@contextmanager
def no_waiting() -> Iterator[None]:
    """Operations that wait for the device raise an error inside the context."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_all_methods_are_here() -> None:
    assert {method for method, _, _ in STEPS.values()} == set(METHODS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_losses_and_gradients_are_those_of_the_cpu(name: str, checkpoint: Any, batch_of: Any) -> None:
    """In fp32, with nothing drawn."""
    model, twin = build(checkpoint, name, dropout=0.0, **STEPS[name][2])
    batch = batch_of(model)
    expected, found = model(**batch, return_loss=True), twin(**moved(batch), return_loss=True)
    for output in (expected, found):
        output.loss.backward()
    for terms, others in ((found.loss_dict, expected.loss_dict), (found.metrics, expected.metrics)):
        on_cpu = {key: value.cpu() for key, value in terms.items()}
        torch.testing.assert_close(on_cpu, dict(others), rtol=1e-3, atol=1e-4)
    same_gradients(model, twin, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_a_step_in_bf16(name: str, checkpoint: Any, batch_of: Any) -> None:
    """With dropout: every term and every weight stays finite, and weights move."""
    model, twin = build(checkpoint, name)
    batch = moved(batch_of(model))
    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    for _ in range(2):
        with torch.autocast(DEVICE, torch.bfloat16):
            output = twin(**batch, return_loss=True)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(term.isfinite() for term in output.loss_dict.values()), output.loss_dict
    assert all(parameter.isfinite().all() for parameter in trained)
    assert sum(not torch.equal(*pair) for pair in zip(before, trained, strict=True)) > 0.8 * len(trained)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_wait(name: str, precision: str, checkpoint: Any, batch_of: Any) -> None:
    """The counts came with the batch. The first step may wait: libraries start."""
    model, twin = build(checkpoint, name)
    batch = moved(batch_of(model))
    for waiting in (True, False):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
            if waiting:
                twin(**batch, return_loss=True).loss.backward()
                continue
            with no_waiting():
                twin(**batch, return_loss=True).loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled_steps(mode: str | None, checkpoint: Any, make_batch: Any) -> None:
    """Losses and gradients of plain steps, over batches of several lengths, with an evaluation between two of them."""
    torch._dynamo.reset()
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).train().to(DEVICE)
    twin = copy.deepcopy(model)
    compile_layers(twin, mode=mode, bucket=64 if mode else 0)
    for number, length in enumerate((9, 12, 5, 9, 12, 9)):
        batch = moved(make_batch(6, 1, length, seed=number))
        begin_step(mode)
        losses = []
        for each in (model, twin):
            each.zero_grad()
            losses.append(each(**batch, return_loss=True).loss)
            losses[-1].backward()
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
        same_gradients(model, twin, rtol=1e-3, atol=1e-4)
        if number == 2:
            plain = {key: value.squeeze(1) for key, value in batch.items()}
            with uncompiled(twin), torch.no_grad():
                vectors = [each.eval()(**plain).sentence_embedding for each in (model, twin)]
            torch.testing.assert_close(*vectors, rtol=1e-4, atol=1e-5)
            for each in (model, twin):
                each.train()
    torch._dynamo.reset()
