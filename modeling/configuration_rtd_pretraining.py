"""Configuration of replaced-token pre-training (ELECTRA, Clark et al., 2020)."""

from typing import Any

from .base import EncoderWrapperConfig
from .settings import check_number, check_type


class RTDPretrainingConfig(EncoderWrapperConfig):
    """Configuration of :class:`RTDForPreTraining`.

    Arguments:
        encoder_config: configuration of the discriminator's encoder (default: BERT).
        generator_name_or_path: the generator's first weights, a masked LM with the encoder's vocabulary.
            ``from_backbone`` writes the backbone's own name here if it gets none.
        train_generator: True trains the generator beside the discriminator, as the paper does. False keeps it frozen,
            as DiffCSE's: the loss has no term ``mlm`` then, and the checkpoint no generator.
        generator_config: configuration of a trained generator's encoder; ``from_backbone`` writes it. Default: that of
            the discriminator's.
        discriminator_weight: λ; 50 in the paper.

    Raises:
        ValueError: a value that is not allowed.
    """

    model_type = "rtd_pretraining"

    objective = "rtd"
    generator_name_or_path: str | None = None
    train_generator: bool = True
    generator_config: dict[str, Any] | None = None
    discriminator_weight: float = 50.0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_type("train_generator", self.train_generator, bool)
        check_number("discriminator_weight", self.discriminator_weight, 0)
