"""InforMin-CL's reconstruction (Chen et al., 2022, "An Information Minimization Based Contrastive Learning Model for
Unsupervised Sentence Embeddings Learning")."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .losses import mse_reconstruction, squared_norm_reconstruction
from .objectives import Encode, Objective, Views
from .settings import ObjectiveConfig

_FORMS = {"squared_norm": squared_norm_reconstruction, "mse": mse_reconstruction}
RECONSTRUCTIONS = tuple(_FORMS)


@dataclass
class ReconstructionConfig(ObjectiveConfig):
    """Settings of :class:`Reconstruction`.

    Arguments:
        weight: λ of Eq. 9; 0.4 for BERT-base, 4 for RoBERTa-base and -large (Table 3).
        reconstruction: ``squared_norm`` (Eq. 8) or ``mse`` (mean over elements, both directions: 2/H of it).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "reconstruction"
    weight: float = 0.4
    reconstruction: str = "squared_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reconstruction not in RECONSTRUCTIONS:
            allowed = ", ".join(map(repr, RECONSTRUCTIONS))
            raise ValueError(f"reconstruction must be one of {allowed}, got {self.reconstruction!r}")


class Reconstruction(Objective):
    """λ·L_R: rebuild each view from the other, which removes what the two do not share (Eqs. 8 and 9)

    L = L_NCE + λ·L_R,  L_R = (1/B) Σ_i ‖ẑ1_i − ẑ2_i‖²,  ẑ = z / ‖z‖
    """

    config_class = ReconstructionConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        L_R = _FORMS[self.config.reconstruction](views.z[0].float(), views.z[1].float())
        return {"reconstruction": self.config.weight * L_R}, {}
