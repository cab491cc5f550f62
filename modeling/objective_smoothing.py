"""IS-CSE's instance smoothing (He et al., 2023, "Instance Smoothed Contrastive Learning for Unsupervised Sentence
Embedding"), as its released code computes it.

Shape suffixes: B sentences of this process, K of all processes, M vectors of the memory, k neighbours, H hidden size.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedConfig

from .distributed import gather_rows, own_columns
from .layer_memory import check_vectors
from .losses import cosine_logits, info_nce
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig, Unread, check_number


@dataclass
class InstanceSmoothingConfig(ObjectiveConfig):
    """Settings of :class:`InstanceSmoothing`.

    Arguments:
        weight: α; 0 turns the term off, whatever ``start``.
        size: M, the number of vectors of the memory, over all processes.
        neighbors: k, the number of neighbours that smooth a positive; below M.
        temperature: β of the weights.
        start: α of the first batch, if there are ``ramp_steps``.
        ramp_steps: n, the number of batches after which α has the value of ``weight``; 0: it always has.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "smoothing"
    unread_with: ClassVar[Unread] = {"start": ("ramp_steps", (0,))}
    weight: float = 0.1
    size: int = 1024
    neighbors: int = 16
    temperature: float = 2.0
    start: float = 0.005
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("smoothing_size", self.size, 2)
        check_number("smoothing_neighbors", self.neighbors, 1)
        if self.neighbors >= self.size:
            raise ValueError(
                f"smoothing_neighbors must be below smoothing_size, {self.size}, the memory that they come from, "
                f"got {self.neighbors}"
            )
        check_number("smoothing_temperature", self.temperature, 0, open_ends="low")
        check_number("smoothing_start", self.start, 0)
        check_number("smoothing_ramp_steps", self.ramp_steps, 0)

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Cut ``neighbors`` to the other vectors of the memory, as the forward pass of earlier versions did."""
        others = fields.get("size", cls.size) - 1
        return {**fields, "neighbors": min(fields.get("neighbors", cls.neighbors), others)}


class InstanceSmoothing(Objective):
    """α·L_smooth: a contrast with positives that are averaged with their neighbours in a memory

    L = L_NCE + α·L_smooth,  L_smooth = −(1/B) Σ_i log( e^{cos(z1_i, z*_i)/τ} / Σ_j e^{cos(z1_i, z*_j)/τ} )

    z*_i = Σ_{m ∈ G_i} softmax_m(z2_i·m / β) · m,  G_i = z2_i and its k nearest in the memory, all of length 1

    The memory holds the last M vectors z2 of all processes without gradient, those of the batch included; a sentence's
    own is not its neighbour. Gradients flow through z1 and z2. The term is 0 until the memory is full. With n
    ``ramp_steps``, α_t = α + (α_0 − α)·cos(π/2 · min(t/n, 1)). The memory is part of the checkpoint. The diagnostic
    ``smoothing_cosine`` is the mean of z2_i·m over the neighbours.
    """

    config_class = InstanceSmoothingConfig
    config: InstanceSmoothingConfig
    cacheable = True
    keeps_vectors = True
    memory_MH: Tensor
    count: Tensor
    batches: Tensor

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.autocast(views.z.device.type, enabled=False):
            z1_BH, z2_BH = views.z[0].float(), normalize(views.z[1].float(), dim=-1)
            memory_MH, α = self.remember(views, z2_BH)
            nearest_BkH, cosine_Bk = self.nearest(z2_BH.detach(), memory_MH)
            group = torch.cat([z2_BH[:, None], nearest_BkH], dim=1)
            shares = (torch.einsum("bh,bmh->bm", z2_BH, group) / self.config.temperature).softmax(-1)
            smoothed_BH = torch.einsum("bm,bmh->bh", shares, group)
            logits_BK = cosine_logits(z1_BH, gather_rows(smoothed_BH), encode.temperature)
            L_smooth = info_nce(logits_BK, own_columns(z1_BH))
        return {"smoothing": α * L_smooth}, {"smoothing_cosine": (α > 0) * cosine_Bk.mean()}

    def nearest(self, z2_BH: Tensor, memory_MH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neighbours of each sentence, (B, k, H), and their cosines, (B, k)."""
        cosine_BM = z2_BH @ memory_MH.T
        places_B = own_columns(z2_BH) + len(memory_MH) - len(gather_rows(z2_BH))  # the batch is the memory's end
        own_BM = torch.arange(len(memory_MH), device=z2_BH.device) == places_B[:, None]
        cosine_Bk, chosen_Bk = cosine_BM.masked_fill(own_BM, -torch.inf).topk(self.config.neighbors)
        return memory_MH[chosen_Bk], cosine_Bk

    @torch.no_grad()
    def remember(self, views: Views, z2_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory with the batch's vectors at its end, (M, d), and α, (); a step that trains the encoder
        keeps it. Views that are cut to d dimensions come after the whole ones, which have entered."""
        M, trains = self.config.size, self.training and views.z.requires_grad
        entered = trains and bool(views.width)
        if entered:
            memory_MH, count, t = normalize(self.memory_MH[:, : z2_BH.shape[1]], dim=-1), self.count, self.batches - 1
        else:
            z2_KH = gather_rows(z2_BH)
            padded_KH = torch.nn.functional.pad(z2_KH, (0, self.memory_MH.shape[1] - z2_KH.shape[1]))
            memory_MH = torch.cat([self.memory_MH, padded_KH.to(self.memory_MH.dtype)])[-M:]
            count, t = (self.count + len(z2_KH)).clamp_max(M), self.batches
        α = self.strength(t) * (count == M)
        if trains and not entered:
            self.memory_MH.copy_(memory_MH)
            self.count.copy_(count)
            self.batches.add_(1)
        return memory_MH[:, : z2_BH.shape[1]].to(z2_BH.dtype), α

    def strength(self, t: Tensor) -> Tensor:
        """Return α of the t-th batch, counted from 0, ()."""
        α, n = self.config.weight, self.config.ramp_steps
        if not n:
            return torch.full((), α, device=t.device)
        return α + (self.config.start - α) * torch.cos(math.pi / 2 * (t / n).clamp_max(1))

    def __init__(self, config: InstanceSmoothingConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        check_vectors("smoothing_size", config.size, encoder_config.hidden_size)
        self.register_buffer("memory_MH", torch.zeros(config.size, encoder_config.hidden_size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
