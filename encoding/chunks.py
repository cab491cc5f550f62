"""Turn texts into embeddings chunk by chunk. A thread tokenises the next chunk while the model computes this one.

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

#: Largest number of padded tokens in a batch; a longer text makes a batch of its own. On CPU the states of a batch
#: must fit into the caches.
MAX_BATCH_TOKENS = 16_384
MAX_BATCH_TOKENS_CPU = 2048
#: Default number of texts in a chunk.
CHUNK = 8192
#: The most chunks whose tokens are kept for another call.
KEPT_CHUNKS = 4
#: With fewer tokens than this, laying out the weights anew costs more than it saves.
FEW_TOKENS = 2048

T = TypeVar("T")
#: Texts of chunks to their tokens, kept from one call to the next: for the same texts, tokenizer, limit and template.
KeptTokens = dict[tuple[str, ...], "TokenizedChunk"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode without gradients; afterwards every submodule has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def token_batches(lengths: Sequence[int], batch_size: int, max_tokens: int = MAX_BATCH_TOKENS) -> Iterator[list[int]]:
    """Yield batches of indices, longest first, of at most ``batch_size`` rows and ``max_tokens`` padded tokens."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        rows = max(1, min(batch_size, max_tokens // max(1, lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


@dataclass(frozen=True)
class TokenizedChunk:
    """The tokens of a chunk of n texts.

    Arguments:
        place_n: for each text its place among the distinct texts.
        input_ids: the token ids of each distinct text.
        truncated: number of distinct texts that were truncated.
    """

    place_n: list[int]
    input_ids: list[list[int]]
    truncated: int


class NoTokensError(ValueError):
    """A text of which the tokenizer makes no token, its only argument."""

    def __str__(self) -> str:
        return f"a text without tokens cannot be encoded, got {self.args[0]!r}"


def tokenize_chunk(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int, template: str | None
) -> TokenizedChunk:
    """Tokenise each distinct text once. Raises NoTokensError: a text has no tokens."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    tokens = tokenize(tokenizer, list(distinct), limit, template)
    if [] in tokens.input_ids:
        raise NoTokensError(list(distinct)[tokens.input_ids.index([])])
    return TokenizedChunk([distinct[text] for text in texts], tokens.input_ids, sum(tokens.truncated))


def tokenize_chunks(
    tokenizer: PreTrainedTokenizerBase,
    chunks: Iterable[Sequence[str]],
    limit: int,
    template: str | None,
    kept: KeptTokens | None = None,
) -> Iterator[TokenizedChunk]:
    """Yield the tokens of each chunk. ``kept`` has those of earlier calls and gets new ones, up to ``KEPT_CHUNKS``."""
    for texts in chunks:
        chunk = kept.get(tuple(texts)) if kept else None
        if chunk is None:
            chunk = tokenize_chunk(tokenizer, texts, limit, template)
            if kept is not None and len(kept) < KEPT_CHUNKS:
                kept[tuple(texts)] = chunk
        yield chunk


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items. A thread makes each while the caller works on the one before."""
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
    """Return the embeddings (n, H) float32 of a chunk.

    Arguments:
        advance: called with the number of distinct texts that were just done.
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
    kept: KeptTokens | None = None,
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield each chunk's embeddings (n, H) float32 and the number of its distinct texts that were truncated."""
    for chunk in ahead(tokenize_chunks(tokenizer, chunks, limit, template, kept)):
        yield embed_chunk(model, tokenizer, chunk, batch_size, precision, advance), chunk.truncated
