"""Encoders cut to their first dimensions, which share the embeddings of one encoder.

Shape suffixes: N texts, H embedding size, d dimensions that are kept.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from csekit.encoding.encoder import TextEncoder, embed

#: Embeddings that are kept for the next size, in bytes; further texts are encoded again for every size.
MEMORY = 2**30


class CutEncoder(TextEncoder):
    """The first ``size`` dimensions of another encoder's embeddings.

    Arguments:
        encoder: the encoder.
        size: d.
        kept: embeddings by their texts, shared by the sizes of one encoder, at most ``MEMORY`` bytes of them.
    """

    def __init__(self, encoder: TextEncoder, size: int, kept: dict[str, tuple[np.ndarray, int]]) -> None:
        self.encoder, self.truncate_dim, self.kept = encoder, size, kept
        self.name, self.pooling, self.max_length = f"{encoder.name} @ {size}", encoder.pooling, encoder.max_length
        self.prompts, self.similarity_fn_name = encoder.prompts, encoder.similarity_fn_name
        self.truncated = 0

    def encode(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:  # type: ignore[override]
        """Return (N, d) float32."""
        texts = list(texts)
        key = hashlib.blake2b(repr((self.role, self.encoder.prompt, texts)).encode()).hexdigest()
        if key not in self.kept:
            rows_NH = embed(self.encoder, texts, progress)
            found = (rows_NH, self.encoder.truncated)
            if sum(rows.nbytes for rows, _ in self.kept.values()) + rows_NH.nbytes <= MEMORY:
                self.kept[key] = found
        else:
            found = self.kept[key]
        rows_NH, self.truncated = found
        return rows_NH[:, : self.truncate_dim]

    __call__ = encode  # type: ignore[assignment]

    def for_role(self, role: str | None, prompt: str | None = None) -> "CutEncoder":
        """Return a copy whose encoder has this role."""
        found = copy.copy(self)
        found.role, found.encoder = role, self.encoder.for_role(role, prompt)
        return found

    def describe(self) -> dict[str, Any]:
        return {**self.encoder.describe(), "truncate_dim": self.truncate_dim}


def cut_encoders(encoder: TextEncoder, sizes: Sequence[int]) -> list[CutEncoder]:
    """Return an encoder cut to each size.

    Raises:
        ValueError: a size is not from 1 to H; the encoder is fitted on the texts it gets.
    """
    if getattr(encoder, "fits_texts", False):
        raise ValueError("truncate_dim must be left out for an encoder that is fitted on the texts it gets")
    encoder = copy.copy(encoder)
    encoder.truncate_dim = None  # a folder may itself cut embeddings, to another size
    width = embed(encoder, ["a"]).shape[1]
    for size in sizes:
        if not 1 <= size <= width:
            raise ValueError(f"truncate_dim must be from 1 to the embeddings' size, {width}, got {size}")
    kept: dict[str, tuple[np.ndarray, int]] = {}
    return [CutEncoder(encoder, size, kept) for size in sizes]
