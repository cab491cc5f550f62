"""DiffCSE (Chuang et al., 2022): contrast and conditional replaced token detection. Defaults: BERT-base, Table 12."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import AutoConfig

from .configuration_cse import CSEConfig
from .generator import check_same_vocabulary
from .objectives import EditSpec, ObjectiveConfig


@dataclass
class CopyConfig(ObjectiveConfig):
    """Settings of an objective over copies of the texts.

    Arguments:
        probability: share of the tokens that are chosen.
    """

    probability: float = 0.30

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability < 1:
            raise ValueError(f"{self.name}_probability must lie between 0 and 1, got {self.probability!r}")
        allowed: dict[str, tuple[Any, ...]] = {}
        for kind in reversed(type(self).__mro__):
            allowed |= vars(kind).get("_allowed", {})
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                options = ", ".join(map(repr, values))
                raise ValueError(f"{self.name}_{field} must be one of {options}, got {getattr(self, field)!r}")

    @property
    def batch_spec(self) -> EditSpec:
        """What these settings ask of the collator."""
        return EditSpec(probability=self.probability, views=1)


@dataclass
class EditingConfig(CopyConfig):
    """Settings of an objective whose texts a generator edits.

    Arguments:
        generator: name or path of a masked LM with the encoder's vocabulary; None is the checkpoint that the encoder
            comes from. ``from_backbone`` writes it here; the generator itself is never saved.
        edit_scope: the generator fills the ``masked`` places, or ``all`` of the sentence's tokens anew.
        edit_sampling: it draws from its distribution (``sample``), or takes the likeliest token (``argmax``).
        edit_operation: ``replace``, ``insert``, ``delete`` or ``all`` (Table 4); see :class:`EditSpec`.
        generator_dropout: the generator's own dropout is on in training.
    """

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

    @property
    def batch_spec(self) -> EditSpec:
        return replace(super().batch_spec, operation=self.edit_operation)

    def complete(self, name_or_path: str) -> None:
        """Settle the generator and check its vocabulary against that of the encoder's checkpoint.

        Raises:
            ValueError: the vocabularies differ; the message says in what.
        """
        self.generator = self.generator or name_or_path
        if self.generator != name_or_path:
            check_same_vocabulary(name_or_path, self.generator, f"{self.name}_generator")


@dataclass
class ConditionedConfig(CopyConfig):
    """Settings of an objective that reads a copy of a text together with a sentence's vector.

    Arguments:
        condition: the vector: ``z`` (projected) or ``h`` (the pooled state).
        condition_sentence: which sentence is copied: the ``same`` that conditions, the ``next`` one of the text (the
            corpus's last column) or ``both`` (Table 3).
        views: 2 copies both views' texts, each with its own vector; 1 only the first's.
    """

    condition: str = "z"
    condition_sentence: str = "same"
    views: int = 2

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {
        "condition": ("z", "h"),
        "condition_sentence": ("same", "next", "both"),
        "views": (1, 2),
    }

    @property
    def batch_spec(self) -> EditSpec:
        text = "own" if self.condition_sentence == "same" else self.condition_sentence
        return replace(super().batch_spec, views=self.views, text=text)


@dataclass
class ReplacedTokenDetectionConfig(ConditionedConfig, EditingConfig):
    """Settings of :class:`ReplacedTokenDetection`, besides those of :class:`EditingConfig` and
    :class:`ConditionedConfig`.

    Arguments:
        weight: λ (Table 8).
        rtd_positions: the loss is a mean over the ``real`` tokens (the sentence's own that are not special), or
            ``all``, padding and special tokens included.
        discriminator: name or path of its first weights, any encoder with the vocabulary; None is the checkpoint that
            the encoder comes from.
        discriminator_config: of another discriminator; written by ``from_backbone``.
    """

    name: ClassVar[str] = "rtd"
    weight: float = 0.005
    rtd_positions: str = "real"
    discriminator: str | None = None
    discriminator_config: dict[str, Any] | None = None

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"rtd_positions": ("real", "all")}

    def complete(self, name_or_path: str) -> None:
        super().complete(name_or_path)
        if self.discriminator not in (None, name_or_path):
            check_same_vocabulary(name_or_path, str(self.discriminator), f"{self.name}_discriminator")
            self.discriminator_config = AutoConfig.from_pretrained(self.discriminator).to_dict()
            self.discriminator_config.pop("_name_or_path", None)


@dataclass
class ConditionalMaskedLMConfig(ConditionedConfig):
    """Settings of :class:`ConditionalMaskedLM` (Table 3). The paper gives no weight: the default is λ of DiffCSE."""

    name: ClassVar[str] = "conditional_mlm"
    weight: float = 0.005


@dataclass
class CorrectiveLMConfig(ConditionedConfig, EditingConfig):
    """Settings of :class:`CorrectiveLM` (Table 3). The paper gives neither weight; an inserted or deleted token has no
    original to recover, so the only edit is ``replace``.

    Arguments:
        copy_weight: of the copy mechanism's loss beside the language model's; 50 in COCO-LM.
    """

    name: ClassVar[str] = "corrective_lm"
    weight: float = 0.005
    copy_weight: float = 50.0

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"edit_operation": ("replace",)}


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

    _allowed: ClassVar[dict[str, tuple[Any, ...]]] = {"use_edited_as": ("positive", "negative")}


class DiffCSEConfig(CSEConfig):
    """Configuration of DiffCSE: :class:`CSEConfig` with :class:`ReplacedTokenDetectionConfig` and the batchnorm
    projector (Table 5)."""

    model_type = "diffcse"

    projector: str = "batchnorm"

    @classmethod
    def default_objectives(cls) -> list[ObjectiveConfig]:
        return [ReplacedTokenDetectionConfig()]
