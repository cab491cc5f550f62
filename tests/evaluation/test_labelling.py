from pathlib import Path

import numpy as np
import pytest

from csekit.evaluation import ScoreFile, draw_pairs, read_pairs
from csekit.evaluation.correlation import cosine

WORDS = ["red", "blue", "green", "cat", "dog", "tree", "house", "runs", "sings", "sleeps"]
CORPUS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]


def bag(texts: list[str]) -> np.ndarray:
    """Counts of words, turned a little by the place: most pairs of sentences have nothing in common."""
    return np.array(
        [[sum((1 + 0.2 * i) * (word == w) for i, word in enumerate(text.split())) for w in WORDS] for text in texts]
    )


def cosines(pairs: list[tuple[str, str]]) -> np.ndarray:
    return cosine(bag([a for a, _ in pairs]), bag([b for _, b in pairs]))


def test_pairs_are_spread_distinct_and_the_same_again() -> None:
    pairs = draw_pairs(bag, [*CORPUS, *CORPUS], 50, seed=3, pool=400)
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == 50
    assert all(a != b and a in CORPUS and b in CORPUS for a, b in pairs)
    counts = np.histogram(cosines(pairs), bins=5, range=(0, 1))[0]
    assert counts.min() >= 7, counts
    rng = np.random.default_rng(0)
    at_random = [(CORPUS[i], CORPUS[j]) for i, j in rng.integers(0, len(CORPUS), size=(50, 2))]
    assert np.histogram(cosines(at_random), bins=5, range=(0, 1))[0].min() < 7
    assert pairs == draw_pairs(bag, CORPUS, 50, seed=3, pool=400)
    assert set(pairs) != set(draw_pairs(bag, CORPUS, 50, seed=4, pool=400))
    assert abs(np.corrcoef(np.arange(50), cosines(pairs))[0, 1]) < 0.4, "the order tells the cosine"
    used = [text for pair in pairs for text in pair]
    assert len(set(used)) > 90


def test_small_corpora_give_all_their_pairs() -> None:
    pairs = draw_pairs(bag, ["red cat", "red dog", "blue", "red  cat"], 3)
    assert {frozenset(pair) for pair in pairs} == {
        frozenset(pair) for pair in [("red cat", "red dog"), ("red cat", "blue"), ("red dog", "blue")]
    }
    with pytest.raises(ValueError, match="4 pairs need more than 3 distinct sentences"):
        draw_pairs(bag, ["red cat", "red dog", "blue"], 4)
    with pytest.raises(ValueError, match="n must be at least 3"):
        draw_pairs(bag, CORPUS, 2)


@pytest.mark.parametrize(("sentences", "n"), [(31, 460), (40, 590)])
def test_many_pairs_of_few_sentences(sentences: int, n: int) -> None:
    """Neighbours and random partners that coincide left fewer candidates than pairs: an IndexError."""
    pairs = draw_pairs(bag, CORPUS[:sentences], n)
    assert len({frozenset(pair) for pair in pairs}) == n


def test_a_pool_that_is_too_small_is_told() -> None:
    for pool, n in ((5, 11), (2, 3), (1, 3)):
        with pytest.raises(ValueError, match=f"{n} pairs need more than {pool} distinct sentences of 1000: raise the"):
            draw_pairs(bag, CORPUS, n, pool=pool)
    assert len(draw_pairs(bag, CORPUS, 10, pool=5)) == 10


PAIRS = [("a", "b"), ('c "', "d # e"), ("ü", "f\tg"), ("h", "i")]
ORIGIN = {"corpus": "c.txt", "seed": 0}


def test_every_answer_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    assert ScoreFile.resume(path, ORIGIN) is None
    file = ScoreFile.begin(path, PAIRS, ORIGIN)
    assert not path.exists() and file.open() == [0, 1, 2, 3]
    for i, score in [(2, 3.25), (0, 5), (1, 0.1), (2, 4)]:
        file.set(i, score)
        again = ScoreFile.resume(path, ORIGIN)
        assert again is not None
        assert again.scores == file.scores
        assert again.scores[i] == score
    assert again is not None
    assert again.open() == [3]
    assert again.pairs[2] == ("ü", "f g")
    assert path.read_text(encoding="utf-8").splitlines() == [
        "sentence1\tsentence2\tscore", "a\tb\t5.0", 'c "\td # e\t0.1', "ü\tf g\t4.0"]  # fmt: skip
    pairs = read_pairs(path)
    assert pairs.sentences1 == ("a", 'c "', "ü") and pairs.scores.tolist() == [5, 0.1, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dev.pairs.json", "dev.tsv"]


def test_another_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("mine")
    with pytest.raises(ValueError, match=r"holds something else \(dev.pairs.json is missing\)"):
        ScoreFile.resume(path, ORIGIN)
    with pytest.raises(FileExistsError, match="exists already"):
        ScoreFile.begin(path, PAIRS, ORIGIN)
    path.unlink()
    file = ScoreFile.begin(path, PAIRS, ORIGIN)
    file.set(0, 1)
    with pytest.raises(ValueError, match="begun with seed 0, got 1"):
        ScoreFile.resume(path, {**ORIGIN, "seed": 1})
    for line, message in [
        ("x\ty\t1", "line 3: must be a pair of dev.pairs.json"),
        ("h\ti\t6", "line 3, field score: must be from 0 to 5, got 6"),
        ("h\ti\tx", "line 3, field score: must be a number"),
    ]:
        path.write_text(f"sentence1\tsentence2\tscore\na\tb\t1\n{line}\n")
        with pytest.raises(ValueError, match=message):
            ScoreFile.resume(path, ORIGIN)
    ScoreFile.beside(path).write_text("[]")
    with pytest.raises(ValueError, match="not the pairs of a labelling"):
        ScoreFile.resume(path, ORIGIN)


@pytest.mark.parametrize("score", [-0.5, 5.5, float("nan"), float("inf")])
def test_scores_lie_on_the_scale(tmp_path: Path, score: float) -> None:
    file = ScoreFile.begin(tmp_path / "dev.tsv", PAIRS, ORIGIN)
    with pytest.raises(ValueError, match="score: must be"):
        file.set(0, score)
    assert not file.path.exists()
