"""Masked copies of texts.

A sentence is masked in the same way in any batch, at any padding, in any worker or process, and after any resume: the
draws are stateless (``csekit.trainers.data.draws``).

Shape suffixes: N rows, L tokens, K tokens of a target, M chosen tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from csekit.modeling.objectives import (
    POSITIVES,
    DeletionSpec,
    EditSpec,
    MaskingSpec,
    PositivesSpec,
    SpanSpec,
    TargetSpec,
)
from csekit.trainers.data.draws import Integers, fold_in, row_keys, unit, unsigned

OPERATIONS, INSERTING, DELETING = ("replace", "insert", "delete", "all"), ("insert", "all"), ("delete", "all")
TEXTS = ("own", "next", "both")


@dataclass(frozen=True)
class MaskingVocabulary:
    """The ids of a tokenizer that masking needs.

    Arguments:
        mask_id: id of the mask token, or None if the tokenizer has none.
        ordinary: (K,) int64 ids that are not special, ascending; random tokens are drawn from them.
        special: (S,) bool, True at special ids (the unknown token is one).
    """

    mask_id: int | None
    ordinary: np.ndarray
    special: np.ndarray

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> "MaskingVocabulary":
        ids = np.unique(np.fromiter(tokenizer.get_vocab().values(), dtype=np.int64))
        reserved = set(tokenizer.all_special_ids)
        reserved |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = np.zeros(max(int(ids[-1]), *reserved, 0) + 1, dtype=bool)
        special[sorted(reserved)] = True
        return cls(tokenizer.mask_token_id, ids[~special[ids]], special)


def check_spec(name: str, spec: MaskingSpec, vocabulary: MaskingVocabulary) -> None:
    """Check a spec.

    Raises:
        ValueError: shares or probability out of range, ``views`` not 1 or 2, a tokenizer without the mask token that
            the spec needs, spans that are not nested.
    """
    if not 0 <= spec.probability <= 1:
        raise ValueError(f"{name}: probability must lie in [0, 1], got {spec.probability}")
    if spec.views not in (1, 2):
        raise ValueError(f"{name}: views must be 1 or 2, got {spec.views}")
    if min(spec.mask_share, spec.random_share) < 0 or spec.mask_share + spec.random_share > 1 + 1e-9:
        raise ValueError(
            f"{name}: mask_share and random_share must be at least 0 and together at most 1, "
            f"got {spec.mask_share} and {spec.random_share}"
        )
    inserts = isinstance(spec, EditSpec) and spec.operation in INSERTING
    if (spec.mask_share > 0 or inserts) and spec.probability > 0 and vocabulary.mask_id is None:
        raise ValueError(
            f"{name}: mask_share={spec.mask_share} needs a tokenizer with a mask token, this one has none"
        )
    if isinstance(spec, TargetSpec) and spec.view not in (0, 1):
        raise ValueError(f"{name}: view must be 0 or 1, got {spec.view}")
    if isinstance(spec, SpanSpec) and not spec.probability < spec.longer <= 1:
        raise ValueError(
            f"{name}: longer must exceed probability and be at most 1, got {spec.longer} and {spec.probability}"
        )
    if isinstance(spec, PositivesSpec) and not set(spec.kinds) <= set(POSITIVES):
        raise ValueError(f"{name}: kinds must be of {POSITIVES}, got {spec.kinds}")
    if isinstance(spec, PositivesSpec) and "mask" in spec.kinds and vocabulary.mask_id is None:
        raise ValueError(f"{name}: kind 'mask' needs a tokenizer with a mask token, this one has none")
    for field, allowed in (("operation", OPERATIONS), ("text", TEXTS)) if isinstance(spec, EditSpec) else ():
        if getattr(spec, field) not in allowed:
            raise ValueError(f"{name}: {field} must be one of {allowed}, got {getattr(spec, field)!r}")


def masked_copy(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    spec: MaskingSpec,
    vocabulary: MaskingVocabulary,
    *,
    seed: int,
    epoch: Integers,
    index: Integers,
    view: Integers,
    name: str,
    words_NL: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make masked copies of N rows of token ids; the rows themselves do not change.

    A token is chosen with ``spec.probability``. A share ``spec.mask_share`` of the chosen tokens becomes the mask
    token, a share ``spec.random_share`` a random ordinary token, the others stay. Special ids are never chosen, even
    in the sentence's own text.

    Arguments:
        ids_NL: (N, L) int64, padded on the right (a token's place counts from the left).
        maskable_NL: (N, L) bool, True at the sentence's own tokens: not at padding, not at a template.
        epoch: one for all rows, or (N,).
        index, view: (N,) each: sample index and view of each row.
        name: the objective's name; objectives draw independently of each other.
        words_NL: (N, L) int64, the number within its row of the word that a token belongs to. The pieces of a word are
            chosen together; each is then replaced independently. Default: every token is a word.

    Returns:
        copies (N, L) int64; positions (M,) int64 of the chosen tokens in the flattened copies, ascending; labels (M,)
        int64, the original ids there. M may be 0.
    """
    chosen_NL, keys_NL = choose(
        ids_NL,
        maskable_NL,
        spec.probability,
        vocabulary,
        seed=seed,
        epoch=epoch,
        index=index,
        view=view,
        name=name,
        words_NL=words_NL,
    )
    positions_M = np.flatnonzero(chosen_NL).astype(np.int64)
    labels_M = ids_NL.reshape(-1)[positions_M]
    copies_NL = ids_NL.copy()
    copies_NL.reshape(-1)[positions_M] = replacement_ids(labels_M, keys_NL.reshape(-1)[positions_M], spec, vocabulary)
    return copies_NL, positions_M, labels_M


def target_copy(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    spec: TargetSpec,
    vocabulary: MaskingVocabulary,
    *,
    pad_id: int,
    multiple: int = 1,
    **draws: Any,
) -> dict[str, np.ndarray]:
    """Make the text that :class:`TargetSpec` describes; the result has its keys without the name.

    Arguments:
        ids_NL, maskable_NL, vocabulary: as in :func:`masked_copy`; the sentences begin at the same place in all rows.
        pad_id: id of the padding token.
        multiple: K is rounded up to a multiple of it.
        draws: seed, epoch, index, view and name, as in :func:`masked_copy`.
    """
    first, lengths_N = int(maskable_NL.any(0).argmax()), maskable_NL.sum(1)
    K = -(-max(int(lengths_N.max()), 1) // multiple) * multiple
    real_NK = np.arange(K) < lengths_N[:, None]
    ids_NK = np.pad(ids_NL, ((0, 0), (0, K)))[:, first : first + K]
    ids_NK = np.where(real_NK, ids_NK, pad_id)
    copies_NK, _, _ = masked_copy(ids_NK, real_NK, spec, vocabulary, **draws)
    positions_M = np.flatnonzero(real_NK & ~vocabulary.special[ids_NK]).astype(np.int64)
    return {
        "input_ids": copies_NK,
        "attention_mask": real_NK.astype(np.int64),
        "positions": positions_M,
        "labels": ids_NK.reshape(-1)[positions_M],
    }


def span_copies(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    spec: SpanSpec,
    vocabulary: MaskingVocabulary,
    *,
    seed: int,
    epoch: Integers,
    index: Integers,
    view: Integers,
    name: str,
) -> dict[str, np.ndarray]:
    """Make the copies that :class:`SpanSpec` describes; the result has its key without the name.

    The long span is drawn among all of its length in the sentence, the short one among all within the long one. In a
    sentence of a few tokens both may have the same length, which may be 0.

    Arguments: as in :func:`masked_copy`; the maskable tokens of a row lie together.
    """
    assert vocabulary.mask_id is not None  # check_spec refuses a tokenizer without
    keys_N = fold_in(row_keys(seed, epoch, index, f"span/{name}"), unsigned(view))
    tokens_N, start_N = maskable_NL.sum(1), maskable_NL.argmax(1)
    free_N, copies = tokens_N, []
    for number, share in enumerate((spec.longer, spec.probability)):
        length_N = np.floor(share * tokens_N + 0.5).astype(np.int64)
        draw_N = unit(fold_in(keys_N, np.array([number], dtype=np.uint64)))
        start_N = start_N + (draw_N * (free_N - length_N + 1)).astype(np.int64)
        places_NL = np.arange(ids_NL.shape[1]) - start_N[:, None]
        within_NL = (places_NL >= 0) & (places_NL < length_N[:, None])
        copies.append(np.where(within_NL, vocabulary.mask_id, ids_NL))
        free_N = length_N
    return {"input_ids": np.concatenate(copies[::-1])}


def deletion_copies(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    lengths_N: np.ndarray,
    spec: DeletionSpec,
    vocabulary: MaskingVocabulary,
    *,
    pad_id: int,
    multiple: int = 1,
    **draws: Any,
) -> dict[str, np.ndarray]:
    """Make the copies and the target that :class:`DeletionSpec` describes; the result has its keys without the name.

    Arguments:
        ids_NL, maskable_NL, vocabulary: as in :func:`masked_copy`.
        lengths_N: tokens of each row, special ones included.
        pad_id: id of the padding token.
        multiple: K is rounded up to a multiple of it.
        draws: seed, epoch, index, view and name, as in :func:`masked_copy`.
    """
    deleted_NL, keys_NL = choose(ids_NL, maskable_NL, spec.probability, vocabulary, **draws)
    order_NL = np.where(maskable_NL, unit(keys_NL), -1.0)  # the last of all to be chosen
    none_left_N = maskable_NL.any(1) & ~(maskable_NL & ~deleted_NL).any(1)
    deleted_NL[none_left_N, order_NL[none_left_N].argmax(1)] = False
    real_NL = np.arange(ids_NL.shape[1]) < lengths_N[:, None]
    kept_NL = real_NL & ~deleted_NL
    sizes_N = kept_NL.sum(1)
    K = -(-int(sizes_N.max()) // multiple) * multiple
    mask_NK = np.arange(K) < sizes_N[:, None]
    copies_NK = np.full(mask_NK.shape, pad_id, dtype=np.int64)
    copies_NK[mask_NK] = ids_NL[kept_NL]
    written_NL = maskable_NL.copy()
    written_NL[:, 1:] |= maskable_NL[:, :-1] & real_NL[:, 1:]
    written_NL[:, 0] = False
    positions_M = np.flatnonzero(written_NL).astype(np.int64)
    return {
        "input_ids": copies_NK,
        "attention_mask": mask_NK.astype(np.int64),
        "positions": positions_M,
        "labels": ids_NL.reshape(-1)[positions_M],
    }


def choose(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    probability: float,
    vocabulary: MaskingVocabulary,
    *,
    seed: int,
    epoch: Integers,
    index: Integers,
    view: Integers,
    name: str,
    words_NL: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens: return (N, L) bool, and each token's key, (N, L) uint64. Arguments as in :func:`masked_copy`."""
    keys_N = fold_in(row_keys(seed, epoch, index, f"mask/{name}"), unsigned(view))
    keys_NL = fold_in(keys_N[:, None], np.arange(ids_NL.shape[1], dtype=np.uint64))
    choice_NL = keys_NL if words_NL is None else fold_in(keys_N[:, None], words_NL.astype(np.uint64))
    return maskable_NL & ~vocabulary.special[ids_NL] & (unit(choice_NL) < probability), keys_NL


def replacement_ids(
    labels_M: np.ndarray, keys_M: np.ndarray, spec: MaskingSpec, vocabulary: MaskingVocabulary
) -> np.ndarray:
    """Return the ids that replace M chosen tokens, (M,) int64: the mask token, a random one or the token itself."""
    kind_M = unit(fold_in(keys_M, np.array([1], dtype=np.uint64)))  # below mask_share: the mask token, and so on
    draw_M = unit(fold_in(keys_M, np.array([2], dtype=np.uint64)))
    new_M = labels_M.copy()
    random_M = (kind_M >= spec.mask_share) & (kind_M < spec.mask_share + spec.random_share)
    new_M[random_M] = vocabulary.ordinary[(draw_M[random_M] * len(vocabulary.ordinary)).astype(np.int64)]
    if vocabulary.mask_id is not None:
        new_M[kind_M < spec.mask_share] = vocabulary.mask_id
    return new_M
