"""Configuration of DiffCSE (Chuang et al., 2022). Defaults: BERT-base (Table 12)."""

from .configuration_cse import CSEConfig
from .objective_rtd import ReplacedTokenDetectionConfig
from .settings import ObjectiveConfig


class DiffCSEConfig(CSEConfig):
    """Configuration of DiffCSE: :class:`CSEConfig` with :class:`ReplacedTokenDetectionConfig`.

    The default ``projector`` is batchnorm (Table 5).
    """

    model_type = "diffcse"

    projector: str = "batchnorm"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [ReplacedTokenDetectionConfig()]
