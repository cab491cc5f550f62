"""DiffCSE (Chuang et al., 2022): contrast and conditional replaced token detection. Defaults: BERT-base, Table 12."""

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import AutoConfig

from .configuration_cse import CSEConfig
from .generator import check_same_vocabulary
from .objectives import EditSpec, ObjectiveConfig


@dataclass
class EditingConfig(ObjectiveConfig):
    """Settings of an objective whose texts a generator edits.

    Arguments:
        probability: share of the tokens that are chosen.
        generator: name or path of a masked LM with the encoder's vocabulary; None is the checkpoint that the encoder
            comes from. ``from_backbone`` writes it here; the generator itself is never saved.
        edit_scope: the generator fills the ``masked`` places, or ``all`` of the sentence's tokens anew.
        edit_sampling: it draws from its distribution (``sample``), or takes the likeliest token (``argmax``).
        edit_operation: ``replace``, ``insert``, ``delete`` or ``all`` (Table 4); see :class:`EditSpec`.
        generator_dropout: the generator's own dropout is on in training.
    """

    probability: float = 0.30
    generator: str | None = None
    edit_scope: str = "masked"
    edit_sampling: str = "sample"
    edit_operation: str = "replace"
    generator_dropout: bool = False

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {
        "edit_scope": ("masked", "all"),
        "edit_sampling": ("sample", "argmax"),
        "edit_operation": ("replace", "insert", "delete", "all"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability < 1:
            raise ValueError(f"{self.name}_probability must lie between 0 and 1, got {self.probability!r}")
        for field, allowed in self._allowed.items():
            value = getattr(self, field)
            if value not in allowed:
                options = ", ".join(map(repr, allowed))
                raise ValueError(f"{self.name}_{field} must be one of {options}, got {value!r}")

    @property
    def batch_spec(self) -> EditSpec:
        """What these settings ask of the collator."""
        return EditSpec(probability=self.probability, views=1, operation=self.edit_operation)

    def complete(self, name_or_path: str) -> None:
        """Settle the generator and check its vocabulary against that of the encoder's checkpoint.

        Raises:
            ValueError: the vocabularies differ; the message says in what.
        """
        self.generator = self.generator or name_or_path
        if self.generator != name_or_path:
            check_same_vocabulary(name_or_path, self.generator, f"{self.name}_generator")


@dataclass
class ReplacedTokenDetectionConfig(EditingConfig):
    """Settings of :class:`ReplacedTokenDetection`.

    Arguments:
        weight: λ (Table 8).
        condition: what the discriminator sees of the sentence: ``z`` (projected) or ``h`` (the pooled state).
        condition_sentence: which sentence is edited: the ``same`` that conditions, the ``next`` one of the text (the
            corpus's last column) or ``both`` (Table 3).
        rtd_positions: the loss is a mean over the ``real`` tokens (the sentence's own that are not special), or
            ``all``, padding and special tokens included.
        discriminator: name or path of its first weights, any encoder with the vocabulary; None is the checkpoint that
            the encoder comes from.
        discriminator_config: of another discriminator; written by ``from_backbone``.
        views: 2 edits both views' texts, each with its own vector; 1 only the first's.
    """

    name: ClassVar[str] = "rtd"
    weight: float = 0.005
    condition: str = "z"
    condition_sentence: str = "same"
    rtd_positions: str = "real"
    discriminator: str | None = None
    discriminator_config: dict | None = None
    views: int = 2

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {
        **EditingConfig._allowed,
        "condition": ("z", "h"),
        "condition_sentence": ("same", "next", "both"),
        "rtd_positions": ("real", "all"),
        "views": (1, 2),
    }

    @property
    def batch_spec(self) -> EditSpec:
        text = {"same": "own"}.get(self.condition_sentence, self.condition_sentence)
        return EditSpec(probability=self.probability, views=self.views, operation=self.edit_operation, text=text)

    def complete(self, name_or_path: str) -> None:
        super().complete(name_or_path)
        if self.discriminator not in (None, name_or_path):
            check_same_vocabulary(name_or_path, str(self.discriminator), f"{self.name}_discriminator")
            self.discriminator_config = AutoConfig.from_pretrained(self.discriminator).to_dict()
            self.discriminator_config.pop("_name_or_path", None)


@dataclass
class EditedContrastConfig(EditingConfig):
    """Settings of :class:`EditedContrast`.

    Arguments:
        use_edited_as: edited sentences are further ``positive`` or ``negative`` examples (Table 15).
    """

    name: ClassVar[str] = "edited"
    weight: float = 1.0
    probability: float = 0.15
    use_edited_as: str = "negative"

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {
        **EditingConfig._allowed,
        "use_edited_as": ("positive", "negative"),
    }


class DiffCSEConfig(CSEConfig):
    """Configuration of DiffCSE: :class:`CSEConfig` with :class:`ReplacedTokenDetectionConfig` and the batchnorm
    projector (Table 5)."""

    model_type = "diffcse"

    projector: str = "batchnorm"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [ReplacedTokenDetectionConfig()]
