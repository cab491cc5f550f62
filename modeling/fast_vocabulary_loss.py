"""Cross-entropy over a vocabulary, fused with the product with the output matrix.

The (M, V) logits are stored once, in the precision of the product, and overwritten by their own gradient.

Shape suffixes: M tokens, E width of the output matrix, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .fast_rows import fill_rows
from .fast_switch import fast

IGNORED = -100
#: Number of logits per block: on CPU as many as fit into its cache.
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
            if trains:  # softmax − one-hot, 0 in a row that does not count
                counted = counted_M[b].unsqueeze(1)
                weights.div_(total.masked_fill_(~counted, torch.inf))
                logits_MV[b] = weights.scatter_add_(1, targets_M1[b], -counted.to(wide))
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
    """Return the cross-entropy of the logits ``states @ matrix.T + bias``, and whether their maximum is the label.

    Arguments:
        states_ME, matrix_VE, bias_V: multiplied in autocast's precision if that is on; the softmax is computed in at
            least fp32. Only first derivatives exist.
        labels_M: (M,) int64; −100 marks a token that does not count.

    Returns:
        (M,) losses in nats, 0 where the label is −100, and (M,) bool without gradient.
    """
    if not fast():
        return _naive_cross_entropy(states_ME, matrix_VE, bias_V, labels_M)
    device = states_ME.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states_ME.dtype
    trains, M = torch.is_grad_enabled(), len(labels_M)
    states_ME, labels_M = fill_rows(states_ME), fill_rows(labels_M, IGNORED)
    with torch.autocast(device, enabled=False):
        inputs = (states_ME.to(dtype), matrix_VE.to(dtype), bias_V, labels_M, trains)
        losses_M, correct_M = _VocabularyCrossEntropy.apply(*inputs)
    return losses_M[:M], correct_M[:M]


def _naive_cross_entropy(
    states_ME: Tensor, matrix_VE: Tensor, bias_V: Tensor | None, labels_M: Tensor
) -> tuple[Tensor, Tensor]:
    """The same from torch's own linear map and cross-entropy."""
    logits_MV = F.linear(states_ME, matrix_VE, bias_V)
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    losses_M = F.cross_entropy(logits_MV, labels_M, reduction="none", ignore_index=IGNORED)
    return losses_M, (logits_MV.argmax(1) == labels_M) & (labels_M != IGNORED)
