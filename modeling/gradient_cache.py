"""Cached gradients (GradCache, Gao et al., 2021): a batch of any size in the memory of a chunk of its rows.

A loss that couples rows wants the vectors of all of them, but not the activations that lead there. So the networks see
a chunk of rows at a time and keep nothing but what they return; the loss is taken over the whole batch; the backward
pass then computes each chunk once more, from the random state that it had, and goes through it with the gradient that
the loss has sent to its vectors. Values and gradients are those of the same chunks with everything kept.

Here autograd does the bookkeeping: a chunk is a checkpoint of its graph (Chen et al., 2016). One backward pass through
all chunks adds up a parameter's gradient before it is there, so that DDP reduces it once, at the end.

Shape suffixes: N rows, L tokens, M places in the flattened (N·L) tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .row_counts import split_rows


@dataclass(frozen=True)
class Chunks:
    """How many rows a network sees at once.

    Arguments:
        size: rows; 0 is all of them, with everything kept.
    """

    size: int = 0

    def __call__(
        self, function: Callable[..., tuple[Tensor, ...]], rows: Sequence[Tensor], places: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """What ``function(*rows, *places)`` returns, computed chunk by chunk.

        Arguments:
            function: of rows that do not look at each other (no batch statistics), and no collective inside: it runs
                twice. Returns tensors whose first dimension follows that of the rows or of the places. Parameters and
                what else it closes over get their gradient.
            rows: (N, …) each, the first (N, L, …).
            places: (M,) int64 ascending, in the flattened (N·L) of the first of ``rows``, and what goes with them,
                (M, …). The function gets those of its rows, counted from its first one.
        """
        count = len(rows[0])
        if not 0 < self.size < count:
            return function(*rows, *places)
        parts = list(zip(*(split_rows(tensor, self.size) for tensor in rows), strict=True))
        if places:
            parts = [(*part, *own) for part, own in zip(parts, self._places(rows[0], places), strict=True)]
        found = [self._chunk(function, part) for part in parts]
        return tuple(torch.cat(outputs) for outputs in zip(*found, strict=True))

    def _places(self, ids_NL: Tensor, places: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The places of each chunk. Waits for the device once: their numbers are shapes."""
        N, L = ids_NL.shape[:2]
        starts = list(range(0, N, self.size))
        ends = torch.tensor([*starts[1:], N], device=places[0].device) * L
        counts = torch.searchsorted(places[0], ends).diff(prepend=ends.new_zeros(1)).tolist()
        first, *others = (tensor.split(counts) for tensor in places)
        own = [part - start * L for part, start in zip(first, starts, strict=True)]
        return list(zip(own, *others, strict=True))

    def _chunk(self, function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return function(*inputs)
        device = inputs[0].device.type

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            # no weight in half precision shared by chunks: their gradients would be added up in half precision
            dtype, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
            with torch.autocast(device, dtype, enabled=on, cache_enabled=False):
                return function(*inputs)

        return checkpoint(run, *inputs, use_reentrant=False)


#: All rows at once.
WHOLE_BATCH = Chunks()


def batch_statistics(module: nn.Module) -> list[str]:
    """The names of a network's layers whose output for one row depends on the others."""
    return [name for name, layer in module.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
