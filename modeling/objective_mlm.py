"""The masked LM as an objective: SimCSE + MLM (InfoCSE Tables 1 and 10), β of InforMin-CL (Table 6)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from transformers import PreTrainedConfig

from .masked_lm_head import MaskedLMHead
from .objectives import Encode, MaskedCopy, MaskingSpec, Objective, Views
from .settings import ObjectiveConfig, check_choice


@dataclass
class MaskedTokensConfig(ObjectiveConfig):
    """Settings of an objective that predicts masked tokens.

    Arguments:
        weight: factor of the term in the loss.
        probability: share of masked tokens.
        views: 2 masks both views, 1 halves the cost.

    Raises:
        ValueError: a value that is not allowed.
    """

    probability: float = 0.15
    views: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability < 1:
            raise ValueError(f"{self.name}_probability must lie between 0 and 1, got {self.probability!r}")
        if self.views not in (1, 2):
            raise ValueError(f"{self.name}_views must be 1 or 2, got {self.views!r}")


@dataclass
class MaskedLMConfig(MaskedTokensConfig):
    """Settings of :class:`MaskedLM`, besides those of :class:`MaskedTokensConfig`.

    Arguments:
        weight: β; 0.1 in SimCSE + MLM and in InforMin-CL.
        tied: True to use the word embeddings as output matrix. False trains a copy of the checkpoint's output matrix
            instead, as the released code of SimCSE and InforMin-CL does.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "mlm"
    weight: float = 0.1
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "tied", (True, False))


class MaskedLM(Objective):
    """β·L_MLM: predict the masked tokens of copies that go through the SAME encoder

    L = L_NCE + β·L_MLM,  L_MLM = (1/|M|) Σ_{t∈M} −log p(x_t | masked copy)

    M is the set of masked tokens of all copies and processes.
    """

    config_class = MaskedLMConfig
    reads_z = False
    reads_vectors = False
    cacheable = True
    compares_views = False

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        L_MLM, accuracy = self.token_means(self.masked_copy(views, batch), encode)
        return {"mlm": self.config.weight * L_MLM}, {"mlm_accuracy": accuracy}

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, Tensor]:
        """Return −log p(x_t) of each masked token, and whether the likeliest token is right, (M,) each."""
        states_MH = encode(copy.ids, copy.mask, copy.positions)
        return self.head(states_MH, copy.labels, encode.word_embeddings)

    def __init__(self, config: MaskedLMConfig, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.head = MaskedLMHead(encoder_config, tied=config.tied)

    @property
    def batch_spec(self) -> MaskingSpec:
        return MaskingSpec(probability=self.config.probability, views=self.config.views)

    def init_from_checkpoint(self, name_or_path: str) -> None:
        self.head.init_from(name_or_path)
