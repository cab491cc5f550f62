"""Collectives with gradient: W processes with B/W rows each give the loss and the gradient of one process with B rows.

Each process computes the mean over its own rows, and DDP averages the gradients over processes. Tensors that cross
processes (keys of the contrast, moments of batch statistics) therefore return summed, not averaged, gradients.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rows = rows.shape[0]
        gathered = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        start = rank() * ctx.rows
        return gradient[start : start + ctx.rows]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes by rank, with gradient: (B, …) → (W·B, …). All need the same B."""
    return rows if world_size() == 1 else _GatherRows.apply(rows)


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum a tensor over processes, with gradient."""
    return value if world_size() == 1 else _Sum.apply(value)


def from_first_process(value: Tensor) -> Tensor:
    """Return the first process's tensor in every process, without gradient."""
    if world_size() > 1:
        value = value.detach().clone()
        dist.broadcast(value, src=0)
    return value


def own_columns(rows_B: Tensor) -> Tensor:
    """Return the indices of this process's rows among those of all processes, (B,) int64."""
    return torch.arange(len(rows_B), device=rows_B.device) + rank() * len(rows_B)


def token_mean(total: Tensor, count: int | Tensor) -> Tensor:
    """Divide a loss summed over this process's tokens by the mean number of tokens per process.

    DDP averages gradients over processes. The result is thus the mean over the tokens of all processes: every token
    has the same weight, whatever its process. Without any token it is 0. A count on a device stays there.
    """
    if world_size() == 1:
        return total / (count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1))
    tokens = count.float().clone() if isinstance(count, Tensor) else torch.tensor(float(count), device=total.device)
    dist.all_reduce(tokens)
    return total * world_size() / tokens.clamp_min(1)
