"""SimCSE (Gao et al., 2021, "SimCSE: Simple Contrastive Learning of Sentence Embeddings")."""

from .configuration_simcse import SimCSEConfig
from .modeling_cse import CSEModel


class SimCSEModel(CSEModel):
    """SimCSE: the contrastive term alone (Eq. 1)

    L = L_NCE = (1/B) Σ_i −log exp(cos(z_i, z_i⁺)/τ) / Σ_j exp(cos(z_i, z_j⁺)/τ)

    z and z⁺ are the two views of a sentence, by default under different dropout masks.
    """

    config_class = SimCSEConfig
