"""DiffCSE (Chuang et al., 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings")."""

from .configuration_diffcse import DiffCSEConfig
from .modeling_cse import CSEModel


class DiffCSEModel(CSEModel):
    """DiffCSE: :class:`CSEModel` with :class:`ReplacedTokenDetection`

    L = L_NCE + λ·L_RTD  (§3)
    """

    config_class = DiffCSEConfig
