"""Measure an encoder's geometry on scored pairs: alignment, uniformity, anisotropy, cosines by gold rating.

Shape suffixes: P pairs, D distinct sentences, H embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from csekit.encoding.encoder import Encoder
from csekit.evaluation.correlation import spearman
from csekit.evaluation.geometry import alignment, effective_rank, mean_cosine, uniformity
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts import EmbeddedPairs
from csekit.evaluation.sts_data import TEXT_FORMS, STSTask, load_sts

SPLITS = {"test": "STS-B", "dev": "STS-B-dev"}
#: Five groups of gold ratings: [0, 1), [1, 2), [2, 3), [3, 4), [4, 5] (DiffCSE, Fig. 2).
EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
_QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class GeometryOptions:
    """Options of the measurement.

    Arguments:
        split: split of STS-B, ``test`` (DiffCSE, Table 11) or ``dev`` (MSSE, Fig. 6).
        threshold: pairs with a higher gold score are the positives of alignment.
        text_form: ``tokenized`` as in SentEval, or ``raw``.
        edges: ascending edges of the groups of gold ratings.
    """

    split: str = "test"
    threshold: float = 4.0
    text_form: str = "tokenized"
    edges: tuple[float, ...] = EDGES

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be 'test' or 'dev', got {self.split!r}")
        if self.text_form not in TEXT_FORMS:
            raise ValueError(f"text_form must be 'tokenized' or 'raw', got {self.text_form!r}")
        if len(self.edges) < 2 or any(b <= a for a, b in pairwise(self.edges)):
            raise ValueError(f"edges must be at least two ascending numbers, got {self.edges}")


@dataclass(frozen=True)
class GeometryScores:
    """The scores of :func:`geometry_suite`.

    Arguments:
        positives: number of pairs that alignment is computed on.
        sentences: number of distinct sentences that the other scores are computed on.
        alignment, uniformity, mean_cosine, effective_rank: as in ``csekit.evaluation.geometry``.
        spearman: Spearman of cosines and gold scores, ×100.
        ratings: one entry per group of gold ratings, see :func:`cosines_by_rating`.
        cosines, gold: (P,).
        truncated: number of sentences that were cut, None if the encoder does not report it.
        checksum: sha256 of the pairs.
    """

    options: GeometryOptions
    positives: int
    sentences: int
    alignment: float
    uniformity: float
    mean_cosine: float
    effective_rank: float
    spearman: float
    ratings: list[dict[str, Any]]
    cosines: np.ndarray
    gold: np.ndarray
    truncated: int | None
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file; the cosines go beside it (``write_results``)."""
        options = self.options
        return {
            "set": f"STS-B {options.split}",
            "threshold": options.threshold,
            "text_form": options.text_form,
            "positives": self.positives,
            "sentences": self.sentences,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            "mean_cosine": self.mean_cosine,
            "effective_rank": self.effective_rank,
            "spearman": self.spearman,
            "ratings": self.ratings,
            "truncated": self.truncated,
            "checksum": self.checksum,
        }

    def similarities(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return cosine and gold score of every pair, as ``write_results`` takes them."""
        return {f"STS-B {self.options.split}": (self.cosines, self.gold)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal: score, number of pairs or sentences, value."""
        pairs, sentences = f"{self.positives} pairs", f"{self.sentences} sentences"
        rows = [
            ["alignment", pairs, f"{self.alignment:.3f}"],
            ["uniformity", sentences, f"{self.uniformity:.3f}"],
            ["mean cosine", sentences, f"{self.mean_cosine:.3f}"],
            ["effective rank", sentences, f"{self.effective_rank:.1f}"],
        ]
        for row in self.ratings:
            value = "-" if row["mean"] is None else f"{row['mean']:.3f}"
            rows.append([f"  cosine at rating {row['from']:g}-{row['to']:g}", f"{row['n']} pairs", value])
        return [f"geometry, STS-B {self.options.split}", "over", "value"], rows


def geometry_suite(
    encoder: Encoder, data_dir: Any, options: GeometryOptions | None = None, progress: bool = False
) -> GeometryScores:
    """Measure an encoder's space on STS-B.

    Alignment uses the pairs with a gold score above the threshold (231 of test above 4), the other scores all distinct
    sentences of the split.

    Arguments:
        encoder, data_dir: as for ``evaluate_sts`` and ``load_sts``.

    Raises:
        ValueError, FileNotFoundError: what ``load_sts`` and ``embed`` raise; no pair above the threshold.
    """
    options = options or GeometryOptions()
    (task,) = load_sts(data_dir, SPLITS[options.split], options.text_form)
    return measure_geometry(encoder, task, options, progress)


def measure_geometry(
    encoder: Encoder, task: STSTask, options: GeometryOptions, progress: bool = False
) -> GeometryScores:
    """Score a loaded set as :func:`geometry_suite` does."""
    (pairs,) = task.subsets
    positives = positive_pairs(pairs, options.threshold)
    embedded = EmbeddedPairs(encoder, [pairs], progress)
    cosines = embedded.similarities(pairs)
    return GeometryScores(
        options=options,
        positives=len(positives),
        sentences=len(embedded.rows),
        **space_scores(embedded, pairs, options.threshold),
        spearman=100 * spearman(cosines, pairs.scores),
        ratings=cosines_by_rating(cosines, pairs.scores, options.edges),
        cosines=cosines,
        gold=pairs.scores,
        truncated=getattr(encoder, "truncated", None),
        checksum=task.checksum(),
    )


def positive_pairs(pairs: Pairs, threshold: float) -> np.ndarray:
    """Return the indices of pairs with a gold score above the threshold. Raises ValueError if there are none."""
    places = np.flatnonzero(pairs.scores > threshold)
    if not len(places):
        raise ValueError(
            f"threshold must leave pairs above it, got {threshold:g}: the highest score of {pairs.name} is "
            f"{pairs.scores.max():g}"
        )
    return places


def space_scores(embedded: EmbeddedPairs, pairs: Pairs, threshold: float) -> dict[str, float]:
    """Return ``alignment`` of the positives; ``uniformity``, ``mean_cosine``, ``effective_rank`` of all sentences."""
    places = positive_pairs(pairs, threshold)
    first_PH, second_PH = embedded.sides(pairs)
    return {
        "alignment": alignment(first_PH[places], second_PH[places]),
        "uniformity": uniformity(embedded.embeddings_DH),
        "mean_cosine": mean_cosine(embedded.embeddings_DH),
        "effective_rank": effective_rank(embedded.embeddings_DH),
    }


def rating_groups(gold: np.ndarray, edges: Sequence[float] = EDGES) -> list[np.ndarray]:
    """Return the indices of the pairs in each group [a, b); the last group includes its upper edge.

    Raises:
        ValueError: a gold score outside the edges.
    """
    gold = np.asarray(gold, dtype=np.float64)
    outside = gold[(gold < edges[0]) | (gold > edges[-1])]
    if len(outside):
        raise ValueError(f"gold scores must lie between {edges[0]:g} and {edges[-1]:g}, got {outside[0]:g}")
    group = np.minimum(np.searchsorted(edges, gold, side="right") - 1, len(edges) - 2)
    return [np.flatnonzero(group == i) for i in range(len(edges) - 1)]


def cosines_by_rating(cosines: np.ndarray, gold: np.ndarray, edges: Sequence[float] = EDGES) -> list[dict[str, Any]]:
    """Describe the distribution of cosines in each group of gold ratings.

    Arguments:
        cosines, gold: (P,).

    Returns:
        for each group ``from``, ``to``, ``n``, ``mean``, ``std`` and ``quantiles`` (5, 25, 50, 75, 95 %); the last
        three are None if the group is empty.
    """
    found = []
    for i, places in enumerate(rating_groups(gold, edges)):
        values = np.asarray(cosines, dtype=np.float64)[places]
        row: dict[str, Any] = {"from": edges[i], "to": edges[i + 1], "n": len(values), "mean": None, "std": None}
        row["quantiles"] = None
        if len(values):
            quantiles = dict(zip(map(str, _QUANTILES), np.percentile(values, _QUANTILES).tolist(), strict=True))
            row |= {"mean": float(values.mean()), "std": float(values.std()), "quantiles": quantiles}
        found.append(row)
    return found
