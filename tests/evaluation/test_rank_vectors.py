"""RankEncoder's similarity against scipy's correlations, and what an encoder of ranks refuses."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from csekit.encoding import load_encoder
from csekit.encoding.encoder import TextEncoder
from csekit.evaluation import RankEncoder, Whitening, rank_vectors
from csekit.evaluation.correlation import cosine
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.rank_vectors import spread
from csekit.evaluation.sts import evaluate_pairs

TEXTS = ["the man plays guitar .", "a dog runs", "cat", "a red ball is in the house", "fast fast dog"]
REFERENCES = ["a man runs", "the dog", "blue house", "a tree", "the cat is fast", "red", "a ball", "the dog"]


@pytest.fixture
def encoder(tiny_folder: Path) -> TextEncoder:
    return load_encoder(tiny_folder, pooling="mean", device="cpu")


def expected(encoder: TextEncoder, share: float) -> np.ndarray:
    """Pair after pair: the cosine, and Spearman's correlation of the cosines to each reference."""
    h, c = encoder.encode(TEXTS), encoder.encode(list(dict.fromkeys(REFERENCES)))
    to_all = [[(x @ y) / np.sqrt((x @ x) * (y @ y)) for y in c] for x in h.astype(np.float64)]
    found = np.empty((len(h), len(h)))
    for i in range(len(h)):
        for j in range(len(h)):
            cos = h[i] @ h[j] / np.sqrt((h[i] @ h[i]) * (h[j] @ h[j]))
            found[i, j] = (1 - share) * cos + share * spearmanr(to_all[i], to_all[j]).statistic
    return found


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_the_cosine_is_the_mixture_of_both_similarities(
    encoder: TextEncoder, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_vectors, "BLOCK", 2)
    found = RankEncoder(encoder, REFERENCES, share).encode(TEXTS)
    assert found.shape == (5, encoder.encode(["a"]).shape[1] + 7)  # one reference is there twice
    wanted = expected(encoder, share)
    products = np.array([[cosine(x[None], y[None])[0] for y in found] for x in found])
    np.testing.assert_allclose(products, wanted, atol=1e-5)
    assert len(np.unique(wanted.round(6))) > 5


def test_pairs_are_scored_by_it(encoder: TextEncoder) -> None:
    gold = expected(encoder, 1.0)[np.triu_indices(5, 1)]
    first, second = (tuple(TEXTS[i] for i in places) for places in np.triu_indices(5, 1))
    pairs = Pairs("mine", first, second, gold)
    assert evaluate_pairs(RankEncoder(encoder, REFERENCES, 1.0), pairs)["spearman"] == pytest.approx(100)
    assert evaluate_pairs(encoder, pairs)["spearman"] < 99


def test_a_role_shares_the_references_and_equal_values_give_no_ranks(encoder: TextEncoder) -> None:
    ranks = RankEncoder(encoder, REFERENCES, corpus_name="mine.txt")
    np.testing.assert_array_equal(ranks.for_role("query").encode(TEXTS), ranks.encode(TEXTS))
    assert ranks.describe()["ranks"].items() >= {"corpus": "mine.txt", "references": 7, "share": 0.1}.items()
    assert not rank_vectors.rank_vectors(np.ones((1, 4))).any()


def test_references_are_different_sentences_at_equal_distances() -> None:
    assert spread(["a", "b", "a", "c", "d", "e", "f"], 3) == ["a", "c", "e"]
    assert spread(["a", "b", "b"], 5) == ["a", "b"]
    with pytest.raises(ValueError, match="references must be at least 3 sentences, got 2"):
        spread(["a", "b", "c"], 2)


def test_what_is_not_allowed(encoder: TextEncoder) -> None:
    with pytest.raises(ValueError, match=r"share must be a number from 0 to 1, got 1\.5"):
        RankEncoder(encoder, REFERENCES, 1.5)
    with pytest.raises(ValueError, match="references must be at least 3 different sentences, got 2"):
        RankEncoder(encoder, ["a", "b", "a"])
    with pytest.raises(ValueError, match="encoder must not be fitted on the texts it gets"):
        RankEncoder(Whitening(encoder), REFERENCES)
