"""MSSE ("Harnessing Dimension-level Contrastive Learning and Information Compensation Mechanism for Sentence Embedding
Enhancement", anonymous ACL submission)."""

from .configuration_msse import MSSEConfig
from .modeling_cse import CSEModel


class MSSEModel(CSEModel):
    """MSSE: :class:`CSEModel` with :class:`DimensionContrast` and :class:`InformationCompensation`

    L = L_NCE + μ·L_DCM + γ·L_ICM  (Eq. 10)
    """

    config_class = MSSEConfig
