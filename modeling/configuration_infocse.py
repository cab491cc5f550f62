"""InfoCSE (Wu et al., 2022): contrast and an auxiliary masked LM. Defaults: BERT-base (Tables 7 and 8)."""

from dataclasses import dataclass
from typing import ClassVar

from .configuration_cse import CSEConfig
from .masked_lm import MaskedLMConfig
from .objectives import ObjectiveConfig

GRADIENTS = ("scaled", "plain")
HEAD_INITS = ("pretrained", "top_layers", "random")


@dataclass
class AuxiliaryMaskedLMConfig(MaskedLMConfig):
    """Settings of :class:`AuxiliaryMaskedLM`.

    Arguments:
        weight: λ of Eq. 7; 1e-5 is the best of Table 8 (the 0.005 of §4.2 is worse there than no auxiliary loss).
        probability: share of masked tokens; 0.40 is the best of Table 7. The released script for BERT-large has 0.30.
        views: 2 masks both views, 1 halves the cost.
        layer: k, the layers of the frozen copy; 0: 6 as in the paper (§3.1), or half of the encoder's (at least 1)
            where it has fewer than 12. The head of stage 1 belongs to one k.
        head_layers: trainable layers on top; 2 in the paper (§3.1).
        detach: keep the lower copy frozen (§3.2). False trains it as well (Table 6, one point lower).
        gradient: ``plain`` is λ·CE as printed in Eq. 7. At λ = 1e-5 most gradients of the head then lie below Adam's
            ε = 1e-8, and the head hardly learns. ``scaled`` multiplies only the gradient that reaches the encoder by
            λ; the head learns from CE itself, clipped as a group of its own. The logged term is λ·CE in both.
        head_init: ``pretrained`` takes the head of a stage-1 checkpoint (§3.1), ``top_layers`` the encoder's own upper
            layers (Table 4, w/o pre-training), both with the checkpoint's masked-LM head; ``random`` takes nothing
            (the head of the released code where its local file is missing).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "aux_mlm"
    weight: float = 1e-5
    probability: float = 0.40
    layer: int = 0
    head_layers: int = 2
    detach: bool = True
    gradient: str = "scaled"
    head_init: str = "pretrained"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layer, int) or self.layer < 0:
            raise ValueError(f"aux_mlm_layer must be 0 (automatic) or a number of layers, got {self.layer!r}")
        if not isinstance(self.head_layers, int) or self.head_layers < 1:
            raise ValueError(f"aux_mlm_head_layers must be at least 1, got {self.head_layers!r}")
        for field, allowed in (("gradient", GRADIENTS), ("head_init", HEAD_INITS)):
            value = getattr(self, field)
            if value not in allowed:
                raise ValueError(f"aux_mlm_{field} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


class InfoCSEConfig(CSEConfig):
    """Configuration of InfoCSE: :class:`CSEConfig` with :class:`AuxiliaryMaskedLMConfig`. Differs in ``projector``,
    batchnorm as in its released scripts."""

    model_type = "infocse"

    projector: str = "batchnorm"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [AuxiliaryMaskedLMConfig()]
