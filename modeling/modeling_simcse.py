"""SimCSE (Gao et al., 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings")."""

from .configuration_simcse import SimCSEConfig
from .modeling_cse import CSEModel


class SimCSEModel(CSEModel):
    """SimCSE: the contrastive term alone.

    −log exp(cos(z_i, z_i⁺)/τ) / Σ_j exp(cos(z_i, z_j⁺)/τ), z and z⁺ under different dropout masks
    """

    config_class = SimCSEConfig
