"""Cached gradients (GradCache, Gao et al., 2021): a batch of any size in the memory of a chunk of its rows.

A loss that couples rows needs the vectors of all rows, but not their activations. The networks therefore process one
chunk of rows at a time and keep only the outputs; the loss is computed on the full batch. The backward pass computes
each chunk again, from the same random state, and continues with the gradient of the chunk's outputs. Values and
gradients equal those of the same chunks with all activations kept: this saves memory and changes no result.

Autograd does the bookkeeping: each chunk is a checkpoint of its graph (Chen et al., 2016). One backward pass runs
through all chunks and sums a parameter's gradient before it is complete, so that DDP reduces it once, at the end.

Shape suffixes: N rows, L tokens, M positions in the flattened (N·L) tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .fast_counts import split_rows


@dataclass(frozen=True)
class Chunks:
    """The number of rows that a network processes at once.

    Arguments:
        size: rows; 0 processes all of them and keeps all activations.
    """

    size: int = 0

    def __call__(
        self, function: Callable[..., tuple[Tensor, ...]], rows: Sequence[Tensor], places: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Compute ``function(*rows, *places)`` chunk by chunk.

        Arguments:
            function: must treat rows independently (no batch statistics) and call no collective, since it runs twice.
                It returns tensors with one entry per row or per position. Its parameters, and the other tensors that
                it reads, get their gradient.
            rows: tensors (N, …), the first (N, L, …).
            places: (M,) int64, ascending positions in the flattened (N·L) of the first of ``rows``, and tensors that
                go with them, (M, …). The function gets those of its rows, counted from its first row.

        Returns:
            the function's tensors for all rows.
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
        """Split the positions by chunk. Synchronises with the device once: the counts become shapes."""
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
        if not torch.is_autocast_enabled(device):
            return checkpoint(function, *inputs, use_reentrant=False)

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            # chunks must not share a weight cast to half precision: its gradients would be summed in half precision
            with torch.autocast(device, torch.get_autocast_dtype(device), cache_enabled=False):
                return function(*inputs)

        return checkpoint(run, *inputs, use_reentrant=False)


#: All rows at once, all activations kept.
WHOLE_BATCH = Chunks()


def batch_statistics(module: nn.Module) -> list[str]:
    """Return the names of a network's layers whose output for a row depends on the other rows."""
    return [name for name, layer in module.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def check_cacheable(objectives: Iterable[Any], networks: Mapping[str, nn.Module], chunk_size: int) -> None:
    """Check that chunks of ``chunk_size`` rows give the same loss as the full batch.

    Arguments:
        objectives: the model's auxiliary objectives.
        networks: by name, the networks that run in chunks.
        chunk_size: for the messages.

    Raises:
        ValueError: an objective is not ``cacheable``, or a layer has batch statistics.
    """
    for objective in objectives:
        if not objective.cacheable:
            raise ValueError(
                f"cache_chunk_size must be 0 with the objective {objective.config.name!r}, which does not say that it "
                f"can be computed in chunks ({type(objective).__name__}.cacheable), got {chunk_size}"
            )
    for part, network in networks.items():
        for name in batch_statistics(network):
            raise ValueError(
                f"cache_chunk_size must be 0 with the layer {part}.{name}, whose statistics are those of the whole "
                f"batch, got {chunk_size}"
            )
