"""Collectives with gradient: W processes with B/W rows each give the loss and the gradient of one process with B rows.

Each process computes the mean over its own rows, and DDP averages the gradients over processes. What crosses processes
(keys of the contrast, moments of batch statistics) therefore sends its gradient back summed, not averaged.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
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
    """(B, …) of each process → (W·B, …) of all, in the order of ranks, with gradient. B must be equal on all."""
    return rows if world_size() == 1 else _GatherRows.apply(rows)


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum of a tensor over processes, with gradient."""
    return value if world_size() == 1 else _Sum.apply(value)


def token_mean(total: Tensor, count: int | Tensor) -> Tensor:
    """Mean over the tokens of all processes of a loss summed over this one's: DDP's averaging is undone, so that every
    token weighs the same wherever it stands. No token at all gives 0. A count that is a tensor stays on its device."""
    if world_size() == 1:
        return total / (count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1))
    tokens = count.float().clone() if isinstance(count, Tensor) else torch.tensor(float(count), device=total.device)
    dist.all_reduce(tokens)
    return total * world_size() / tokens.clamp_min(1)
