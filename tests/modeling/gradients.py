"""The comparison of a model's gradients with those of a twin that computes the naive formula."""

import torch
from torch import Tensor, nn


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
