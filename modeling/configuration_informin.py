"""InforMin-CL (Chen et al., 2022): contrast and reconstruction. Defaults: its BERT-base setting (Table 3)."""

from dataclasses import dataclass
from typing import ClassVar

from .configuration_cse import CSEConfig
from .objectives import ObjectiveConfig

RECONSTRUCTIONS = ("squared_norm", "mse")


@dataclass
class ReconstructionConfig(ObjectiveConfig):
    """Settings of :class:`Reconstruction`.

    Arguments:
        weight: λ of Eq. 9; 0.4 for BERT-base, 4 for RoBERTa-base and -large (Table 3).
        reconstruction: ``squared_norm`` (Eq. 8) or ``mse`` (mean over elements, both directions: smaller by 2/H).
    """

    name: ClassVar[str] = "reconstruction"
    weight: float = 0.4
    reconstruction: str = "squared_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reconstruction not in RECONSTRUCTIONS:
            allowed = ", ".join(map(repr, RECONSTRUCTIONS))
            raise ValueError(f"reconstruction must be one of {allowed}, got {self.reconstruction!r}")


class InforMinConfig(CSEConfig):
    """Configuration of InforMin-CL: :class:`CSEConfig` with :class:`ReconstructionConfig`. ``mlm_weight=0.1`` adds the
    masked LM of Table 6 (β)."""

    model_type = "informin"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [ReconstructionConfig()]
