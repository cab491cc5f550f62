"""AdamW's step for a weight with a sparse gradient, equal to that with the same gradient in a matrix.

AdamW changes every row that ever had a gradient, in each step: its averages go on. A row that never had one has
averages of zero, and without weight decay the step leaves it as it is. So only the rows that training has read take
part, some hundreds at a time, which stay in the processor's cache; and the averages of the others never get memory.
A multilingual encoder has hundreds of thousands of words, and a corpus of one language reads a tenth of them.

Shape suffixes: V words, R words with a gradient, A words that ever had one, C words of a chunk, H hidden size.
"""

import mmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.adamw import adamw

#: Values of a chunk: four arrays of them are 4 MB.
_CHUNK = 1 << 18
#: Where more than one row in so many takes part, whole blocks do.
_SCATTERED = 8


class RowSteps:
    """Takes an optimiser's steps for weights with a sparse gradient, until it is removed.

    Where the optimiser is not ``torch.optim.AdamW``, or is told to maximise or to keep largest averages, and where
    the weight decays, the gradient becomes a matrix, and the optimiser takes the step as always.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._alive: dict[nn.Parameter, Tensor] = {}
        self._taken: list[nn.Parameter] = []
        self._gradients: list[Tensor] = []
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before()),
            optimizer.register_step_post_hook(lambda *_: self._after()),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _before(self) -> None:
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is None or not weight.grad.is_sparse:
                    self._alive.pop(weight, None)  # a dense gradient reaches every row
                elif self._suits(group):
                    gradient = weight.grad.coalesce()
                    self._step(weight, gradient, group)
                    self._taken.append(weight)
                    self._gradients.append(gradient)
                    weight.grad = None
                else:
                    weight.grad = weight.grad.to_dense()

    def _after(self) -> None:
        for weight, gradient in zip(self._taken, self._gradients, strict=True):
            weight.grad = gradient
        self._taken, self._gradients = [], []

    def _suits(self, group: dict[str, Any]) -> bool:
        plain = type(self.optimizer) is AdamW and group["weight_decay"] == 0
        return plain and not (group["amsgrad"] or group["maximize"] or group["capturable"] or group["differentiable"])

    def _step(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, rows_R = self.optimizer.state[weight], gradient._indices()[0]
        alive_V = self._alive.get(weight)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = untouched_zeros(weight), untouched_zeros(weight)
            alive_V = torch.zeros(len(weight), dtype=torch.bool)
        elif alive_V is None:
            alive_V = state["exp_avg"].any(1) | state["exp_avg_sq"].any(1)
        alive_V[rows_R] = True
        self._alive[weight] = alive_V
        arrays = weight.detach(), state["exp_avg"], state["exp_avg_sq"]
        step = _Step(group, state["step"], rows_R, gradient._values())
        rows_A = alive_V.nonzero()[:, 0]
        if len(rows_A) * _SCATTERED < len(weight):
            step.take_scattered(arrays, rows_A)
        else:
            step.take_blocks(arrays, rows_A)
        state["step"] += 1


class _Step:
    """One step of one weight: the rows of its gradient, in ascending order, and the optimiser's settings."""

    def __init__(self, group: dict[str, Any], step: Tensor, rows_R: Tensor, values_RH: Tensor) -> None:
        self.group, self.step, self.rows_R, self.values_RH = group, step, rows_R, values_RH
        self.size = max(1, _CHUNK // values_RH.shape[1])

    def take_blocks(self, arrays: tuple[Tensor, ...], rows_A: Tensor) -> None:
        """Change blocks of neighbouring rows in place, those that hold one of ``rows_A``."""
        count = len(arrays[0])
        starts = torch.arange(0, count + self.size, self.size)
        bounds = torch.searchsorted(self.rows_R, starts).tolist()
        wanted = torch.searchsorted(rows_A, starts).diff().tolist()
        gradient = torch.zeros(min(self.size, count), self.values_RH.shape[1])
        for number, alive in enumerate(wanted):
            if not alive:
                continue
            start, chosen = number * self.size, slice(*bounds[number : number + 2])
            block = [array[start : start + self.size] for array in arrays]
            places = self.rows_R[chosen] - start
            gradient.index_copy_(0, places, self.values_RH[chosen])
            self._adamw(block, gradient[: len(block[0])])
            gradient.index_fill_(0, places, 0.0)

    def take_scattered(self, arrays: tuple[Tensor, ...], rows_A: Tensor) -> None:
        """Change copies of ``rows_A``, a chunk at a time, and write them back."""
        chunks = rows_A.split(self.size)
        bounds = [0, *torch.searchsorted(self.rows_R, torch.stack([c[-1] for c in chunks]), right=True).tolist()]
        for number, chunk_C in enumerate(chunks):
            chosen = slice(*bounds[number : number + 2])
            parts = [array.index_select(0, chunk_C) for array in arrays]
            gradient = torch.zeros_like(parts[0])
            gradient[torch.searchsorted(chunk_C, self.rows_R[chosen])] = self.values_RH[chosen]
            self._adamw(parts, gradient)
            for array, part in zip(arrays, parts, strict=True):
                array.index_copy_(0, chunk_C, part)

    def _adamw(self, parts: list[Tensor], gradient: Tensor) -> None:
        weight, average, square = parts
        beta1, beta2 = self.group["betas"]
        adamw(
            [weight], [gradient], [average], [square], [], [self.step.clone()],
            foreach=self.group["foreach"], fused=self.group["fused"], amsgrad=False, maximize=False,
            beta1=beta1, beta2=beta2, lr=self.group["lr"], weight_decay=0.0, eps=self.group["eps"],
        )  # fmt: skip


def untouched_zeros(like: Tensor) -> Tensor:
    """Return zeros of a tensor's shape and type on CPU. A page of them has no memory until somebody writes to it."""
    count = like.numel() * like.element_size()
    if not hasattr(mmap, "MAP_PRIVATE") or count == 0:
        return torch.zeros_like(like, memory_format=torch.contiguous_format)
    pages = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(like.shape)
