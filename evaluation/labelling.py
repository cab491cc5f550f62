"""Draw sentence pairs for a dev set of one's own, spread evenly over cosine; ``score_file`` stores their scores.

Shape suffixes: P candidate pairs, H embedding size.
"""

from collections.abc import Sequence

import numpy as np

from csekit.encoding.encoder import Encoder, check_texts, embed
from csekit.evaluation.correlation import cosine
from csekit.evaluation.pairs import normal
from csekit.evaluation.search import search_blocks, without_own
from csekit.evaluation.sentences import draw_sentences


def draw_pairs(
    encoder: Encoder,
    sentences: Sequence[str],
    n: int = 50,
    *,
    seed: int = 0,
    pool: int = 5000,
    neighbors: int = 10,
    partners: int = 20,
    progress: bool = False,
) -> list[tuple[str, str]]:
    """Draw pairs of sentences whose cosines are spread evenly between the lowest and the highest found.

    Two random sentences are hardly ever similar. The candidates are therefore each sentence with its nearest
    neighbours and with some random partners. For each of ``n`` evenly spaced cosines the nearest candidate is taken,
    if possible one whose sentences are not used yet. The pairs are returned in random order.

    Arguments:
        encoder: as ``embed`` takes it.
        sentences: the corpus; white space is normalised, equal sentences count once.
        n: pairs.
        seed: the same seed, corpus and encoder give the same pairs.
        pool: number of sentences drawn from the corpus as candidates.
        neighbors, partners: number of nearest and of random candidates per sentence.

    Returns:
        n pairs, without repeated or reversed pairs and without pairs of equal sentences.

    Raises:
        ValueError: the corpus holds too few distinct sentences for n pairs.
    """
    distinct = list(dict.fromkeys(normal(text) for text in check_texts(sentences)))
    if n < 3:
        raise ValueError(f"n must be at least 3, the fewest pairs that a dev set can hold, got {n}")
    drawn = draw_sentences(distinct, pool, seed)
    if len(drawn) * (len(drawn) - 1) // 2 < n:
        kept = "" if len(drawn) == len(distinct) else f" of {len(distinct)}: raise the pool"
        raise ValueError(f"{n} pairs need more than {len(drawn)} distinct sentences{kept}")
    rng = np.random.default_rng(seed)
    embeddings_NH = embed(encoder, drawn, progress)
    first_P, second_P = _candidates(embeddings_NH, rng, neighbors, partners, n)
    cosines_P = np.concatenate(
        [
            cosine(embeddings_NH[first_P[i : i + 65_536]], embeddings_NH[second_P[i : i + 65_536]])
            for i in range(0, len(first_P), 65_536)
        ]
    )
    chosen = _spread(cosines_P, first_P, second_P, n)
    pairs = []
    for i in rng.permutation(chosen):
        pair = (drawn[first_P[i]], drawn[second_P[i]])
        pairs.append(pair if rng.random() < 0.5 else pair[::-1])
    return pairs


def _candidates(
    embeddings_NH: np.ndarray, rng: np.random.Generator, neighbors: int, partners: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct candidate pairs i < j, (P,) each; all pairs if the pool is small or gives fewer than n."""
    size = len(embeddings_NH)
    if size <= neighbors + partners:
        return np.triu_indices(size, 1)
    near = without_own(*search_blocks(embeddings_NH, [embeddings_NH], neighbors + 1), np.arange(size))[1]
    far = rng.integers(0, size, size=(size, partners))
    second = np.concatenate([near, far], axis=1).ravel()
    first = np.repeat(np.arange(size), neighbors + partners)
    codes = np.unique(np.minimum(first, second) * size + np.maximum(first, second))
    first, second = codes // size, codes % size
    first, second = first[first != second], second[first != second]
    return (first, second) if len(first) >= n else np.triu_indices(size, 1)


def _spread(cosines_P: np.ndarray, first_P: np.ndarray, second_P: np.ndarray, n: int) -> np.ndarray:
    """Return the (n,) candidates nearest to evenly spaced cosines, preferring unused sentences."""
    order = np.argsort(cosines_P, kind="stable")
    values = cosines_P[order]
    used: set[int] = set()
    taken = np.zeros(len(order), dtype=bool)
    for target in np.linspace(values[0], values[-1], n):
        at = int(np.searchsorted(values, target))
        window = np.arange(max(0, at - 1000), min(len(order), at + 1000))
        window = window[np.argsort(np.abs(values[window] - target), kind="stable")]
        free = [int(i) for i in window if not taken[i]] or np.flatnonzero(~taken)[:1].tolist()
        fresh = (i for i in free if not used & {int(first_P[order[i]]), int(second_P[order[i]])})
        best = next(fresh, free[0])
        taken[best] = True
        used |= {int(first_P[order[best]]), int(second_P[order[best]])}
    return order[taken]
