"""Read plain sentences from a text file, for nearest neighbours, labelling and reports."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from csekit.evaluation.pairs import normal, read_lines


def read_sentences(path: str | Path, least: int = 1) -> list[str]:
    """Read the distinct sentences of a UTF-8 text file, one per line, in the order of the file.

    White space is normalised; blank lines and repeated sentences are dropped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not UTF-8 (names the line), or fewer than ``least`` distinct sentences.
    """
    found = dict.fromkeys(text for line in read_lines(path) if (text := normal(line)))
    if len(found) < least:
        raise ValueError(f"{path}: must hold at least {least} distinct sentences, got {len(found)}")
    return list(found)


def draw_sentences(sentences: Sequence[str], n: int, seed: int = 0) -> list[str]:
    """Draw ``n`` sentences by the seed and keep their order; all of them if there are no more than ``n``."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if n >= len(sentences):
        return list(sentences)
    chosen = np.random.default_rng(seed).choice(len(sentences), size=n, replace=False)
    return [sentences[i] for i in np.sort(chosen)]
