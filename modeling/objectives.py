"""The mechanism of the auxiliary objectives: what an objective gets, what it asks for, what it returns.

Shape suffixes: B sentences of a batch, V views, N = V·B rows (view-major: all of view 1, then all of view 2),
L tokens, R rows of an objective's copies, K tokens of a copy, M positions in the flattened (R·K) copies, H hidden
size, E embedding size of the vocabulary.
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .distributed import token_mean
from .fast_cache import WHOLE_BATCH, Chunks
from .fast_counts import first_rows
from .fast_packing import run_encoder
from .perturbation import PERTURBATIONS
from .settings import ObjectiveConfig

# What an objective asks of the collator


@dataclass(frozen=True)
class MaskingSpec:
    """Request masked copies of the views from the collator.

    The collator adds, for an objective named ``mlm``:

    - ``mlm_input_ids`` (V·B, L) int64: masked copies of the first ``views`` views, view-major. The contrastive input
      stays as it is.
    - ``mlm_positions`` (M,) int64: ascending indices of the masked tokens in the flattened (V·B·L) copies.
    - ``mlm_labels`` (M,) int64: the original ids at these positions.

    Arguments:
        probability: each token is chosen independently with this probability. Special tokens, padding and the tokens
            of a prompt template are never chosen.
        views: number of views that get a copy (1 or 2).
        mask_share, random_share: shares of the chosen tokens that become the mask token or a random token; the rest
            stays as it is (0.8/0.1/0.1 is BERT's recipe).
    """

    probability: float
    views: int = 2
    mask_share: float = 0.8
    random_share: float = 0.1

    @property
    def further_columns(self) -> int:
        """The number of columns that the corpus needs besides the contrastive ones."""
        return 0


@dataclass(frozen=True)
class EditSpec(MaskingSpec):
    """Request copies to edit: positions to fill, and the ids of the unedited text.

    The collator adds, for an objective named ``rtd``, R = V·B rows (2·V·B for ``text="both"``) of K tokens, the length
    of the longest copy, all int64:

    - ``rtd_input_ids``, ``rtd_attention_mask`` (R, K): the copies, never longer than the length limit.
    - ``rtd_originals`` (R, K): the ids of the unedited text; -100 where a token counts as edited whatever its id: an
      inserted token, and the token after a deletion.
    - ``rtd_positions`` (M,): ascending positions to fill, in the flattened (R·K) copies.
    - ``rtd_own``: the positions of the sentence's own tokens that are not special, inserted ones included.
    - ``rtd_scored``: the same; if tokens are deleted, also the token behind the sentence, since the last token of the
      sentence may be missing.

    Arguments:
        operation: what happens to a chosen token: ``replace`` (see :class:`MaskingSpec`), ``insert`` (a mask token
            behind it; the sentence loses its end if there is no room), ``delete``, or ``all`` (one of the three, with
            equal probability).
        text: which text is copied: ``own`` (the view's), ``next`` (the corpus's last column, which is then not a
            contrastive one) or ``both`` (all rows of ``own``, then all rows of ``next``).
    """

    operation: str = "replace"
    text: str = "own"

    @property
    def further_columns(self) -> int:
        return int(self.text != "own")


@dataclass(frozen=True)
class TargetSpec(MaskingSpec):
    """Request a text for a decoder to write: one view of each sentence, without special tokens and template.

    The collator adds, for an objective named ``icm``, K tokens of the longest of the B sentences, all int64:

    - ``icm_input_ids``, ``icm_attention_mask`` (B, K): the sentence's own tokens from position 0; the chosen ones
      masked as :class:`MaskingSpec` says.
    - ``icm_positions`` (M,): ascending positions of its tokens that are not special, in the flattened (B·K).
    - ``icm_labels`` (M,): the original ids there.

    Arguments:
        view: which view, 0 or 1. A corpus of one column has the same sentence in both, masked independently.
    """

    view: int = 0


@dataclass(frozen=True)
class SpanSpec(MaskingSpec):
    """Request two nested maskings of the first view: a span of tokens, and a longer span around it.

    The collator adds, for an objective named ``triplet``, ``triplet_input_ids`` (2·B, L) int64: the B sentences with
    the short span as mask tokens, then with the long one. Their attention mask is the first view's.

    Arguments:
        probability: length of the short span, as a share of the sentence's own tokens, rounded.
        longer: length of the long one.
    """

    views: int = 1
    mask_share: float = 1.0
    random_share: float = 0.0
    longer: float = 1.0


#: The kinds of further positives of a sentence: itself (under another dropout), copies with some of its words changed
#: or a span masked, the corpus's last column, e.g. a back-translation, which is then not a contrastive one; and two
#: texts whose states make one positive: its two halves, and the corpus's last two columns.
POSITIVES = ("dropout", "shuffle", "reverse", "delete", "repeat", "mask", "column", "halves", "parts")
#: The kinds that are made of two texts.
COMPOSED = ("halves", "parts")
#: Their name among the copies of a batch.
FURTHER_POSITIVES = "further_positives"


@dataclass(frozen=True)
class PositivesSpec(MaskingSpec):
    """Request P further positives of each sentence, the first text of its row.

    The collator adds, for the name ``further_positives``, R rows of K tokens, kind by kind, both int64:

    - ``further_positives_input_ids``, ``further_positives_attention_mask`` (R, K): the texts, with the first view's
      template if there is one. R is B for each kind; 2·B for one that is composed of two texts, all first ones before
      all second ones.

    Arguments:
        kinds: of :data:`POSITIVES`, one for each further positive; a kind may come several times. Those that change
            words change the share that is the default of ``--augmentation``, and draw anew each time.
    """

    probability: float = 0.0
    mask_share: float = 0.0
    random_share: float = 0.0
    kinds: tuple[str, ...] = ()

    @property
    def further_columns(self) -> int:
        return 2 if "parts" in self.kinds else int("column" in self.kinds)

    @property
    def texts(self) -> tuple[int, ...]:
        """The number of texts of each kind."""
        return tuple(2 if kind in COMPOSED else 1 for kind in self.kinds)


@dataclass(frozen=True)
class DeletionSpec(MaskingSpec):
    """Request a copy of the first view with tokens deleted, and the tokens of the view for a decoder to write.

    The collator adds, for an objective named ``tsdae``, all int64:

    - ``tsdae_input_ids``, ``tsdae_attention_mask`` (B, K): the copies, K tokens of the longest.
    - ``tsdae_positions`` (M,): ascending positions, in the flattened (B·L) of the first view, of the sentence's own
      tokens and of the token behind it. The first token of a text is left out: nothing comes before it.
    - ``tsdae_labels`` (M,): the ids there.

    Arguments:
        probability: each of the sentence's own tokens is deleted independently with this probability. If all were, one
            of them stays. Special tokens, padding and the tokens of a prompt template stay.
    """

    views: int = 1
    mask_share: float = 0.0
    random_share: float = 0.0


@dataclass(frozen=True)
class PerturbationSpec(MaskingSpec):
    """Request draws for the token embeddings of the first two views, R = 2·B rows of L tokens, view-major.

    The collator adds, for the name ``perturbations``, those that a kind needs:

    - ``perturbations_order`` (R, L) int64: the place from which each place takes its token (``shuffle``).
    - ``perturbations_tokens`` (R, L), ``perturbations_features`` (R, E), bool: False where the whole token or the
      whole feature becomes 0 (``token_cutoff``, ``feature_cutoff``; both come with each of the three cuts).
    - ``perturbations_elements`` (R, L, E) bool: False where a single element becomes 0 (``dropout``).

    Special tokens, padding and the tokens of a prompt template keep their places, and are cut by feature alone.

    Arguments:
        first, second: the kinds of each view with their rates. Of n tokens, or E features, ⌊rate·n⌋ are cut off; each
            element is dropped with this probability. ``shuffle`` moves all tokens.
        width: E, the width of the embedding layer.
    """

    probability: float = 0.0
    mask_share: float = 0.0
    random_share: float = 0.0
    first: tuple[tuple[str, float], ...] = ()
    second: tuple[tuple[str, float], ...] = ()
    width: int = 0

    @property
    def kinds(self) -> set[str]:
        """The kinds of both views."""
        return {kind for kind, _ in (*self.first, *self.second)}


def further_columns(specs: Mapping[str, MaskingSpec]) -> int:
    """Return the number of columns that a corpus needs besides the contrastive ones."""
    return max((spec.further_columns for spec in specs.values()), default=0)


# What an objective gets


@dataclass(frozen=True)
class Views:
    """The encoded views of a batch.

    Arguments:
        h: (V, B, H) raw pooled states, the embeddings of inference.
        z: (V, B, H) after the projector.
        input_ids, attention_mask: (N, L) the encoded tokens, view-major.
        texts: (V, B) int64, a hash of each text (``text_keys``), without the template's tokens if templates differ. An
            augmented or masked text has the hash of the text that it was made of.
        further: (P, B, H) the projected further positives, kind by kind; None without any.
        raw: (V, B, H) what the projector reads: h, or h less its template's vector.
        attentions: the layers whose attention an objective reads, each (V, B, A, L, L): the probabilities of A heads,
            after dropout, 0 for padding.
        width: H if h and z may be cut to the first dimensions (Matryoshka), else 0.
    """

    h: Tensor
    z: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    texts: Tensor = None  # type: ignore[assignment]  # the model always gives them
    further: Tensor | None = None
    raw: Tensor = None  # type: ignore[assignment]  # the model always gives it
    width: int = 0
    attentions: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def positives(self) -> Tensor:
        """All positives, projected, (1 + P, B, H): the second view and the further ones."""
        return self.z[1:2] if self.further is None else torch.cat([self.z[1:2], self.further])

    def vectors(self, name: str) -> Tensor:
        """Return ``z`` or ``h`` for a network, (V, B, H); zeros behind the dimensions that a Matryoshka size keeps."""
        found = self.z if name == "z" else self.h
        return torch.nn.functional.pad(found, (0, max(self.width - found.shape[-1], 0))) if self.width else found


@dataclass(frozen=True)
class Encode:
    """The trained backbone, lent to an objective for one step.

    ``encode(input_ids (N, L), attention_mask (N, L))`` returns the last hidden states (N, L, H). With a third
    argument, positions in the flattened (N·L), it returns the states there, (M, H).

    Arguments:
        backbone: the encoder.
        word_embeddings: (vocabulary, E) its input embedding matrix, for tied output layers.
        project: ``project(input_ids (N, L), attention_mask (N, L))`` returns the projected embeddings z (N, H), with
            ``dropout=False`` those without the encoder's dropout.
        temperature: τ of the contrast.
        chunks: runs a network in chunks of rows if gradients are cached, else on all rows at once.
        embed: ``embed(copy, input_ids (N, L), attention_mask (N, L))`` returns z (N, H) by a copy of the backbone,
            without gradient and dropout, and batch statistics stay. The texts are like those of the first view.
        views_by: ``views_by(network)`` encodes views and further positives by another encoder of the same family, with
            gradient, and returns them as ``Views``.
        pooled: ``pooled(input_ids (N, L), attention_mask (N, L))`` returns the pooled states h (N, H); with
            ``dropout=False`` those without the encoder's dropout, with ``backbone`` those of another encoder.
    """

    backbone: Callable[..., Any]
    word_embeddings: Tensor
    project: Callable[..., Tensor] | None = None
    temperature: float = 0.05
    chunks: Chunks = WHOLE_BATCH
    embed: Callable[[Any, Tensor, Tensor], Tensor] = None  # type: ignore[assignment]  # the model always gives it
    views_by: Callable[[Any], Views] = None  # type: ignore[assignment]  # the model always gives it
    pooled: Callable[..., Tensor] | None = None

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, places: Tensor | None = None) -> Tensor:
        return run_encoder(self.backbone, attention_mask, input_ids, places_M=places).last_hidden_state


@dataclass(frozen=True)
class MaskedCopy:
    """An objective's copy of the batch.

    Arguments:
        ids, mask: (R, K) the copied texts and their attention mask.
        positions: (M,) ascending positions in the flattened (R·K) that are scored; None scores all.
        labels: (M,) the original ids there.
        vectors: (R, H) the sentence vector that belongs to each row, if the objective reads one.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor | None
    labels: Tensor
    vectors: Tensor = None  # type: ignore[assignment]  # most objectives read none

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The tensors with one entry per row."""
        return (self.ids, self.mask) if self.vectors is None else (self.ids, self.mask, self.vectors)

    @property
    def places(self) -> tuple[Tensor, ...]:
        """The tensors with one entry per scored position."""
        return () if self.positions is None else (self.positions, self.labels)

    def part(self, *tensors: Tensor) -> "MaskedCopy":
        """The copy of some rows, from their ``rows`` and ``places``."""
        names = ("ids", "mask", "vectors")[: len(self.rows)] + ("positions", "labels")[: len(self.places)]
        own = {field.name: getattr(self, field.name) for field in fields(MaskedCopy)}
        return MaskedCopy(**own | dict(zip(names, tensors, strict=True)))


@dataclass(frozen=True, kw_only=True)
class EditedCopy(MaskedCopy):
    """A copy whose chosen tokens a generator replaced.

    Arguments:
        changed: (R, K) int64, 1 where a token differs from the original, else 0.
    """

    changed: Tensor

    @property
    def changed_M(self) -> Tensor:
        """(M,) int64: ``changed`` at the scored positions."""
        flat = self.changed.flatten()
        return flat if self.positions is None else flat.index_select(0, self.positions)


@dataclass(frozen=True)
class TargetCopy(MaskedCopy):
    """A text for a decoder to write, from the vector of its sentence."""

    @property
    def labels_RK(self) -> Tensor:
        """(R, K) int64: the labels at their positions, -100 elsewhere."""
        empty = torch.full_like(self.ids, -100).flatten()
        return empty.index_copy(0, *self.places).view_as(self.ids)


# The objective


class Objective(nn.Module):
    """Base of the auxiliary objectives.

    ``objective(views, batch, encode)`` returns ``(terms, metrics)``: the weighted terms of the loss by name, and
    detached diagnostics, which are logged only.

    Most objectives score tokens of a copy of the batch. ``masked_copy`` and ``target_copy`` gather it as one object,
    ``run`` computes ``predict`` on it in the chunks of cached gradients, and ``token_means`` averages over the tokens
    of all processes. ``forward`` is then the formula.
    """

    config_class: ClassVar[type[ObjectiveConfig]] = ObjectiveConfig
    #: True if it reads ``views.z``. The projector is frozen if nothing reads it, the contrast included.
    reads_z: bool = True
    #: True if it reads the sentences' vectors, z or h. Matryoshka training computes such a term once for each size.
    reads_vectors: bool = True
    #: True if z may have any size (``projector_size``).
    any_size: ClassVar[bool] = False
    #: True if one view of a sentence is enough. Without the contrast a single sentence is then encoded once.
    one_view: ClassVar[bool] = False
    #: True if it compares two views of a sentence, which are equal for a single sentence without dropout. One with
    #: ``one_view`` compares none.
    compares_views: ClassVar[bool] = True
    #: True if it works with cached gradients: its networks run through ``encode.chunks`` (or it has none) and treat
    #: rows independently; terms that couple rows use the outputs of the full batch.
    cacheable: ClassVar[bool] = False
    #: True if it keeps projected vectors of earlier batches, of the full size.
    keeps_vectors: ClassVar[bool] = False
    #: The encoder's layers, counted from 0, whose attention of the views it reads (``Views.attentions``).
    attention_layers: Sequence[int] = ()
    #: The number of frozen teachers whose vectors it reads: ``batch["teacher_0"]`` (B, D), ``teacher_1``, …
    teachers: int = 0
    #: The number R of the corpus's rows whose vectors, by each teacher, it gets before training (``set_references``).
    references: int = 0
    #: True if it reads the teachers' vectors of all contrastive columns: ``teacher_0_1`` (B, D) of the second, …
    teaches_all_columns: bool = False
    #: True if its teacher is a cross-encoder, whose margins of triplets it reads: ``teacher_0`` (B, 1).
    teaches_margins: ClassVar[bool] = False
    #: False leaves out the diagnostic that costs a forward pass of its own (``CSEModel.measure_gaps``).
    measures_gap: bool = True
    #: The number of contrastive columns that the corpus must have at least.
    columns: ClassVar[int] = 1
    #: True if the teachers' vectors must have the size of z.
    in_teachers_space: bool = False
    #: True if it reads the further positives (``Views.positives``).
    reads_positives: ClassVar[bool] = False
    #: True if it draws all columns of a row together, which the contrast's third column, a negative, contradicts.
    equates_columns: ClassVar[bool] = False
    #: True if a network of its own starts from the layers of the backbone's checkpoint: then the encoder keeps all.
    from_all_layers: ClassVar[bool] = False
    #: Prefixes of own weights that the file of ``objectives_from`` may lack; they then stay new.
    may_stay_new: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any, encoder_config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def counts(self) -> bool:
        """True if its weight is not 0. Otherwise it is not computed, logs nothing, and its weights do not train."""
        return bool(self.config.weight)

    @property
    def batch_spec(self) -> MaskingSpec | None:
        """The copies that the collator adds to the batch; None for no copy."""
        return None

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weighted terms with gradient and the detached diagnostics, each by name, as tensors of shape ().

        A term's name is the objective's, or one that no other term has.

        Arguments:
            views: the encoded views.
            batch: the collator's further keys, with the copies that ``batch_spec`` asks for.
            encode: the backbone.
        """
        raise NotImplementedError

    def predict(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, ...]:
        """Compute a network's outputs on some rows of the copy, one entry per row or per scored position."""
        raise NotImplementedError

    # The copy of the batch

    def masked_copy(self, views: Views, batch: dict[str, Tensor], vectors_VBH: Tensor | None = None) -> MaskedCopy:
        """Gather the copies that a :class:`MaskingSpec` or an :class:`EditSpec` asked for.

        Arguments:
            vectors_VBH: the vectors of the views; each row of the copies gets its own sentence's.
        """
        spec = typing.cast(MaskingSpec, self.batch_spec)
        ids_RK, positions_M = self._own(batch, "input_ids"), self._own(batch, "positions")
        vectors_RH: Any = None
        if vectors_VBH is not None:
            vectors_RH = vectors_of_rows(vectors_VBH, spec.views, len(ids_RK))
        if isinstance(spec, EditSpec):
            labels_M = self._own(batch, "originals").flatten().index_select(0, positions_M)
            return MaskedCopy(ids_RK, self._own(batch, "attention_mask"), positions_M, labels_M, vectors_RH)
        mask_RK = first_rows(views.attention_mask, len(ids_RK))
        return MaskedCopy(ids_RK, mask_RK, positions_M, self._own(batch, "labels"), vectors_RH)

    def target_copy(self, batch: dict[str, Tensor], vectors_VBH: Tensor) -> TargetCopy:
        """Gather the text that a :class:`TargetSpec` asked for, with the first view's vectors."""
        ids_BK, mask_BK = self._own(batch, "input_ids"), self._own(batch, "attention_mask")
        positions_M, labels_M = self._own(batch, "positions"), self._own(batch, "labels")
        return TargetCopy(ids_BK, mask_BK, positions_M, labels_M, vectors_VBH[0])

    def _own(self, batch: dict[str, Tensor], key: str) -> Tensor:
        return batch[f"{self.config.name}_{key}"]

    # Its prediction

    def run(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, ...]:
        """Compute ``predict`` on the copy, in the chunks of cached gradients."""
        return encode.chunks(lambda *part: self.predict(copy.part(*part), encode), copy.rows, copy.places)

    def token_means(self, copy: MaskedCopy, encode: Encode) -> tuple[Tensor, ...]:
        """Compute ``predict`` on the copy; return the mean of each output over the tokens of all processes, ()."""
        found = [each.float() if each.dtype == torch.bool else each for each in self.run(copy, encode)]
        return tuple(token_mean(each_M.sum(), len(each_M)) for each_M in found)

    # Training and loading

    def set_references(self, vectors: Sequence[Tensor]) -> None:
        """Keep the vectors, (R, D), that each teacher gives to ``references`` rows of the corpus."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return groups of parameters with their own learning rate or gradient clipping.

        A group is a dict with ``params`` and, if they differ from the encoder's, ``lr_scale`` (a factor) and
        ``clip_group`` (a name). An empty list trains them like the encoder."""
        return []

    def freeze(self) -> None:
        """Set ``requires_grad`` to False for weights that do not train. The model calls this after it is built and
        after it is loaded: ``from_pretrained`` makes every weight trainable."""

    def init_from_checkpoint(self, name_or_path: str) -> None:
        """Fill weights from the backbone's checkpoint. ``from_backbone`` calls this once."""

    def try_on(self, backbone: PreTrainedModel) -> None:
        """Run what depends on the encoder's family on a short text. ``from_backbone`` calls this once, at its end.

        Raises:
            ValueError: the family lacks what the objective reads.
        """

    def load_frozen(self) -> None:
        """Load frozen networks that are not part of the state dict. ``from_backbone``,
        ``from_pretrained(training=True)`` and the trainer call this, ``__init__`` never does."""


@dataclass(frozen=True)
class Negatives:
    """Further keys of the contrast: negatives of every row, without gradient, the same on all processes.

    Arguments:
        keys: (Q, H).
        weights: (Q,) factors of their exponentials in the denominators; 0 leaves a key out.
        texts: (Q,) int64, the hashes of their texts as in ``Views``, so that ``mask_identical`` finds identical ones;
            None for keys without texts.
    """

    keys: Tensor
    weights: Tensor
    texts: Tensor | None = None


class ContrastModifier(Objective):
    """Base of the objectives that change the contrast and add no term of their own.

    The contrast of a row i with its positive p is −log( e^{l_ip} / (e^{l_ip} + Σ_{k≠p} α_k · e^{l_ik}) ). ``weights``
    gives α of the batch's keys, ``negatives`` further keys with theirs. The model logs ``<name>_left_out``, the sum of
    1 − α over a row's negatives, and ``<name>_cosine``, the mean cosine to the further keys. ``forward`` comes after
    the contrast.
    """

    counts = True

    def weights(self, views: Views, batch: dict[str, Tensor], query: int, key: int) -> Tensor | None:
        """Return α, (B, K) of at least 0: the rows are sentences of this process, the columns those of all.

        Arguments:
            query, key: the views of rows and columns. The positive's α is not read.
        """
        return None

    def negatives(self, views: Views, batch: dict[str, Tensor], encode: Encode) -> Negatives | None:
        """Return further keys."""
        return None

    def forward(
        self, views: Views, batch: dict[str, Tensor], encode: Encode
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {}, {}


def vectors_of_rows(vectors_VBH: Tensor, views: int, rows: int) -> Tensor:
    """Return the vector of each of the view-major copies, (R, H): those of the first ``views`` views, repeated if the
    copies hold next sentences behind the same ones."""
    vectors_NH = vectors_VBH[:views].flatten(0, 1)
    return vectors_NH if rows == len(vectors_NH) else vectors_NH.repeat(rows // len(vectors_NH), 1)


# The registry

#: The registered objectives by name: a saved config and a command line find their classes here.
OBJECTIVES: dict[str, type[Objective]] = {}

#: Names that would clash with fields of the model's config: ``<name>_weight``.
_RESERVED = ("contrastive", "second_view", "hard_negative", FURTHER_POSITIVES, PERTURBATIONS)

Kind = TypeVar("Kind", bound=type[Objective])


def register_objective(objective: Kind) -> Kind:
    """Register an objective's class, so that a config, a checkpoint and a command line know it by name.

    A function or a decorator::

        @register_objective
        class Variance(Objective):
            config_class = VarianceConfig

    Arguments:
        objective: a subclass of :class:`Objective`. ``config_class`` is a dataclass derived from
            :class:`ObjectiveConfig`, and its ``name`` is an identifier that no other objective has.

    Returns:
        the class.

    Raises:
        TypeError: ``objective`` or its ``config_class`` is not such a class.
        ValueError: the name is not an identifier or is reserved, or another objective has it.
    """
    if not (isinstance(objective, type) and issubclass(objective, Objective)):
        raise TypeError(f"objective must be a subclass of Objective, got {objective!r}")
    config_class = objective.config_class
    own = isinstance(config_class, type) and issubclass(config_class, ObjectiveConfig)
    if not own or config_class is ObjectiveConfig or "__dataclass_fields__" not in vars(config_class):
        raise TypeError(
            f"{objective.__name__}.config_class must be a dataclass derived from ObjectiveConfig, got {config_class!r}"
        )
    name = config_class.name
    if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED or hasattr(nn.ModuleDict, name):
        raise ValueError(
            f"{config_class.__name__}.name must be an identifier, the name of the loss term, and none of "
            f"{', '.join(map(repr, _RESERVED))} or an attribute of nn.ModuleDict, got {name!r}"
        )
    other = OBJECTIVES.get(name, objective)
    if (other.__module__, other.__qualname__) != (objective.__module__, objective.__qualname__):
        raise ValueError(
            f"{config_class.__name__}.name must differ from those of the registered objectives "
            f"{list(OBJECTIVES)}, got {name!r}, which is {other.__module__}.{other.__qualname__}"
        )
    OBJECTIVES[name] = objective
    return objective


def registered(name: Any) -> type[Objective]:
    """Return the objective of a name.

    Raises:
        ValueError: no objective of this name is registered.
    """
    if name not in OBJECTIVES:
        raise ValueError(
            f"objective {name!r} is not registered: import the module that registers it with register_objective "
            f"(--import my_module on the command line); registered are {list(OBJECTIVES)}"
        )
    return OBJECTIVES[name]
