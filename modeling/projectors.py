"""The projector between the embedding and the contrast.

Shape suffixes: N rows (all views together, so that they share batch statistics), H hidden size.
"""

import torch
from torch import Tensor, nn

from .distributed import sum_over_processes, world_size
from .layer_memory import check_vectors

PROJECTORS = ("tanh", "batchnorm", "linear", "none")


class CrossRankBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm over the rows of all processes, on any device (``nn.SyncBatchNorm`` refuses CPU tensors).

    In one process it equals ``nn.BatchNorm1d``, but for a single row, which has no variance: the running statistics
    stand in for its own, and stay as they are.
    """

    def forward(self, rows_NH: Tensor) -> Tensor:
        if world_size() == 1 and self.training and len(rows_NH) == 1:
            statistics = self.running_mean, self.running_var, self.weight, self.bias
            return nn.functional.batch_norm(rows_NH, *statistics, training=False, eps=self.eps)
        if world_size() == 1 or not self.training:
            return super().forward(rows_NH)
        rows = rows_NH.float()
        count = sum_over_processes(torch.full((1,), float(len(rows)), device=rows.device))
        mean_H = sum_over_processes(rows.sum(0)) / count
        variance_H = sum_over_processes((rows - mean_H).square().sum(0)) / count
        self._update_running(mean_H.detach(), (variance_H * count / (count - 1).clamp_min(1)).detach())
        normal = (rows - mean_H) * torch.rsqrt(variance_H + self.eps)
        normal = normal * self.weight + self.bias if self.affine else normal
        return normal.to(rows_NH.dtype)

    def _update_running(self, mean_H: Tensor, unbiased_H: Tensor) -> None:
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean_H, momentum)
            self.running_var.lerp_(unbiased_H, momentum)


def build_projector(kind: str, hidden_size: int, size: int | None = None) -> nn.Module:
    """Build a projector, (N, H) → (N, H), or with ``size`` (N, H) → (N, size), which ``linear`` alone can.

    - ``tanh``: Linear, Tanh (SimCSE §4.1)
    - ``batchnorm``: Linear(H, 2H, no bias), BatchNorm, ReLU, Linear(2H, H, no bias), BatchNorm(no affine) (DiffCSE §3)
    - ``linear``: Linear (MSSE)
    - ``none``: the identity

    Raises:
        ValueError: an unknown kind; a ``size`` whose weights alone fill this machine's memory.
    """
    if kind == "tanh":
        return nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.Tanh())
    if kind == "batchnorm":
        return nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size, bias=False),
            CrossRankBatchNorm1d(2 * hidden_size),
            nn.ReLU(),
            nn.Linear(2 * hidden_size, hidden_size, bias=False),
            CrossRankBatchNorm1d(hidden_size, affine=False),
        )
    if kind == "linear":
        check_vectors("projector_size", size or hidden_size, hidden_size, "weights")
        return nn.Linear(hidden_size, size or hidden_size)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"projector must be one of {', '.join(map(repr, PROJECTORS))}, got {kind!r}")
