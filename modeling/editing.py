"""The edited copies of DiffCSE (Chuang et al., 2022, "DiffCSE: Difference-based Contrastive Learning for Sentence
Embeddings"): shared settings, and the base of the objectives whose texts a frozen generator edits.

Shape suffixes: R rows of the copies, K tokens, M positions to fill, H hidden size.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from .generator import Generator, check_same_vocabulary
from .objectives import EditedCopy, EditSpec, Encode, Objective, vectors_of_rows
from .settings import ObjectiveConfig


@dataclass
class CopyConfig(ObjectiveConfig):
    """Settings of an objective with copies of the texts.

    Arguments:
        probability: share of the chosen tokens.

    Raises:
        ValueError: a value that is not allowed.
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
        """The copies that these settings ask of the collator."""
        return EditSpec(probability=self.probability, views=1)


@dataclass
class EditingConfig(CopyConfig):
    """Settings of an objective whose texts a generator edits.

    Arguments:
        generator: name or path of a masked LM with the encoder's vocabulary; None means the backbone's checkpoint, and
            ``from_backbone`` writes its name here. The generator itself is never saved.
        edit_scope: the generator fills the ``masked`` positions, or ``all`` of the sentence's tokens.
        edit_sampling: it draws from its distribution (``sample``), or takes the likeliest token (``argmax``).
        edit_operation: ``replace``, ``insert``, ``delete`` or ``all`` (Table 4); see :class:`EditSpec`.
        generator_dropout: True to keep the generator's own dropout on in training.
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
        """Fill in the generator, and compare its vocabulary with that of the encoder's checkpoint.

        Raises:
            ValueError: the generator's name is empty, or the vocabularies differ; the message says how.
        """
        if self.generator is None:
            self.generator = name_or_path
        if not self.generator.strip():
            raise ValueError(f"{self.name}_generator must be a masked LM's name or folder, got {self.generator!r}")
        if self.generator != name_or_path:
            check_same_vocabulary(name_or_path, self.generator, f"{self.name}_generator")


@dataclass
class ConditionedConfig(CopyConfig):
    """Settings of an objective that reads a copy of a text together with a sentence's vector.

    Arguments:
        condition: the vector: ``z`` (projected) or ``h`` (the pooled state).
        condition_sentence: which sentence is copied: the ``same`` whose vector is read, the ``next`` one of the text
            (the corpus's last column) or ``both`` (Table 3).
        views: 2 copies both views' texts, each with its own vector; 1 copies the first view's only.
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


class EditingObjective(Objective):
    """Base of the objectives whose texts a frozen generator G edits: x″ = G(x′), x′ the masked copy (§3)."""

    def edited_copy(
        self,
        batch: dict[str, Tensor],
        encode: Encode,
        vectors_VBH: Tensor | None = None,
        scored: str | None = "scored",
    ) -> EditedCopy:
        """Gather the copies that an :class:`EditSpec` asked for, and let the generator edit them.

        Arguments:
            vectors_VBH: the vectors of the views; each row of the copies gets its own sentence's.
            scored: the batch's key of the scored positions; None scores all, padding included.
        """
        originals_RK, mask_RK = self._own(batch, "originals"), self._own(batch, "attention_mask")
        edited_RK = self._edit(self._own(batch, "input_ids"), mask_RK, batch, encode)
        positions_M = None if scored is None else self._own(batch, scored)
        labels_M = originals_RK.flatten()
        vectors_RH: Any = None
        if vectors_VBH is not None:
            vectors_RH = vectors_of_rows(vectors_VBH, self.batch_spec.views, len(edited_RK))
        return EditedCopy(
            edited_RK,
            mask_RK,
            positions_M,
            labels_M if positions_M is None else labels_M.index_select(0, positions_M),
            vectors_RH,
            changed=(edited_RK != originals_RK).long(),
        )

    def _edit(self, ids_RK: Tensor, mask_RK: Tensor, batch: dict[str, Tensor], encode: Encode) -> Tensor:
        """Let the generator fill its positions, in the chunks of cached gradients."""
        config = self.config
        positions_M = self._own(batch, "positions" if config.edit_scope == "masked" else "own")
        dropout = config.generator_dropout and self.training

        def fill(ids_RK: Tensor, mask_RK: Tensor, positions_M: Tensor) -> tuple[Tensor]:
            return (self.generator.fill(ids_RK, mask_RK, positions_M, config.edit_sampling, dropout),)

        with torch.no_grad():
            return encode.chunks(fill, (ids_RK, mask_RK), (positions_M,))[0]

    def __init__(self, config: Any, encoder_config: PreTrainedConfig) -> None:
        super().__init__(config, encoder_config)
        self.vocab_size = int(encoder_config.vocab_size)
        self._generator: list[Generator] = []  # in a list, so that it is no submodule and not in the state dict

    @property
    def batch_spec(self) -> EditSpec:
        return self.config.batch_spec

    @property
    def generator(self) -> Generator:
        """The frozen generator.

        Raises:
            RuntimeError: it has not been loaded.
        """
        if not self._generator:
            raise RuntimeError(
                f"objective {self.config.name!r} has no generator yet: call load_frozen(), or reload the model with "
                "from_pretrained(…, training=True)"
            )
        return self._generator[0]

    def load_frozen(self) -> None:
        """Load the generator that the config names, unless it is loaded already.

        Raises:
            ValueError: the config names no generator, or it cannot be loaded.
        """
        name = self.config.generator
        if name is None:
            raise ValueError(f"{self.config.name}_generator must name a masked LM, got None")
        if not self._generator or self._generator[0].name_or_path != name:
            self._generator = [Generator(name, self.vocab_size)]
