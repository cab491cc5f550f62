"""Few numbers of rows on CPU.

oneDNN makes kernels for each number of rows that it sees and keeps them: half a megabyte for a layer of 384, seven for
the product with BERT's vocabulary. The tokens that a masked LM scores have another number in every step, and so have
the texts of an evaluation's batches. Such rows are filled up to one of few numbers.

Shape suffix: N rows or places.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .fast_switch import fast

#: Rows are filled up to a multiple of this many, fewer to a power of two.
ROWS = 64


def missing_rows(N: int, device: torch.device) -> int:
    """Return how many rows to add to N rows: 0 on other devices than a CPU, and if the fast paths are off."""
    if device.type != "cpu" or N == 0 or not fast():
        return 0
    return -N % ROWS if N > ROWS else (1 << (N - 1).bit_length()) - N


def fill_rows(rows: Tensor, value: int = 0) -> Tensor:
    """Add rows of one value: (N, …) → (N or more, …)."""
    missing = missing_rows(len(rows), rows.device)
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing), value=value) if missing else rows


def map_rows(module: nn.Module, rows: Tensor) -> Tensor:
    """Return the module's output for each row, (N, …) → (N, …); it computes a few rows more."""
    output: Tensor = module(fill_rows(rows))
    return output[: len(rows)]


def fill_places(places_N: Tensor) -> Tensor:
    """Repeat the last place: (N or more,)."""
    missing = missing_rows(len(places_N), places_N.device)
    return torch.cat([places_N, places_N[-1:].expand(missing)]) if missing else places_N
