"""MSSE (anonymous ACL submission): contrast, dimension-level contrast, information compensation. Defaults: BERT-base,
unsupervised (Table 5)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from .configuration_cse import CSEConfig
from .objectives import ObjectiveConfig

REDUCTIONS = ("balanced", "sum")
REPRESENTATIONS = ("h", "z")
DECODERS = ("causal", "denoising")
TARGETS = ("original", "positive")
TEMPLATE = '"{sentence}" means {mask}.'


@dataclass
class DimensionContrastConfig(ObjectiveConfig):
    """Settings of :class:`DimensionContrast`.

    Arguments:
        weight: μ of Eq. 10 (Appendix A).
        reduction: ``sum`` is Eq. 4 to the letter. With B rows its minimum, H − (B − 1), lies where the two views of a
            dimension correlate by (B − 1)/H: a third at B = 256, H = 768. ``balanced`` takes means over the same and
            over different dimensions instead.
        representation: ``h`` (the pooled state, as Eqs. 2 and 3) or ``z`` (projected).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "dcm"
    weight: float = 0.8
    reduction: str = "balanced"
    representation: str = "h"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "reduction", REDUCTIONS)
        _one_of(self, "representation", REPRESENTATIONS)


@dataclass
class InformationCompensationConfig(ObjectiveConfig):
    """Settings of :class:`InformationCompensation`. The paper says nothing of the decoder.

    Arguments:
        weight: γ of Eq. 10 (Appendix A); of a mean over tokens, where Eq. 9 prints a sum.
        target: the ``original`` sentence, or its ``positive`` (the same where the corpus has one column).
        representation: ``h`` (the pooled state, as Eq. 9) or ``z`` (projected).
        decoder: ``causal`` (the tokens before, teacher forcing) or ``denoising`` (DenoSent, He et al. 2024: all
            tokens' embeddings with ``element_dropout``).
        decoder_layers: 1 or 2 for the causal kind; DenoSent's preset has 16.
        decoder_heads: 0: as many as the encoder's; DenoSent's preset has 1.
        decoder_dropout: of the decoder's states.
        word_dropout: share of the input tokens that become the mask token. A causal decoder that sees them all can do
            without h: ``icm_gap`` in the log tells.
        element_dropout: of the elements of the denoising kind's input.

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "icm"
    weight: float = 0.2
    target: str = "original"
    representation: str = "h"
    decoder: str = "causal"
    decoder_layers: int = 1
    decoder_heads: int = 0
    decoder_dropout: float = 0.1
    word_dropout: float = 0.0
    element_dropout: float = 0.825

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "target", TARGETS)
        _one_of(self, "representation", REPRESENTATIONS)
        _one_of(self, "decoder", DECODERS)
        for field, least in (("decoder_layers", 1), ("decoder_heads", 0)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"icm_{field} must be a whole number of at least {least}, got {value!r}")
        for field, most in (("decoder_dropout", "below"), ("element_dropout", "below"), ("word_dropout", "at most")):
            value = getattr(self, field)
            allowed = isinstance(value, int | float) and (0 <= value < 1 or (value == 1 and most == "at most"))
            if not allowed:
                raise ValueError(f"icm_{field} must be at least 0 and {most} 1, got {value!r}")


class MSSEConfig(CSEConfig):
    """Configuration of MSSE: :class:`CSEConfig` with :class:`DimensionContrastConfig` and
    :class:`InformationCompensationConfig`. Differs in ``projector``, ``pooling`` and, with that pooling, in
    ``prompt_template``, which is the paper's where none is given."""

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


def _one_of(config: ObjectiveConfig, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(config, field)
    if value not in allowed:
        raise ValueError(f"{config.name}_{field} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
