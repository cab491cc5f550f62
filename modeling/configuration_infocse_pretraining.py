"""Configuration of stage 1 of InfoCSE: a masked LM with an auxiliary head (Wu et al., 2022, §3.1)."""

from typing import Any

from .auxiliary_head import lower_layers
from .base import EncoderWrapperConfig

PRETRAINING_OBJECTIVES = ("condenser", "mlm")
HEAD_INITS = ("top_layers", "new")


class InfoCSEPretrainingConfig(EncoderWrapperConfig):
    """Configuration of :class:`InfoCSEForPreTraining`.

    Arguments:
        encoder_config: configuration of the backbone, any encoder with a masked LM in Transformers (default: BERT).
        objective: ``condenser`` (the ordinary masked LM and that of the auxiliary head) or ``mlm`` (the ordinary one
            alone, without auxiliary head).
        head_layers: layers of the auxiliary head; 2 in the paper.
        split_layer: k, the encoder layer whose states the head reads at all positions but the first. Default: 6 as in
            the paper; in encoders of fewer than 12 layers half of them, rounded down, at least 1.
        head_init: the first weights of the auxiliary head, if the checkpoint has none: ``top_layers`` copies the
            encoder's last layers, ``new`` draws new ones, as Condenser's code does.

    Raises:
        ValueError: a value that is not allowed.
    """

    model_type = "infocse_pretraining"

    objective: str = "condenser"
    head_layers: int = 2
    split_layer: int | None = None
    head_init: str = "top_layers"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.split_layer is None and self.objective == "condenser":
            self.split_layer = lower_layers(self.encoder_config)
        self._check()

    def _check(self) -> None:
        if self.objective not in PRETRAINING_OBJECTIVES:
            allowed = ", ".join(map(repr, PRETRAINING_OBJECTIVES))
            raise ValueError(f"objective must be one of {allowed}, got {self.objective!r}")
        if not isinstance(self.head_layers, int) or self.head_layers < 1:
            raise ValueError(f"head_layers must be at least 1, got {self.head_layers!r}")
        if self.head_init not in HEAD_INITS:
            raise ValueError(f"head_init must be one of {', '.join(map(repr, HEAD_INITS))}, got {self.head_init!r}")
        if self.objective == "condenser" and not 1 <= int(self.split_layer or 0) <= self.num_layers:
            raise ValueError(
                f"split_layer must be one of the encoder's layers 1..{self.num_layers}, got {self.split_layer!r}"
            )

    @property
    def num_layers(self) -> int:
        """Number of the encoder's layers."""
        return int(self.encoder_config.num_hidden_layers)
