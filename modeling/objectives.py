"""The mechanism of the auxiliary objectives: what an objective is given, what it asks for, what it returns.

Shape suffixes: B sentences of a batch, V views, N = V·B rows (view-major: all of view 1, then all of view 2),
L tokens, K tokens of a target, M masked positions, H hidden size, E embedding size of the vocabulary.
"""

import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedConfig

from .gradient_cache import WHOLE_BATCH, Chunks
from .unpadding import run_encoder


@dataclass(frozen=True)
class MaskingSpec:
    """The masked copies that an objective wants from the collator, under the objective's own name.

    The collator adds, for an objective named ``mlm``:

    - ``mlm_input_ids`` (V·B, L) int64: masked copies of the first ``views`` views, view-major. The contrastive input
      is never touched.
    - ``mlm_positions`` (M,) int64: indices of the masked tokens in the flattened (V·B·L) copies, ascending.
    - ``mlm_labels`` (M,) int64: the original ids at these positions.

    Arguments:
        probability: each token that is neither special, padding nor part of a prompt template is chosen with this
            probability, independently.
        views: how many views get a copy (1 or 2).
        mask_share, random_share: what happens to a chosen token: mask token, random token, kept as it is otherwise
            (0.8/0.1/0.1 is BERT's recipe).
    """

    probability: float
    views: int = 2
    mask_share: float = 0.8
    random_share: float = 0.1

    @property
    def further_columns(self) -> int:
        """How many columns behind the contrastive ones the corpus must have."""
        return 0


@dataclass(frozen=True)
class EditSpec(MaskingSpec):
    """Copies that an objective will edit: masked places to fill, and what stood where before.

    The collator adds, for an objective named ``rtd``, R = V·B rows (2·V·B for ``text="both"``), K tokens of their own
    length, all int64:

    - ``rtd_input_ids``, ``rtd_attention_mask`` (R, K): the copies, never longer than the length limit.
    - ``rtd_originals`` (R, K): the ids of the unedited text. -100 where a token counts as edited whatever stands
      there: an inserted one, and the one that follows a deletion.
    - ``rtd_positions`` (M,): the places to fill, in the flattened (R·K) copies, ascending.
    - ``rtd_own``: the places of the sentence's own tokens that are not special, inserted ones included.
    - ``rtd_scored``: these and, where tokens are deleted, the one behind the sentence: the last may be missing.

    Arguments:
        operation: what happens to a chosen token: ``replace`` (as :class:`MaskingSpec` says), ``insert`` (a mask token
            behind it, at the expense of the sentence's end where there is no room), ``delete``, or ``all`` (one of the
            three, with equal probability).
        text: which text is copied: ``own`` (the view's), ``next`` (the corpus's last column, which is then none of the
            contrastive ones) or ``both`` (all rows of ``own``, then all of ``next``).
    """

    operation: str = "replace"
    text: str = "own"

    @property
    def further_columns(self) -> int:
        return int(self.text != "own")


@dataclass(frozen=True)
class TargetSpec(MaskingSpec):
    """A text for a decoder to write: one view of each sentence, without special tokens and template.

    The collator adds, for an objective named ``icm``, K tokens of the longest of the B sentences, all int64:

    - ``icm_input_ids``, ``icm_attention_mask`` (B, K): the sentence's own tokens, from place 0; the chosen ones as
      :class:`MaskingSpec` says.
    - ``icm_positions`` (M,): where its tokens stand that are not special, in the flattened (B·K), ascending.
    - ``icm_labels`` (M,): the original ids there.

    Arguments:
        view: which view, 0 or 1. Of a single column both are the one sentence, with draws of their own.
    """

    view: int = 0


@dataclass
class ObjectiveConfig:
    """Settings of one auxiliary objective. ``name`` is its loss term and its prefix in logs and state dicts."""

    name: ClassVar[str] = ""
    weight: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float):
            raise ValueError(f"{self.name}_weight must be a number, got {self.weight!r}")

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}

    def complete(self, name_or_path: str) -> None:
        """Settle what the checkpoint that the backbone comes from decides. Called by ``from_backbone``, before the
        model is built."""

    @classmethod
    def field_types(cls) -> dict[str, type]:
        """The fields by name, with their types: float, int, str, bool, what may also be None left open; dict for those
        that a command line cannot set."""
        hints = typing.get_type_hints(cls)
        kinds = {field.name: typing.get_args(hints[field.name]) or (hints[field.name],) for field in fields(cls)}
        return {name: kind[0] if kind[0] in (float, int, str, bool) else dict for name, kind in kinds.items()}

    @classmethod
    def field_names(cls) -> set[str]:
        return set(cls.field_types())


@dataclass(frozen=True)
class Views:
    """The encoded views of a batch.

    Arguments:
        h: (V, B, H) raw pooled states, the embeddings of inference.
        z: (V, B, H) after the projector.
        input_ids, attention_mask: (N, L) what was encoded, view-major.
    """

    h: torch.Tensor
    z: torch.Tensor
    input_ids: torch.Tensor
    attention_mask: torch.Tensor


@dataclass(frozen=True)
class Encode:
    """The trained backbone, lent to an objective for one step: ``encode(input_ids (N, L), attention_mask (N, L))``
    gives the last hidden states (N, L, H); with a third argument, places of the flattened (N·L), those alone, (M, H).

    Arguments:
        backbone: what is called.
        word_embeddings: (vocabulary, E) its input embedding matrix, for tied output layers.
        project: texts to projected embeddings: ``project(input_ids (N, L), attention_mask (N, L))`` gives z (N, H).
        temperature: τ of the contrast.
        chunks: runs a network over chunks of rows where gradients are cached, else over all at once.
    """

    backbone: Callable[..., Any]
    word_embeddings: torch.Tensor
    project: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    temperature: float = 0.05
    chunks: Chunks = WHOLE_BATCH

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        return run_encoder(self.backbone, attention_mask, input_ids, places_M=places).last_hidden_state


class Objective(nn.Module):
    """Base of the auxiliary objectives.

    ``objective(views, batch, encode)`` returns ``(terms, metrics)``: its weighted terms by name, added to the
    loss, and detached diagnostics, which are not.
    """

    config_class: ClassVar[type[ObjectiveConfig]] = ObjectiveConfig
    #: Whether it reads ``views.z``. Without any reader, the contrast included, the projector does not train.
    reads_z: bool = True
    #: Whether it works with cached gradients: its networks run through ``encode.chunks`` (or it has none), and none of
    #: them lets a row see another one. What couples rows is computed on what they return, of all rows.
    cacheable: ClassVar[bool] = False

    def __init__(self, config: Any, encoder_config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def batch_spec(self) -> MaskingSpec | None:
        """What the collator shall add to the batch, or nothing."""
        return None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups of own parameters that train at another rate or are clipped apart: dicts with ``params`` and, where
        it differs from the encoder's, ``lr_scale`` (a factor) and ``clip_group`` (a name). Empty: as the encoder."""
        return []

    def freeze(self) -> None:
        """Set ``requires_grad`` to False for own weights that do not train. Called by the model once it is built and
        once it is loaded: ``from_pretrained`` makes every weight trainable."""

    def init_from_checkpoint(self, name_or_path: str) -> None:
        """Fill own weights from the checkpoint that the backbone comes from. Called once, by ``from_backbone``."""

    def load_frozen(self) -> None:
        """Fetch frozen networks that are not part of the state dict. Called by ``from_backbone``,
        ``from_pretrained(training=True)`` and the trainer, never by ``__init__``."""

    def forward(
        self, views: Views, batch: dict[str, torch.Tensor], encode: Encode
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        raise NotImplementedError
