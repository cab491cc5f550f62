"""InfoCSE (Wu et al., 2022, "InfoCSE: Information-aggregated Contrastive Learning of Sentence Embeddings")."""

from .configuration_infocse import InfoCSEConfig
from .modeling_cse import CSEModel


class InfoCSEModel(CSEModel):
    """InfoCSE: :class:`CSEModel` with :class:`AuxiliaryMaskedLM`

    L = L_NCE + λ·L_aux  (Eq. 7)
    """

    config_class = InfoCSEConfig
