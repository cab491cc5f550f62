"""RankEncoder's vectors (Seonwoo et al., 2023, "Ranking-Enhanced Unsupervised Sentence Representation Learning"): a
sentence is described by how it ranks the sentences of a corpus.

Shape suffixes: N texts, n texts of a block, R reference sentences, H embedding size.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from csekit.encoding.encoder import TextEncoder, check_texts, embed
from csekit.evaluation.score_file import corpus_digest

#: Texts whose ranks are computed at a time.
BLOCK = 256


class RankEncoder(TextEncoder):
    """Another encoder's embeddings, joined with the ranks that they give to reference sentences

    cos(RankEncoder(x), RankEncoder(y)) = (1 − w)·cos(h_x, h_y) + w·ρ(s_x, s_y)

    s_x holds the cosines of x to the references, and ρ is Spearman's correlation. The released code has w = 0.1.

    Arguments:
        encoder: the encoder. It must not be one that is fitted on the texts it gets.
        references: at least three different sentences; each is encoded once.
        share: w in [0, 1].
        corpus_name: the corpus that they come from, for results files.

    Raises:
        ValueError: a value that is not allowed.
    """

    def __init__(
        self, encoder: TextEncoder, references: Sequence[str], share: float = 0.1, corpus_name: str = "corpus"
    ) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be a number from 0 to 1, got {share}")
        self.references = list(dict.fromkeys(check_texts(references)))
        if len(self.references) < 3:
            raise ValueError(f"references must be at least 3 different sentences, got {len(self.references)}")
        if getattr(encoder, "fits_texts", False):
            raise ValueError(
                "encoder must not be fitted on the texts it gets: its vectors of the references would vary"
            )
        self.encoder, self.share, self.corpus_name = encoder, share, corpus_name
        self.name, self.pooling, self.max_length = f"{encoder.name} with ranks", encoder.pooling, encoder.max_length
        self.prompts, self.similarity_fn_name = encoder.prompts, "cosine"
        self.truncated = 0
        self._references_RH: np.ndarray | None = None

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:  # type: ignore[override]
        """Return (N, H + R) float32, of length 1."""
        references_RH = self._embedded(progress)
        h_NH = unit(embed(self.encoder, texts, progress))
        self.truncated = self.encoder.truncated
        found = np.empty((len(h_NH), h_NH.shape[1] + len(references_RH)), dtype=np.float32)
        found[:, : h_NH.shape[1]] = np.sqrt(1 - self.share) * h_NH
        for start in range(0, len(h_NH), BLOCK):
            block = slice(start, start + BLOCK)
            found[block, h_NH.shape[1] :] = np.sqrt(self.share) * rank_vectors(h_NH[block] @ references_RH.T)
        return found

    __call__ = encode  # type: ignore[assignment]

    def _embedded(self, progress: bool = False) -> np.ndarray:
        if self._references_RH is None:
            self._references_RH = unit(embed(self.encoder, self.references, progress))
        return self._references_RH

    def for_role(self, role: str | None, prompt: str | None = None) -> "RankEncoder":
        """Return a copy whose encoder has this role; the references are encoded without prompts."""
        self._embedded()
        found = copy.copy(self)
        found.role, found.encoder = role, self.encoder.for_role(role, prompt)
        return found

    def describe(self) -> dict[str, Any]:
        ranks = {"corpus": self.corpus_name, "references": len(self.references), "share": self.share}
        return {**self.encoder.describe(), "ranks": {**ranks, "sha256": corpus_digest(self.references)}}


def unit(vectors_NH: np.ndarray) -> np.ndarray:
    """Return vectors of length 1; a zero vector stays."""
    norms = np.linalg.norm(vectors_NH, axis=1, keepdims=True)
    return vectors_NH / np.maximum(norms, np.finfo(np.float32).tiny)


def rank_vectors(similarities_nR: np.ndarray) -> np.ndarray:
    """Return the ranks of each row's values, ties at their average rank, centred and of length 1, (n, R) float64.

    The product of two rows is Spearman's correlation; a row of equal values gives the zero vector."""
    ranks = rankdata(similarities_nR, axis=1)
    return unit(ranks - ranks.mean(axis=1, keepdims=True))


def spread(sentences: Sequence[str], count: int) -> list[str]:
    """Return ``count`` of the different sentences at equal distances, or all if there are fewer.

    Raises:
        ValueError: ``count`` is below 3.
    """
    if count < 3:
        raise ValueError(f"references must be at least 3 sentences, got {count}")
    distinct = list(dict.fromkeys(sentences))
    if len(distinct) <= count:
        return distinct
    return [distinct[place * len(distinct) // count] for place in range(count)]
