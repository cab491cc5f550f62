"""The gradient of word embeddings on CPU: the rows of the words that a step reads, instead of a whole matrix.

A step reads few of the words. PyTorch makes a matrix for all of them in every backward pass, and fills it with zeros,
which takes longer than the rows themselves: 47 MB for BERT's vocabulary and 384 dimensions. Here the gradient is a
sparse tensor, and clipping reads and scales its rows alone. ``fast_adamw.py`` takes the step with it.

Shape suffixes: V words, T tokens, R words of a step, H hidden size.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .fast_switch import fast

#: Smaller matrices than this are as fast to make.
_ELEMENTS = 1 << 20


def row_gradient(weight: Tensor, ids_T: Tensor, gradient_TH: Tensor, padding: int | None) -> Tensor:
    """Return the gradient of the weight, (V, H), sparse and coalesced: the sum of each word's rows, zero at the word
    ``padding``. The sums are those of ``nn.Embedding``, bit for bit."""
    rows_R, places_T = ids_T.unique(return_inverse=True)
    values_RH = weight.new_zeros(len(rows_R), weight.shape[1])
    values_RH.index_add_(0, places_T, gradient_TH.to(weight.dtype))
    if padding is not None:
        values_RH[rows_R == padding] = 0.0
    return torch.sparse_coo_tensor(rows_R[None], values_RH, weight.shape, is_coalesced=True, check_invariants=False)


def plain_gradient(weight: Tensor, ids_T: Tensor, gradient_TH: Tensor, padding: int | None) -> Tensor:
    """Return the gradient of the weight in a matrix, as ``nn.Embedding`` does."""
    none = -1 if padding is None else padding
    found: Tensor = torch.ops.aten.embedding_dense_backward(gradient_TH, ids_T, len(weight), none, False)
    return found


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(weight, ids)
        ctx.padding = padding
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weight, ids = ctx.saved_tensors
        # a gradient that will itself be differentiated must be dense
        make = plain_gradient if torch.is_grad_enabled() else row_gradient
        return make(weight, ids.flatten(), gradient.flatten(0, -2), ctx.padding), None, None


class RowEmbedding(nn.Embedding):
    """``nn.Embedding`` whose weight gets a sparse gradient."""

    def forward(self, input: Tensor) -> Tensor:
        differs = self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        if differs or not (torch.is_grad_enabled() and self.weight.requires_grad) or torch.compiler.is_compiling():
            return super().forward(input)
        found: Tensor = _Lookup.apply(self.weight, input, self.padding_idx)
        return found


def use_row_gradients(model: nn.Module) -> bool:
    """Give the model's large embeddings sparse gradients on CPU from now on; return whether there are any.

    The optimiser must know how to take them, see ``fast_adamw.py``. Where a weight gets a dense gradient as well, as
    that of a tied masked-LM head, the sum is dense. Weights with hooks stay as they are, and nothing happens if the
    fast paths are off. State dicts and values stay the same.
    """
    found = [module for module in model.modules() if type(module) is nn.Embedding and _suits(module)] if fast() else []
    if found:  # torch 2.11 warns of unchecked rows although they ask for no check
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
    for module in found:
        module.__class__ = RowEmbedding
    return bool(found)


def use_plain_gradients(model: nn.Module) -> None:
    """Undo :func:`use_row_gradients`."""
    for module in model.modules():
        if type(module) is RowEmbedding:
            module.__class__ = nn.Embedding  # type: ignore[assignment]


def _suits(module: nn.Embedding) -> bool:
    weight: Any = module.weight
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    large = weight.numel() >= _ELEMENTS
    return large and weight.device.type == "cpu" and weight.dtype == torch.float32 and not hooks


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients so that their common norm is at most ``max_norm``, as ``nn.utils.clip_grad_norm_`` does.
    Gradients may be sparse.

    Returns:
        The norm before, a scalar.
    """
    given = [parameter for parameter in parameters if parameter.grad is not None]
    dense, values = [], []
    for parameter in given:
        if parameter.grad is None or not parameter.grad.is_sparse:
            dense.append(parameter)
            continue
        parameter.grad = parameter.grad.coalesce()
        values.append(parameter.grad._values())
    norm = nn.utils.get_total_norm([*(p.grad for p in dense if p.grad is not None), *values])
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    if norm.device.type == "cpu" and bool(factor == 1):  # a product with 1 changes nothing; a CPU waits for no device
        return norm
    nn.utils.clip_grads_with_norm_(dense, max_norm, norm)
    for each in values:
        each.mul_(factor)
    return norm
