"""InforMin-CL (Chen et al., 2022, "An Information Minimization Based Contrastive Learning Model for Unsupervised
Sentence Embeddings Learning")."""

from torch import Tensor

from .configuration_informin import InforMinConfig, ReconstructionConfig
from .losses import mse_reconstruction, squared_norm_reconstruction
from .modeling_cse import CSEModel
from .objectives import Encode, Objective, Views

_FORMS = {"squared_norm": squared_norm_reconstruction, "mse": mse_reconstruction}


class Reconstruction(Objective):
    """λ·L_R: each view is rebuilt from the other, which drops what they do not share (Eq. 8; L = L_C + λ·L_R, Eq. 9)

    L = L_NCE + λ · (1/B) Σ_i ‖ẑ1_i − ẑ2_i‖²
    """

    config_class = ReconstructionConfig
    cacheable = True

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        loss = _FORMS[self.config.reconstruction](views.z[0].float(), views.z[1].float())
        return {"reconstruction": self.config.weight * loss}, {}


class InforMinModel(CSEModel):
    """InforMin-CL: :class:`CSEModel` with :class:`Reconstruction`."""

    config_class = InforMinConfig
