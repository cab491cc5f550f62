"""Starting weights for an encoder without a checkpoint: word vectors from counts, attention that begins as a mean.

A small BERT trained from its usual initialisation spends most of a short run on the unigram plateau: it predicts the
frequent words whatever the context. The two pieces here give it what that time would be spent on. Word vectors that
already know which words keep company come from counting (`ppmi_embeddings`), and attention that already passes them on
(`near_identity_attention_`) makes a masked position start as the mean of its context.

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
    """How often two tokens stand near each other, a pair at distance d counting 1/d.

    The 1/d weights are GloVe's (Pennington et al. 2014, §4.2); a window never crosses the end of a row.

    Arguments:
        rows: token ids in [0, vocab_size), one row per sentence or block; rows may differ in length.
        vocab_size: V.
        window: the largest distance that counts, in tokens.

    Returns:
        (V, V) symmetric float64 counts. A pair is counted from both of its sides, so a token beside its own double
        counts twice on the diagonal.

    Raises:
        ValueError: window is below 1, or an id is outside the vocabulary.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    # All rows in one vector, `window` fillers (-1) behind each: distance d is then a shift by d.
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
    """max(log(P(w, c) / (P(w) P(c))) - shift, 0), with P(c) proportional to count(c)^smoothing.

    Both are what word2vec does, carried over to counts (Levy, Goldberg and Dagan 2015, §3): the smoothed context
    distribution takes weight off rare contexts, whose PMI is noise, and ``shift = log k`` plays k negative samples.

    Arguments:
        counts: (V, V) co-occurrences, words in rows and contexts in columns.

    Returns:
        (V, V) sparse float64, zero wherever a pair was never seen.
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
    """The leading left singular vectors and singular values of a sparse matrix, by randomised subspace iteration.

    Halko, Martinsson and Tropp (2011), algorithms 4.4 and 5.1: the range of the matrix is found from a few random
    directions, and the SVD is that of the small matrix within it. Seconds where Lanczos iterations take minutes; the
    leading values are exact to far better than the noise of counts, the last few less so.

    Returns:
        U (V, rank) and S (rank,), descending. The sign of each column is fixed: its largest entry is positive.
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
    """Word vectors from a truncated SVD of the shifted positive PMI matrix of a corpus: U·√S.

    The square root of the singular values is the symmetric split of Levy and Goldberg (2014, §4). Draws from no global
    generator and gives the same vectors on every call.

    Arguments:
        rows: token ids, one row per sentence or block (without special tokens: they keep company with everything).
        vocab_size, embedding_size: V and E, E < V.
        window: context on either side, in tokens, weighted 1/distance.
        smoothing: exponent of the context distribution.
        shift: subtracted from the PMI; log k for k negative samples.
        std: standard deviation over the elements of the rows that are not zero. 0.04 is twice BERT's 0.02; from about
            0.06 on a post-LayerNorm encoder diverges.

    Returns:
        (V, E) float32. Rows of tokens without any co-occurrence are zero: see `load_word_embeddings_`.

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
    vectors[np.diff(ppmi.indptr) == 0] = 0.0  # rounding leaves something near zero
    vectors *= std / vectors[vectors.any(axis=1)].std()
    return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))


@torch.no_grad()
def load_word_embeddings_(model: PreTrainedModel, vectors: torch.Tensor) -> None:
    """Copy word vectors into the input embeddings (and a tied output matrix), rows of zeros excepted.

    A token that the counts know nothing about (the special tokens, unused pieces) keeps the model's own start.

    Arguments:
        vectors: (V, E), as `ppmi_embeddings` returns them.

    Raises:
        ValueError: the shape is not that of the model's embedding matrix.
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
    """Add identities to a freshly initialised BERT, so that each attention layer begins as an average of its input.

    Attention scores are near zero at the start, so the weights are uniform over the tokens; with ``value += I`` and
    ``output projection += 0.7 I`` the layer then adds 0.7 times the mean of the context to each position, where the
    usual initialisation adds close to nothing. ``transform += I`` lets the masked-LM head compare that mean with the
    word vectors from the first step on.

    Arguments:
        model: a BERT model, with or without a masked-LM head.
        value, output, head: multiples of the identity added to the value and the attention output projection of every
            layer, and to the transform of the masked-LM head where there is one.

    Raises:
        TypeError: the model is not of the BERT architecture, whose module names this function knows.
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
    """Add an identity to the transform of a BERT masked-LM head, where the model has one."""
    predictions = getattr(getattr(model, "cls", None), "predictions", None)
    if predictions is not None:
        _add_identity(predictions.transform.dense, head)


def _add_identity(linear: nn.Linear, scale: float) -> None:
    linear.weight += scale * torch.eye(linear.weight.shape[0], dtype=linear.weight.dtype, device=linear.weight.device)
