"""Edited copies of texts: tokens are masked, inserted or deleted, and the original ids are kept beside them.

Shape suffixes: N rows, L tokens of the texts, K tokens of the copies, U units (the tokens of all copies, concatenated,
before the copies are cut at the length limit).
"""

from typing import Any

import numpy as np

from csekit.modeling.objectives import EditSpec
from csekit.trainers.batches.masking import DELETING, MaskingVocabulary, choose, replacement_ids
from csekit.trainers.data.draws import fold_in, unit

#: The original id of tokens that count as edited whatever their id.
EDITED = -100


def edited_copy(
    ids_NL: np.ndarray,
    maskable_NL: np.ndarray,
    lengths_N: np.ndarray,
    spec: EditSpec,
    vocabulary: MaskingVocabulary,
    *,
    max_length: int,
    pad_id: int,
    multiple: int = 1,
    **draws: Any,
) -> dict[str, np.ndarray]:
    """Make the copies that :class:`EditSpec` describes; the result has its keys without the name.

    Arguments:
        ids_NL, maskable_NL, spec, vocabulary: as in ``masking.masked_copy``.
        lengths_N: tokens of each row, special ones included.
        max_length: tokens of a copy; if insertions exceed it, the sentence loses its end.
        pad_id: id of the padding token.
        multiple: K is rounded up to a multiple of it.
        draws: seed, epoch, index, view and name, as in ``masking.masked_copy``.
    """
    L = ids_NL.shape[1]
    chosen_NL, keys_NL = choose(ids_NL, maskable_NL, spec.probability, vocabulary, **draws)
    replaced_NL, inserted_NL, deleted_NL = operations(chosen_NL, keys_NL, spec.operation)
    new_NL = ids_NL.copy()
    new_NL[replaced_NL] = replacement_ids(ids_NL[replaced_NL], keys_NL[replaced_NL], spec, vocabulary)
    after_deletion_NL = np.zeros_like(deleted_NL)
    after_deletion_NL[:, 1:] = deleted_NL[:, :-1]
    scored_NL = maskable_NL & ~vocabulary.special[ids_NL]
    if spec.operation in DELETING:
        scored_NL[:, 1:] |= maskable_NL[:, :-1] & ~maskable_NL[:, 1:]

    counts_NL = np.where(np.arange(L) < lengths_N[:, None], 1 + inserted_NL - deleted_NL, 0)
    source_U = np.repeat(np.arange(ids_NL.size), counts_NL.reshape(-1))
    inserted_U = np.zeros(len(source_U), dtype=bool)  # the second unit of a token is the insertion behind it
    inserted_U[1:] = source_U[1:] == source_U[:-1]
    kept_U = within_limit(source_U // L, maskable_NL.reshape(-1)[source_U], max_length)
    source_U, inserted_U = source_U[kept_U], inserted_U[kept_U]
    sizes_N = np.bincount(source_U // L, minlength=len(ids_NL))
    K = -(-int(sizes_N.max(initial=1)) // multiple) * multiple
    place_U = source_U // L * K + np.arange(len(source_U)) - (np.cumsum(sizes_N) - sizes_N)[source_U // L]

    def places(flags_NL: np.ndarray) -> np.ndarray:
        return place_U[flags_NL.reshape(-1)[source_U] | inserted_U]

    def laid_out(values_NL: np.ndarray, inserted: int) -> np.ndarray:
        flat = np.full(len(ids_NL) * K, pad_id, dtype=np.int64)
        flat[place_U] = np.where(inserted_U, inserted, values_NL.reshape(-1)[source_U])
        return flat.reshape(-1, K)

    mask_id = pad_id if vocabulary.mask_id is None else vocabulary.mask_id  # no insertion without a mask token
    return {
        "input_ids": laid_out(new_NL, mask_id),
        "attention_mask": (np.arange(K) < sizes_N[:, None]).astype(np.int64),
        "originals": laid_out(np.where(after_deletion_NL, EDITED, ids_NL), EDITED),
        "positions": places(replaced_NL),
        "own": places(maskable_NL & ~vocabulary.special[ids_NL]),
        "scored": places(scored_NL),
    }


def operations(
    chosen_NL: np.ndarray, keys_NL: np.ndarray, operation: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide the chosen tokens into those to replace, to insert behind and to delete: (N, L) bool each."""
    if operation == "all":
        which_NL = (3 * unit(fold_in(keys_NL, np.array([3], dtype=np.uint64)))).astype(np.int64)
    else:
        which_NL = np.full(chosen_NL.shape, ("replace", "insert", "delete").index(operation))
    return chosen_NL & (which_NL == 0), chosen_NL & (which_NL == 1), chosen_NL & (which_NL == 2)


def within_limit(row_U: np.ndarray, sentence_U: np.ndarray, max_length: int) -> np.ndarray:
    """Choose the units that fit in ``max_length`` tokens per row: (U,) bool. A longer sentence loses its end."""
    sizes_N = np.bincount(row_U)
    excess_N = np.maximum(sizes_N - max_length, 0)
    sentences_N = np.bincount(row_U, weights=sentence_U).astype(np.int64)
    before_N = np.cumsum(sentences_N) - sentences_N
    rank_U = np.cumsum(sentence_U) - sentence_U - before_N[row_U]  # of a token within its sentence
    return ~sentence_U | (rank_U < (sentences_N - excess_N)[row_U])
