"""The comparison of a model's gradients with those of a twin that computes the naive formula."""

from typing import Any

import torch
from torch import Tensor, nn

from csekit.modeling.fast_packing import run_encoder


def same_gradients(
    model: nn.Module, twin: nn.Module, found: Tensor, expected: Tensor, rtol: float = 1e-4, unread: bool = False
) -> None:
    """Check that both losses give every parameter the same gradient, and that some gradient is not tiny.

    Arguments:
        unread: the naive formula need not reach a parameter whose gradient is 0.
    """
    for each, loss in ((model, found), (twin, expected)):
        each.zero_grad()
        loss.backward()
    theirs = dict(twin.named_parameters())
    pairs = [(p.grad, theirs[name].grad) for name, p in model.named_parameters() if p.grad is not None]
    assert max(ours.abs().max() for ours, _ in pairs) > 1e-3
    for ours, other in pairs:
        expected_grad = torch.zeros_like(ours) if unread and other is None else other
        torch.testing.assert_close(ours, expected_grad, rtol=rtol, atol=1e-5)


def same_gradients_so_far(model: nn.Module, twin: nn.Module) -> None:
    """Check that every parameter of both models has the same gradient, or none."""
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4, msg=name)


def same_states(model: Any, twin: Any, ids_BL: Tensor, mask_BL: Tensor) -> None:
    """Check that both encoders give every real token the same first and last states, and the same gradients."""
    weights, results = torch.randn(*ids_BL.shape, model.config.hidden_size) * mask_BL[..., None], []
    for each in (model, twin):
        output = run_encoder(each.backbone, mask_BL, ids_BL, output_hidden_states=True)
        states = torch.stack(output.hidden_states)[[1, -1]] * mask_BL[..., None]
        (states * weights).sum().backward()
        results.append((states.detach(), output.last_hidden_state * mask_BL[..., None]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    same_gradients_so_far(model, twin)
