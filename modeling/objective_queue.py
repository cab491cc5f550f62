"""ESimCSE's momentum contrast (Wu et al., 2022, "ESimCSE: Enhanced Sample Building Method for Contrastive Learning of
Unsupervised Sentence Embedding", §3.2).

Shape suffixes: B sentences of this process, K of all processes, M keys of the queue, L tokens, H hidden size.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .backbone import build_backbone
from .distributed import gather_rows
from .fast_counts import first_rows
from .fast_weights import own_weights
from .layer_memory import check_vectors
from .lora import plain_weights
from .objectives import ContrastModifier, Encode, Negatives, Views
from .settings import ObjectiveConfig, check_number


@dataclass
class MomentumQueueConfig(ObjectiveConfig):
    """Settings of :class:`MomentumQueue`.

    Arguments:
        weight: w, the factor of the queue's keys in a denominator; 1 counts them like those of the batch.
        size: M, the number of keys, over all processes; the paper's is 2.5 times the batch.
        momentum: λ of the encoder's copy.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "queue"
    weight: float = 1.0
    size: int = 160
    momentum: float = 0.995

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("queue_size", self.size, 1)
        check_number("queue_momentum", self.momentum, 0, 1, open_ends="high")


class MomentumQueue(ContrastModifier):
    """The last M embeddings of a slowly moving copy of the encoder as further negatives (ESimCSE §3.2)

    L = −(1/B) Σ_i log( e^{sim(h_i, h_i⁺)/τ} / (Σ_j e^{sim(h_i, h_j⁺)/τ} + w · Σ_m e^{sim(h_i, h_m)/τ}) )

    θ_m ← λ·θ_m + (1 − λ)·θ_e after each step's contrast; then the batch's h(x; θ_m), without dropout, enter the queue

    The copy θ_m starts as the encoder θ_e. The sentences of all processes enter, so that all have the same queue, in
    the first view's template if there is one; with ``subtract_template`` the copy's vector of the template is
    subtracted. The current projector maps the copy's states. Copy and queue are part of the checkpoint. The diagnostic
    ``queue_cosine`` is the mean of sim(h_i, h_m).
    """

    config_class = MomentumQueueConfig
    config: MomentumQueueConfig
    cacheable = True
    keeps_vectors = True
    keys_MH: Tensor
    texts_M: Tensor
    count: Tensor
    given: Negatives | None = None

    def negatives(self, views: Views, batch: dict[str, Tensor], encode: Encode) -> Negatives:
        """Return the queue as it is before the batch enters. Views that are cut to d dimensions come after the whole
        ones, whose batch has entered, and get its first d dimensions."""
        if views.width and self.given is not None:
            return replace(self.given, keys=self.given.keys[:, : views.z.shape[-1]])
        self.given = self.before()
        return self.given

    def before(self) -> Negatives:
        """Return the keys of earlier batches; empty places have weight 0."""
        places_M = torch.arange(self.config.size, device=self.count.device)
        filled_M = places_M >= self.config.size - self.count
        return Negatives(self.keys_MH.clone(), self.config.weight * filled_M, self.texts_M.clone())

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if self.training and views.z.requires_grad:  # a step that trains the encoder
            backbone = cast(nn.Module, encode.backbone)  # the model's own
            with own_weights(backbone, self.encoder):
                self.follow(backbone)
                self.enter(views, encode)
        return {}, {}

    @torch.no_grad()
    def follow(self, backbone: nn.Module) -> None:
        """θ_m ← λ·θ_m + (1 − λ)·θ_e; the first time θ_m ← θ_e."""
        step = torch.where(self.count > 0, 1 - self.config.momentum, 1.0)
        weights = plain_weights(backbone)
        for name, θ_m in self.encoder.named_parameters():
            θ_m.lerp_(weights[name], step.to(θ_m.dtype))

    @torch.no_grad()
    def enter(self, views: Views, encode: Encode) -> None:
        """Put the copy's embeddings of the first view behind the queue, which loses its oldest."""
        B, M = views.z.shape[1], self.config.size
        ids_BL, mask_BL = views.input_ids[:B], first_rows(views.attention_mask, B)
        z_KH, texts_K = gather_rows(encode.embed(self.encoder, ids_BL, mask_BL)), gather_rows(views.texts[0])
        self.keys_MH.copy_(torch.cat([self.keys_MH, z_KH.to(self.keys_MH.dtype)])[-M:])
        self.texts_M.copy_(torch.cat([self.texts_M, texts_K])[-M:])
        self.count.copy_((self.count + len(z_KH)).clamp_max(M))

    def train(self, mode: bool = True) -> "MomentumQueue":
        super().train(mode)
        self.encoder.eval()  # no dropout
        return self

    def freeze(self) -> None:
        self.encoder.requires_grad_(False)

    def __init__(self, config: MomentumQueueConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        check_vectors("queue_size", config.size, encoder_config.hidden_size)
        self.encoder = build_backbone(deepcopy(encoder_config))
        self.register_buffer("keys_MH", torch.zeros(config.size, encoder_config.hidden_size))
        self.register_buffer("texts_M", torch.zeros(config.size, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
