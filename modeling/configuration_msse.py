"""Configuration of MSSE (anonymous ACL submission). Defaults: BERT-base, unsupervised (Table 5)."""

from typing import Any

from .configuration_cse import CSEConfig
from .objective_dcm import DimensionContrastConfig
from .objective_icm import InformationCompensationConfig
from .settings import ObjectiveConfig

TEMPLATE = '"{sentence}" means {mask}.'


class MSSEConfig(CSEConfig):
    """Configuration of MSSE: :class:`CSEConfig` with :class:`DimensionContrastConfig` and
    :class:`InformationCompensationConfig`.

    The defaults of ``projector`` (linear) and ``pooling`` (mask) differ. With mask pooling the default
    ``prompt_template`` is the paper's.
    """

    model_type = "msse"

    pooling: str = "mask"
    projector: str = "linear"

    def __post_init__(self, **kwargs: Any) -> None:
        if self.pooling == "mask" and self.prompt_template is None:
            self.prompt_template = TEMPLATE
        super().__post_init__(**kwargs)

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [DimensionContrastConfig(), InformationCompensationConfig()]
