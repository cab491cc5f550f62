"""The gradient of word embeddings on CPU, without a new matrix of zeros in every step.

A step reads few of the words, so that most rows of the gradient are zero. PyTorch makes the matrix anew in every
backward pass and fills it with zeros, which takes longer than the rows themselves: 47 MB for BERT's vocabulary and
384 dimensions. Here one matrix is kept. The rows of the last step are set to zero, those of this one are filled in,
and clipping reads and scales these rows alone.

Shape suffixes: V words, T tokens, R words of a step, H hidden size.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .fast_switch import fast

#: Smaller matrices than this are as fast to make.
_ELEMENTS = 1 << 20


class KeptGradient:
    """A matrix that serves as the gradient of a weight in one step after the other.

    It is used again only if nobody else holds its memory and nobody but this module has changed it: where gradients
    accumulate, where somebody keeps them, and where another function clips them, the step gets a matrix of its own.
    """

    def __init__(self) -> None:
        self.matrix_VH: Tensor | None = None
        self.rows_R = torch.empty(0, dtype=torch.long)
        self.version = 0

    def fill(self, weight: Tensor, ids_T: Tensor, gradient_TH: Tensor, padding: int | None) -> Tensor:
        """Return the gradient of the weight, (V, H): the sum of each word's rows, zero at the word ``padding``."""
        matrix = self.matrix_VH
        if matrix is None or matrix.shape != weight.shape or matrix.dtype != weight.dtype:
            matrix = self.matrix_VH = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        elif _holders(matrix) > 1:
            return plain_gradient(weight, ids_T, gradient_TH, padding)
        elif self._changed(matrix):
            matrix.zero_()
        else:
            matrix.index_fill_(0, self.rows_R, 0.0)
        matrix.index_add_(0, ids_T, gradient_TH.to(matrix.dtype))
        if padding is not None:
            matrix[padding] = 0.0
        self.rows_R = ids_T.unique()
        self.version = matrix._version
        return matrix.detach()  # the parameter's gradient, in the same memory

    def holds(self, gradient: Tensor | None) -> bool:
        """Return True if this gradient is the kept matrix, as it was filled."""
        matrix = self.matrix_VH
        if matrix is None or gradient is None or gradient.data_ptr() != matrix.data_ptr():
            return False
        return gradient.shape == matrix.shape and not self._changed(matrix)

    def rows(self) -> Tensor:
        """Return a copy of the rows that are not zero, (R, H)."""
        assert self.matrix_VH is not None
        return self.matrix_VH.index_select(0, self.rows_R)

    def replace(self, rows_RH: Tensor) -> None:
        """Write these rows in place of those that :meth:`rows` returned."""
        assert self.matrix_VH is not None
        self.matrix_VH.index_copy_(0, self.rows_R, rows_RH)
        self.version = self.matrix_VH._version

    def _changed(self, matrix: Tensor) -> bool:
        return matrix._version != self.version


def plain_gradient(weight: Tensor, ids_T: Tensor, gradient_TH: Tensor, padding: int | None) -> Tensor:
    """Return the gradient of the weight in a matrix of its own, as ``nn.Embedding`` does."""
    none = -1 if padding is None else padding
    found: Tensor = torch.ops.aten.embedding_dense_backward(gradient_TH, ids_T, len(weight), none, False)
    return found


def _holders(matrix: Tensor) -> int:
    """Return how many tensors lie in this memory."""
    storage = matrix.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # type: ignore[attr-defined]  # without ``storage``


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None, kept: KeptGradient) -> Tensor:
        ctx.save_for_backward(weight, ids)
        ctx.padding, ctx.kept = padding, kept
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        weight, ids = ctx.saved_tensors
        flat = ids.flatten(), gradient.flatten(0, -2), ctx.padding
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            return plain_gradient(weight, *flat), None, None, None
        return ctx.kept.fill(weight, *flat), None, None, None


class KeptEmbedding(nn.Embedding):
    """``nn.Embedding`` whose gradient is the matrix of a :class:`KeptGradient`."""

    kept: KeptGradient

    def forward(self, input: Tensor) -> Tensor:
        differs = self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        if differs or not (torch.is_grad_enabled() and self.weight.requires_grad) or torch.compiler.is_compiling():
            return super().forward(input)
        found: Tensor = _Lookup.apply(self.weight, input, self.padding_idx, self.kept)
        return found


def keep_gradients(model: nn.Module) -> dict[nn.Parameter, KeptGradient]:
    """Keep the gradients of the model's large embeddings on CPU from now on; return them by weight.

    The optimiser must leave gradients as they are, as ``torch.optim.AdamW`` does. A callback that changes them is
    noticed, unless it writes to their ``data``, which torch does not count as a change. Nothing happens if the fast
    paths are off. State dicts and values stay the same.
    """
    found = [module for module in model.modules() if type(module) is nn.Embedding] if fast() and _can_count() else []
    kept: dict[Any, KeptGradient] = {}
    for module in found:
        if module.weight.device.type == "cpu" and module.weight.numel() >= _ELEMENTS:
            module.__class__ = KeptEmbedding
            module.kept = kept[module.weight] = KeptGradient()  # type: ignore[assignment]
    return kept


def forget_gradients(model: nn.Module) -> None:
    """Undo :func:`keep_gradients`."""
    for module in model.modules():
        if type(module) is KeptEmbedding:
            module.__class__ = nn.Embedding  # type: ignore[assignment]
            del module.kept


def _can_count() -> bool:
    return hasattr(torch._C, "_storage_Use_Count")


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, kept: Mapping[nn.Parameter, KeptGradient]
) -> Tensor:
    """Scale the gradients so that their common norm is at most ``max_norm``, as ``nn.utils.clip_grad_norm_`` does.

    Arguments:
        kept: what :func:`keep_gradients` returned.

    Returns:
        The norm before, a scalar.
    """
    given = [parameter for parameter in parameters if parameter.grad is not None]
    sparse = {each: kept[each].rows() for each in given if each in kept and kept[each].holds(each.grad)}
    dense = [p for p in given if p not in sparse]
    norm = nn.utils.get_total_norm([*(p.grad for p in dense if p.grad is not None), *sparse.values()])
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    if norm.device.type == "cpu" and bool(factor == 1):  # a product with 1 changes nothing; a CPU waits for no device
        return norm
    nn.utils.clip_grads_with_norm_(dense, max_norm, norm)
    for parameter, rows in sparse.items():
        kept[parameter].replace(rows.mul_(factor))
    return norm
