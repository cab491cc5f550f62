"""Draws for the views whose token embeddings are perturbed (ConSERT).

The draws are stateless (``csekit.trainers.data.draws``), like those of masked copies.

Shape suffixes: B sentences, N rows (view-major), L tokens, E width of the embedding layer.
"""

import numpy as np

from csekit.modeling.objectives import PerturbationSpec
from csekit.trainers.data.draws import Integers, fold_in, row_keys, unit


def perturbations(
    ids_NL: np.ndarray, maskable_NL: np.ndarray, spec: PerturbationSpec, *, seed: int, epoch: Integers, index: Integers
) -> dict[str, np.ndarray]:
    """Draw what :class:`PerturbationSpec` describes; the result has its keys without the name.

    Arguments:
        ids_NL: (N, L) int64, the rows of both views, view-major.
        maskable_NL: (N, L) bool, True at the sentence's own tokens.
        epoch, index: (B,) each.
    """
    N, L = ids_NL.shape
    B, E, kinds = N // 2, spec.width, spec.kinds
    found: dict[str, np.ndarray] = {}
    if "shuffle" in kinds:
        found["order"] = np.tile(np.arange(L), (N, 1))
    if kinds - {"shuffle"}:
        found |= {"tokens": np.ones((N, L), bool), "features": np.ones((N, E), bool)}
    if "dropout" in kinds:
        found["elements"] = np.ones((N, L, E), bool)
    for view, changes in enumerate((spec.first, spec.second)):
        rows, own_BL = slice(view * B, view * B + B), maskable_NL[view * B : view * B + B]
        for kind, rate in changes:
            keys_B = row_keys(seed, epoch, index, f"perturbation/{kind}/{view}")
            keys_BL = fold_in(keys_B[:, None], np.arange(L, dtype=np.uint64))
            if kind == "shuffle":
                found["order"][rows] = shuffled(unit(keys_BL), own_BL)
            elif kind == "token_cutoff":
                found["tokens"][rows] = ~lowest(np.where(own_BL, unit(keys_BL), 2.0), rate * own_BL.sum(1))
            elif kind == "feature_cutoff":
                keys_BE = fold_in(keys_B[:, None], np.arange(E, dtype=np.uint64))
                found["features"][rows] = ~lowest(unit(keys_BE), np.full(B, rate * E))
            else:
                keys_BLE = fold_in(keys_BL[:, :, None], np.arange(E, dtype=np.uint64))
                found["elements"][rows] = (unit(keys_BLE) >= rate) | ~own_BL[:, :, None]
    return found


def lowest(draws_BX: np.ndarray, counts_B: np.ndarray) -> np.ndarray:
    """Return True at the lowest numbers of each row, ⌊count⌋ of them, (B, X)."""
    ranks_BX = draws_BX.argsort(1, kind="stable").argsort(1, kind="stable")
    return ranks_BX < np.floor(counts_B)[:, None]


def shuffled(draws_BL: np.ndarray, own_BL: np.ndarray) -> np.ndarray:
    """Return the place from which each place takes its token, (B, L) int64: own tokens change places among
    themselves."""
    order_BL = np.tile(np.arange(own_BL.shape[1]), (len(own_BL), 1))
    for order_L, draws_L, own_L in zip(order_BL, draws_BL, own_BL, strict=True):
        places = np.flatnonzero(own_L)
        order_L[places] = places[draws_L[places].argsort(kind="stable")]
    return order_BL
