"""Configuration of InfoCSE (Wu et al., 2022). Defaults: BERT-base (Tables 7 and 8)."""

from .configuration_cse import CSEConfig
from .objective_aux_mlm import AuxiliaryMaskedLMConfig
from .settings import ObjectiveConfig


class InfoCSEConfig(CSEConfig):
    """Configuration of InfoCSE: :class:`CSEConfig` with :class:`AuxiliaryMaskedLMConfig`.

    The default ``projector`` is batchnorm, as in its released scripts.
    """

    model_type = "infocse"

    projector: str = "batchnorm"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [AuxiliaryMaskedLMConfig()]
