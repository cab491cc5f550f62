"""Starting weights for an encoder without a checkpoint: word vectors from counts, attention that begins as a mean.

A small BERT with its usual initialisation spends most of a short run on the unigram plateau: it predicts frequent
words whatever the context. Two functions shorten this. ``ppmi_embeddings`` computes word vectors from co-occurrence
counts. ``near_identity_attention_`` makes attention pass them on, so that a masked position starts as the mean of its
context.

Shape suffixes: V vocabulary, E embedding size, H hidden size.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import torch
from scipy import sparse
from torch import nn
from transformers import BertModel, BertPreTrainedModel, PreTrainedModel
from transformers.models.bert.modeling_bert import BertLayer


def cooccurrence_counts(rows: Iterable[Sequence[int]], vocab_size: int, window: int = 5) -> sparse.csr_matrix:
    """Count how often two tokens are near each other; a pair at distance d counts 1/d.

    The 1/d weights are GloVe's (Pennington et al., 2014, §4.2). A window never crosses the end of a row.

    Arguments:
        rows: token ids in [0, vocab_size), one row per sentence or block; rows may differ in length.
        vocab_size: V.
        window: the largest distance, in tokens.

    Returns:
        (V, V) symmetric float64 counts. A pair counts from both sides, so two equal tokens count twice on the
        diagonal.

    Raises:
        ValueError: window is below 1, or an id is outside the vocabulary.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    # All rows in one vector, each followed by `window` fillers (-1): distance d is then a shift by d.
    filler = np.full(window, -1, dtype=np.int64)
    parts = [part for row in rows for part in (np.asarray(row, dtype=np.int64), filler)]
    ids = np.concatenate(parts) if parts else filler
    lowest = min((part.min() for part in parts[::2] if part.size), default=0)
    if ids.max() >= vocab_size or lowest < 0:
        raise ValueError(f"token ids must be in [0, {vocab_size - 1}], got {lowest}..{ids.max()}")
    counts = sparse.csr_matrix((vocab_size, vocab_size), dtype=np.float64)
    for distance in range(1, window + 1):
        left, right = ids[:-distance], ids[distance:]
        near = (left >= 0) & (right >= 0)
        weights = np.full(int(near.sum()), 1.0 / distance)
        counts = counts + sparse.csr_matrix((weights, (left[near], right[near])), shape=counts.shape)
    return (counts + counts.T).tocsr()


def positive_pmi(counts: sparse.csr_matrix, smoothing: float = 0.75, shift: float = math.log(2)) -> sparse.csr_matrix:
    """Return max(log(P(w, c) / (P(w) P(c))) - shift, 0), with P(c) proportional to count(c)^smoothing.

    Both carry word2vec over to counts (Levy, Goldberg and Dagan, 2015, §3): the smoothed context distribution reduces
    the weight of rare contexts, whose PMI is noise, and ``shift = log k`` stands for k negative samples.

    Arguments:
        counts: (V, V) co-occurrences, words in rows and contexts in columns.
        smoothing: exponent of the context distribution.
        shift: subtracted from the PMI, in nats.

    Returns:
        (V, V) sparse float64, zero for every pair that does not occur.
    """
    pairs = counts.tocoo()
    total = counts.sum()
    if total == 0:
        return sparse.csr_matrix(counts.shape, dtype=np.float64)
    words = np.asarray(counts.sum(axis=1)).ravel() / total
    contexts = np.asarray(counts.sum(axis=0)).ravel() ** smoothing
    contexts = contexts / contexts.sum()
    pmi = np.log(pairs.data / total) - np.log(words[pairs.row]) - np.log(contexts[pairs.col]) - shift
    kept = pmi > 0
    return sparse.csr_matrix((pmi[kept], (pairs.row[kept], pairs.col[kept])), shape=counts.shape)


def truncated_svd(
    matrix: sparse.csr_matrix, rank: int, oversampling: int = 10, iterations: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the leading left singular vectors and singular values of a sparse matrix.

    The method is randomised subspace iteration (Halko, Martinsson and Tropp, 2011, algorithms 4.4 and 5.1): it finds
    the range of the matrix from a few random directions and decomposes the small matrix within it. It takes seconds;
    Lanczos iterations take minutes. The error of the leading values is far below the noise of counts; the last few are
    less accurate.

    Arguments:
        matrix: (V, V) sparse.
        rank: number of singular values.
        oversampling: additional random directions.
        iterations: number of subspace iterations.
        seed: of the random directions.

    Returns:
        U (V, rank) and S (rank,), descending. The largest entry of each column of U is positive.
    """
    width = min(rank + oversampling, *matrix.shape)
    basis = np.linalg.qr(matrix @ np.random.default_rng(seed).standard_normal((matrix.shape[1], width)))[0]
    for _ in range(iterations):
        basis = np.linalg.qr(matrix @ np.linalg.qr(matrix.T @ basis)[0])[0]
    inner, values, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    left = (basis @ inner)[:, :rank]
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    return left * signs, values[:rank]


def ppmi_embeddings(
    rows: Iterable[Sequence[int]],
    vocab_size: int,
    embedding_size: int,
    window: int = 5,
    smoothing: float = 0.75,
    shift: float = math.log(2),
    std: float = 0.04,
) -> torch.Tensor:
    """Compute word vectors U·√S from a truncated SVD of a corpus's shifted positive PMI matrix.

    The square root of the singular values is the symmetric split of Levy and Goldberg (2014, §4). The function uses no
    global random generator and returns the same vectors on every call.

    Arguments:
        rows: token ids, one row per sentence or block, without special tokens (they occur with every word).
        vocab_size, embedding_size: V and E, E < V.
        window: context on each side, in tokens, weighted by 1/distance.
        smoothing: exponent of the context distribution.
        shift: subtracted from the PMI; log k for k negative samples.
        std: standard deviation over the elements of the rows that are not zero. 0.04 is twice BERT's 0.02; a
            post-LayerNorm encoder diverges from about 0.06 on.

    Returns:
        (V, E) float32. Rows of tokens without co-occurrences are zero; see ``load_word_embeddings_``.

    Raises:
        ValueError: embedding_size is not below vocab_size.
    """
    if not 0 < embedding_size < vocab_size:
        raise ValueError(f"embedding_size must be in [1, {vocab_size - 1}], got {embedding_size}")
    ppmi = positive_pmi(cooccurrence_counts(rows, vocab_size, window), smoothing, shift)
    if ppmi.nnz == 0:
        return torch.zeros(vocab_size, embedding_size)
    left, values = truncated_svd(ppmi, embedding_size)
    vectors = left * np.sqrt(values)
    vectors[np.diff(ppmi.indptr) == 0] = 0.0  # else rounding errors remain
    vectors *= std / vectors[vectors.any(axis=1)].std()
    return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))


@torch.no_grad()
def load_word_embeddings_(model: PreTrainedModel, vectors: torch.Tensor) -> None:
    """Copy word vectors into the input embeddings (and a tied output matrix), except rows of zeros.

    Tokens without counts (special tokens, unused pieces) keep the model's own initial vectors.

    Arguments:
        model: the model to change.
        vectors: (V, E), as ``ppmi_embeddings`` returns them.

    Raises:
        ValueError: the model's embedding matrix has another shape.
    """
    weight = cast(nn.Embedding, model.get_input_embeddings()).weight
    if vectors.shape != weight.shape:
        raise ValueError(f"vectors must have shape {tuple(weight.shape)}, got {tuple(vectors.shape)}")
    known = vectors.any(dim=1)
    weight[known] = vectors[known].to(weight)


@torch.no_grad()
def near_identity_attention_(
    model: PreTrainedModel, value: float = 1.0, output: float = 0.7, head: float = 1.0
) -> None:
    """Add identities to a newly initialised BERT, so that each attention layer begins as an average of its input.

    Attention scores are near zero at the start, so the attention weights are uniform. With ``value += I`` and
    ``output projection += 0.7 I``, a layer adds 0.7 times the mean of the context to each position; with the usual
    initialisation it adds almost nothing. ``transform += I`` lets the masked-LM head compare this mean with the word
    vectors from the first step.

    Arguments:
        model: a BERT model, with or without a masked-LM head.
        value, output, head: multiples of the identity added to the value and the attention output projection of every
            layer, and to the transform of the masked-LM head if there is one.

    Raises:
        TypeError: the model is not of the BERT architecture.
    """
    if not isinstance(model, BertPreTrainedModel):
        raise TypeError(
            f"model must be of the BERT architecture (BertModel, BertForMaskedLM, …), got {type(model).__name__}"
        )
    for layer in cast(BertModel, model.base_model).encoder.layer:
        layer = cast(BertLayer, layer)
        _add_identity(layer.attention.self.value, value)
        _add_identity(layer.attention.output.dense, output)
    near_identity_transform_(model, head)


@torch.no_grad()
def near_identity_transform_(model: nn.Module, head: float = 1.0) -> None:
    """Add an identity to the transform of a BERT masked-LM head, if the model has one."""
    predictions = getattr(getattr(model, "cls", None), "predictions", None)
    if predictions is not None:
        _add_identity(predictions.transform.dense, head)


def _add_identity(linear: nn.Linear, scale: float) -> None:
    linear.weight += scale * torch.eye(linear.weight.shape[0], dtype=linear.weight.dtype, device=linear.weight.device)
