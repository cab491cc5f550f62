"""Cross-entropy over a vocabulary: the product with the output matrix and the loss in one, the (M, V) logits stored
once, in the precision of the product, and turned into their own gradient in place.

Shape suffixes: M tokens, E width of the output matrix, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
#: Entries of the logits that are turned at once: on CPU as many as stay in its cache.
_BLOCK_ENTRIES = {"cpu": 1 << 20, "other": 1 << 26}


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states_ME: Tensor, matrix_VE: Tensor, bias_V: Tensor | None, labels_M: Tensor, trains: bool
    ) -> tuple[Tensor, Tensor]:
        logits_MV = states_ME @ matrix_VE.T
        wide = torch.promote_types(logits_MV.dtype, torch.float32)
        losses_M = logits_MV.new_empty(len(labels_M), dtype=wide)
        correct_M = torch.empty_like(labels_M, dtype=torch.bool)
        counted_M, targets_M1 = labels_M != IGNORED, labels_M.clamp_min(0).unsqueeze(1)
        entries = _BLOCK_ENTRIES.get(logits_MV.device.type, _BLOCK_ENTRIES["other"])
        rows = max(1, entries // logits_MV.shape[1])
        for start in range(0, len(labels_M), rows):
            b = slice(start, start + rows)
            block = logits_MV[b].to(wide)
            if bias_V is not None:
                block += bias_V
            top, guesses = block.max(1, keepdim=True)
            wanted = block.gather(1, targets_M1[b])
            weights = block.sub_(top).exp_()
            total = weights.sum(1, keepdim=True)
            losses_M[b] = (total.log() + top - wanted).squeeze(1)
            correct_M[b] = (guesses == targets_M1[b]).squeeze(1)
            if trains:  # softmax − one-hot
                gradient = weights.div_(total).scatter_add_(1, targets_M1[b], -torch.ones_like(wanted))
                logits_MV[b] = gradient.mul_(counted_M[b].unsqueeze(1))
        if trains:
            ctx.save_for_backward(states_ME, matrix_VE, logits_MV)
            ctx.has_bias = bias_V is not None
        ctx.mark_non_differentiable(correct_M)
        return losses_M.mul_(counted_M), correct_M.logical_and_(counted_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_M: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states_ME, matrix_VE, gradient_MV = ctx.saved_tensors
        of_states = of_matrix = of_bias = None
        if ctx.needs_input_grad[0]:
            of_states = ((gradient_MV @ matrix_VE) * upstream_M.unsqueeze(1)).to(states_ME.dtype)
        if ctx.needs_input_grad[1]:
            of_matrix = gradient_MV.T @ (states_ME * upstream_M.unsqueeze(1)).to(states_ME.dtype)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            scale = upstream_M.abs().amax().clamp_min(1e-30) if len(upstream_M) else upstream_M.new_ones(())
            # equal weights become exactly 1: in half precision their rounding would scale the whole gradient
            of_bias = (gradient_MV.T @ (upstream_M / scale).to(gradient_MV.dtype)).to(upstream_M.dtype) * scale
        return of_states, of_matrix, of_bias, None, None


def vocabulary_cross_entropy(
    states_ME: Tensor, matrix_VE: Tensor, bias_V: Tensor | None, labels_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits ``states @ matrix.T + bias``, and whether their maximum is right.

    Arguments:
        states_ME, matrix_VE, bias_V: multiplied in autocast's precision where that is on, the softmax in at least
            fp32. First derivatives only.
        labels_M: (M,) int64; −100 is not counted.

    Returns:
        (M,) losses, 0 where not counted, and (M,) bool without gradient.
    """
    device = states_ME.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states_ME.dtype
    trains = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        return _VocabularyCrossEntropy.apply(states_ME.to(dtype), matrix_VE.to(dtype), bias_V, labels_M, trains)
