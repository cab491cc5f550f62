"""Texts to embeddings in chunks: while one is computed the next is tokenised in a thread.

Shape suffixes: n texts of a chunk, d distinct ones, b rows of a batch, L tokens, H embedding size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from csekit.encoding.fast_cpu import fast_inference
from csekit.modeling.tokenization import pad, tokenize

#: Padded tokens in one batch at most (a longer text makes a batch of its own). On CPU the states of a batch must fit
#: into its caches.
MAX_BATCH_TOKENS = 16_384
MAX_BATCH_TOKENS_CPU = 1024
#: Texts of a chunk where the caller does not say.
CHUNK = 8192
#: Below so many tokens laying out the weights anew does not pay.
FEW_TOKENS = 2048

T = TypeVar("T")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradient inside; afterwards every submodule has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def token_batches(lengths: Sequence[int], batch_size: int, max_tokens: int = MAX_BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices in batches, longest first: at most ``batch_size`` rows and ``max_tokens`` padded tokens in each."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        rows = max(1, min(batch_size, max_tokens // max(1, lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


@dataclass(frozen=True)
class TokenizedChunk:
    """Arguments:
    place_n: of each text, its place among the distinct ones.
    input_ids: of each distinct text.
    truncated: how many of these were cut.
    """

    place_n: list[int]
    input_ids: list[list[int]]
    truncated: int


def tokenize_chunk(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int, template: str | None
) -> TokenizedChunk:
    """Each distinct text once. Raises ValueError: a text without tokens."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    tokens = tokenize(tokenizer, list(distinct), limit, template)
    if [] in tokens.input_ids:
        text = list(distinct)[tokens.input_ids.index([])]
        raise ValueError(f"a text without tokens cannot be encoded, got {text!r}")
    return TokenizedChunk([distinct[text] for text in texts], tokens.input_ids, sum(tokens.truncated))


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made in a thread while the caller works on the one before."""
    end: object = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]


def embed_chunk(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    chunk: TokenizedChunk,
    batch_size: int,
    precision: str = "fp32",
    advance: Callable[[int], object] = lambda rows: None,
) -> np.ndarray:
    """(n, H) float32.

    Arguments:
        advance: is told the number of distinct texts done.
    """
    parameter = next(model.parameters(), None)
    where = torch.device("cpu") if parameter is None else parameter.device
    lengths = [len(row) for row in chunk.input_ids]
    budget = MAX_BATCH_TOKENS_CPU if where.type == "cpu" else MAX_BATCH_TOKENS
    faster = precision != "fp32" or sum(lengths) >= FEW_TOKENS
    found: list[torch.Tensor] = []
    order: list[int] = []
    with evaluating(model), fast_inference(model, precision) if faster else nullcontext():
        for rows in token_batches(lengths, batch_size, budget):
            batch = pad(tokenizer, [chunk.input_ids[i] for i in rows])
            output = model(**{name: tensor.to(where) for name, tensor in batch.items()})
            found.append(output.sentence_embedding.float())
            order += rows
            advance(len(rows))
    embeddings_dH = np.empty((len(order), found[0].shape[1]), dtype=np.float32)
    embeddings_dH[order] = torch.cat(found).cpu().numpy()
    return embeddings_dH[chunk.place_n]


def embed_chunks(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    chunks: Iterable[Sequence[str]],
    limit: int,
    batch_size: int,
    template: str | None,
    precision: str,
    advance: Callable[[int], object] = lambda rows: None,
) -> Iterator[tuple[np.ndarray, int]]:
    """Of each chunk the embeddings (n, H) float32, and how many of its distinct texts were cut at ``limit``."""
    tokenized = (tokenize_chunk(tokenizer, texts, limit, template) for texts in chunks)
    for chunk in ahead(tokenized):
        yield embed_chunk(model, tokenizer, chunk, batch_size, precision, advance), chunk.truncated
