"""PCL's cooperation of two networks (Wu et al., 2022, "PCL: Peer-Contrastive Learning with Diverse Augmentations for
Unsupervised Sentence Embeddings"), as its released code computes it.

Shape suffixes: B sentences of this process, K of all processes, P positives of a sentence, H hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .distributed import gather_rows, own_columns
from .losses import cosine_logits, group_contrast, group_divergence, group_logits, info_nce
from .objectives import Encode, Views
from .second_encoder import SecondEncoder
from .settings import ObjectiveConfig, check_number


@dataclass
class PeerCooperationConfig(ObjectiveConfig):
    """Settings of :class:`PeerCooperation`.

    Arguments:
        weight: w, factor of the term.
        own_contrast: factor of the peer's own InfoNCE.
        own_group: factor of the peer's own contrast of all positives (see ``group``).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "peer"
    weight: float = 1.0
    own_contrast: float = 1.0
    own_group: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("own_contrast", "own_group"):
            check_number(f"peer_{field}", getattr(self, field), 0)


class PeerCooperation(SecondEncoder):
    """A second encoder that trains beside the first, and the agreement of both (PCL's peer-network cooperation)

    L = L_NCE + w·(D_cross + D_same + a·L'_NCE + b·L'_group)

    D(P, Q) = (1/B) Σ_i mean_k Q_ik · log(Q_ik / P_ik) over the group of i: its positives and the other sentences

    D_cross:  P_i = softmax( s(z1_i, z'_p_i), s(z1_i, z'1_j) ),  Q_i = softmax( s(z'1_i, z_p_i), s(z'1_i, z1_j) )
    D_same:   P_i = softmax( s(z1_i, z_p_i), s(z1_i, z1_j) ),    Q_i = softmax( s(z'1_i, z'_p_i), s(z'1_i, z'1_j) )

    s is cos/τ; z' are the peer's vectors of the same views and further positives, L' its own losses. Both networks
    learn from both divergences. The peer starts from the backbone's checkpoint, differs by its dropout, and shares the
    projector.

    The diagnostics ``peer_divergence``, ``peer_contrastive`` and ``peer_group`` are D_cross + D_same, L'_NCE and
    L'_group.
    """

    config_class = PeerCooperationConfig
    config: PeerCooperationConfig
    cacheable = True
    reads_positives = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        peer, τ = encode.views_by(self.encoder), encode.temperature
        with torch.autocast(views.z.device.type, enabled=False):
            z1, z_p, peer_z1, peer_z_p = (each.float() for each in (*first(views), *first(peer)))
            keys, peer_keys, own = gather_rows(z1), gather_rows(peer_z1), own_columns(z1)
            by_peer = group_logits(peer_z1, peer_z_p, peer_keys, own, τ)
            across = group_logits(z1, peer_z_p, peer_keys, own, τ), group_logits(peer_z1, z_p, keys, own, τ)
            D = group_divergence(*across) + group_divergence(group_logits(z1, z_p, keys, own, τ), by_peer)
            L_NCE = info_nce(cosine_logits(peer_z1, gather_rows(peer_z_p[0]), τ), own)
            L_group, _ = group_contrast(by_peer, len(peer_z_p))
            L = D + self.config.own_contrast * L_NCE + self.config.own_group * L_group
        metrics = {"peer_divergence": D, "peer_contrastive": L_NCE, "peer_group": L_group}
        return {"peer": self.config.weight * L}, {name: value.detach() for name, value in metrics.items()}


def first(views: Views) -> tuple[Tensor, Tensor]:
    """Return the first view, (B, H), and its positives, (P, B, H), projected."""
    return views.z[0], views.positives
