"""Baseline encoders: static token embeddings, whitening, TF-IDF.

Each is a ``TextEncoder``, accepted by every evaluation; TF-IDF is sparse, so geometry and clustering refuse it.
``fits_texts`` is True if ``encode`` fits the encoder on the texts it gets, without labels. An evaluation then passes
one task at a time, and retrieval searches with ``fitted(documents)``.

Shape suffixes: N texts, H embedding size, V vocabulary, b rows of a batch, L tokens.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from csekit.encoding.encoder import TextEncoder, check_texts, embed
from csekit.encoding.folders import metadata_folder, model_name
from csekit.encoding.pooled import PooledOutput
from csekit.encoding.pretrained import embedding_rows, load_tokenizer, load_transformer
from csekit.evaluation.pairs import normal, read_lines
from csekit.evaluation.score_file import corpus_digest
from csekit.modeling.tokenization import own_template, sentence_frame

#: Eigenvalues of the covariance below this share of the largest are rounding errors; their directions are dropped.
_RANK_TOLERANCE = 1e-6


class StaticTokens(nn.Module):
    """Average a model's word embeddings over a sentence's tokens, without special tokens and template.

    A sentence without tokens gives the zero vector.

    Arguments:
        backbone: model whose input embeddings are used, without positions and normalisation.
        before, after: number of tokens that the tokenizer puts before and after a sentence.
    """

    def __init__(self, backbone: Any, before: int, after: int) -> None:
        super().__init__()
        self.word_embeddings = backbone.get_input_embeddings()
        self.before, self.after = before, after

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> PooledOutput:
        positions_L = torch.arange(input_ids.shape[1], device=input_ids.device)
        ends_b1 = attention_mask.sum(dim=1, keepdim=True) - self.after
        kept_bL1 = ((positions_L >= self.before) & (positions_L < ends_b1)).unsqueeze(-1)
        summed_bH = (self.word_embeddings(input_ids) * kept_bL1).sum(dim=1)
        return PooledOutput(summed_bH / kept_bL1.sum(dim=1).clamp(min=1))


def static_encoder(
    path_or_id: str | Path, max_length: int | None = None, device: str | torch.device | None = None
) -> TextEncoder:
    """Load ``StaticTokens`` from a Transformers folder or Hub id, with pooling ``static``. ``max_length`` defaults to
    512: word embeddings have no limit of their own.

    Raises:
        FileNotFoundError, ValueError: as ``load_encoder``.
    """
    folder = metadata_folder(path_or_id)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{path_or_id}: holds no config.json, so no model with word embeddings")
    backbone = load_transformer(path_or_id)
    tokenizer = load_tokenizer(path_or_id, embedding_rows(backbone), pooling=None)
    frame = sentence_frame(tokenizer, own_template(tokenizer))
    model = StaticTokens(backbone, len(frame.before), len(frame.after))
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return TextEncoder(
        model,
        tokenizer,
        name=model_name(path_or_id),
        pooling="static",
        max_length=512 if max_length is None else max_length,
        prompt_template=own_template(tokenizer),
        device=where,
    )


class Whitening(TextEncoder):
    """BERT-whitening (Su et al. 2021, eqs. 4 to 8): map x to (x − μ)·U·Λ^(−1/2), where μ and U·Λ·Uᵀ are the mean and
    covariance of a set of embeddings. The mapped set has covariance 1.

    Arguments:
        encoder: encoder whose embeddings are whitened.
        corpus: sentences to fit on, encoded once. None: fit on the texts of each ``encode`` (the papers' fit on the
            task).
        dim: number of directions of largest variance to keep; None: all.
        corpus_name: name of the corpus for results files.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        corpus: Sequence[str] | None = None,
        dim: int | None = None,
        corpus_name: str = "corpus",
    ) -> None:
        if dim is not None and dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.encoder, self.dim = encoder, dim
        self.corpus = None if corpus is None else check_texts(corpus)
        self.fitted_on = "the task's own sentences" if corpus is None else corpus_name
        self.fits_texts = corpus is None
        self.name, self.pooling, self.max_length = encoder.name, encoder.pooling, encoder.max_length
        self.prompts, self.similarity_fn_name = encoder.prompts, encoder.similarity_fn_name
        self.truncated = 0
        self._map: tuple[np.ndarray, np.ndarray] | None = None

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:  # type: ignore[override]
        """Return (N, dim) float32. Raises ValueError: fewer than two distinct embeddings to fit, ``dim`` above H."""
        self._fit(progress)
        embeddings_NH = embed(self.encoder, texts, progress)
        self.truncated = self.encoder.truncated
        mean_H, map_HH = self._map or whitening(embeddings_NH, self.dim)
        return ((embeddings_NH - mean_H) @ map_HH).astype(np.float32)

    __call__ = encode  # type: ignore[assignment]

    def _fit(self, progress: bool = False) -> None:
        if self._map is None and self.corpus is not None:
            self._map = whitening(embed(self.encoder, self.corpus, progress), self.dim)

    def for_role(self, role: str | None, prompt: str | None = None) -> "Whitening":
        """Return a copy whose encoder has this role; both roles share one map, fitted without prompts."""
        self._fit()
        found = copy.copy(self)
        found.role, found.encoder = role, self.encoder.for_role(role, prompt)
        return found

    def fitted(self, texts: Sequence[str]) -> "Whitening":
        """Return this whitening, fitted on ``texts``."""
        return Whitening(self.encoder, texts, self.dim, self.fitted_on)

    def describe(self) -> dict[str, Any]:
        fitted = {"fitted_on": self.fitted_on, "dim": self.dim}
        fitted |= {} if self.corpus is None else {"sha256": corpus_digest(self.corpus)}
        return {**self.encoder.describe(), "whitening": fitted}


def whitening(embeddings_NH: np.ndarray, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (H,) and the map (H, dim), float64, that give ``embeddings_NH`` mean 0 and covariance 1.

    Raises:
        ValueError: fewer than two different rows, or ``dim`` above H.
    """
    x = np.asarray(embeddings_NH, dtype=np.float64)
    if dim is not None and dim > x.shape[1]:
        raise ValueError(f"dim must be at most {x.shape[1]}, the embeddings' size, got {dim}")
    mean_H = x.mean(axis=0)
    values_H, vectors_HH = np.linalg.eigh((x - mean_H).T @ (x - mean_H) / len(x))
    order = np.argsort(-values_H)[: dim or x.shape[1]]
    order = order[values_H[order] > _RANK_TOLERANCE * values_H.max()]
    if len(x) < 2 or not values_H.max() > 0:
        raise ValueError("whitening needs at least two different embeddings to fit on")
    return mean_H, vectors_HH[:, order] / np.sqrt(values_H[order])


def corpus_sentences(path: str | Path) -> list[str]:
    """Read the sentences of a text file, one per line, without blank lines. Raises ValueError: the file has none."""
    sentences = [normal(line) for line in read_lines(path) if line.strip()]
    if not sentences:
        raise ValueError(f"{path}: holds no sentence")
    return sentences


class TfidfEncoder(TextEncoder):
    """TF-IDF of lower-cased words (``\\\\w+``), with smoothed idf and rows of length 1.

    Arguments:
        corpus: texts that give vocabulary and idf. None: the texts of each ``encode``, a task's own sentences.
    """

    def __init__(self, corpus: Sequence[str] | None = None) -> None:
        self.name, self.pooling, self.max_length = "tfidf", None, None  # type: ignore[assignment]
        self.truncated = 0
        self.fits_texts = corpus is None
        self._vectorizer = None if corpus is None else self._fit(corpus)

    def fitted(self, texts: Sequence[str]) -> "TfidfEncoder":
        """Return TF-IDF with the vocabulary and idf of ``texts``; words that they lack count nothing."""
        return TfidfEncoder(texts)

    def _fit(self, texts: Sequence[str]) -> TfidfVectorizer:
        try:
            return TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit(check_texts(texts))
        except ValueError as error:
            if "empty vocabulary" not in str(error):
                raise
            raise ValueError("TF-IDF needs a text with a word in it") from None

    def encode(self, texts: Sequence[str], progress: bool = False) -> csr_matrix:  # type: ignore[override]
        """Return (N, V) sparse, float64; a text without a known word gives the zero vector."""
        vectorizer = self._vectorizer or self._fit(texts)
        return csr_matrix(vectorizer.transform(check_texts(texts)))

    __call__ = encode  # type: ignore[assignment]

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "class": "TfidfVectorizer",
            "pooling": None,
            "fitted_on": "the task's own sentences",
        }
