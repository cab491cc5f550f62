"""Configuration of InforMin-CL (Chen et al., 2022). Defaults: its BERT-base setting (Table 3)."""

from .configuration_cse import CSEConfig
from .objective_reconstruction import ReconstructionConfig
from .settings import ObjectiveConfig


class InforMinConfig(CSEConfig):
    """Configuration of InforMin-CL: :class:`CSEConfig` with :class:`ReconstructionConfig`.

    ``mlm_weight=0.1`` adds the masked LM of Table 6 (β).
    """

    model_type = "informin"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [ReconstructionConfig()]
