"""InforMin-CL (Chen et al., 2022, "An Information Minimization Based Contrastive Learning Model for Unsupervised
Sentence Embeddings Learning")."""

from .configuration_informin import InforMinConfig
from .modeling_cse import CSEModel


class InforMinModel(CSEModel):
    """InforMin-CL: :class:`CSEModel` with :class:`Reconstruction`

    L = L_NCE + λ·L_R  (Eq. 9)
    """

    config_class = InforMinConfig
