import json
from pathlib import Path

import numpy as np
import pytest

from csekit.evaluation import draw_sentences, nearest_neighbors, read_sentences
from csekit.evaluation.neighbors import shared_fraction, write_neighbors

POINTS = {"a": (1.0, 0.0), "b": (0.9, 0.1), "c": (0.0, 1.0), "d": (0.1, 0.9), "e f": (-1.0, 0.0), "q": (0.7, 0.7)}


def first(texts: list[str]) -> np.ndarray:
    return np.array([POINTS[text] for text in texts])


def second(texts: list[str]) -> np.ndarray:
    """Another space, of another size: turned, and padded with zeros."""
    return np.array([(-POINTS[text][1], POINTS[text][0] - 0.5, 0) for text in texts])


def test_equals_all_cosines_sorted() -> None:
    corpus = ["a", "b", "c", "d", "e  f", "a"]
    for answer in nearest_neighbors([first, second], corpus, ["a", "q", " e f "], k=3):
        for encoder, found in zip((first, second), answer.found, strict=True):
            others = [text for text in POINTS if text not in (answer.query, "q")]
            x, y = encoder([answer.query])[0], encoder(others)
            cosines = dict(zip(others, y @ x / np.linalg.norm(y, axis=1) / np.linalg.norm(x), strict=True))
            expected = sorted(others, key=lambda text: -cosines[text])[:3]
            assert [neighbor.sentence for neighbor in found] == expected
            assert [neighbor.cosine for neighbor in found] == pytest.approx([cosines[text] for text in expected])


def test_an_equal_sentence_is_left_out_unless_kept() -> None:
    kept = nearest_neighbors([first], list(POINTS), ["c"], k=2, keep_equal=True)[0]
    assert [n.sentence for n in kept.found[0]] == ["c", "d"] and kept.found[0][0].cosine == 1
    assert [n.sentence for n in nearest_neighbors([first], list(POINTS), ["c"], k=2)[0].found[0]] == ["d", "q"]


def test_a_query_that_is_not_in_a_small_corpus_gets_all_of_it() -> None:
    """The last neighbour was dropped in the place of a sentence that equals the query, though there is none."""
    answers = nearest_neighbors([first], ["a", "b", "c"], ["q", "a"], k=5)
    assert [[n.sentence for n in answer.found[0]] for answer in answers] == [["b", "a", "c"], ["b", "c"]]
    assert [n.sentence for n in nearest_neighbors([first], ["a", "b", "c"], ["q"], k=2)[0].found[0]] == ["b", "a"]


def test_shared_neighbors_and_files(tmp_path: Path) -> None:
    upside_down = lambda texts: first(texts) * (1, -1) + (0, 1)  # noqa: E731
    answers = nearest_neighbors([first, upside_down], ["a", "b", "c", "d"], ["q"], k=2)
    sides = [[neighbor.sentence for neighbor in side] for side in answers[0].found]
    assert sides == [["b", "d"], ["a", "b"]]
    assert answers[0].shared() == {"b"}
    assert shared_fraction(answers) == 0.5
    rows = write_neighbors(tmp_path / "n.tsv", answers, ["A", "B"], {}).read_text().splitlines()
    assert rows[0] == "query\tmodel\trank\tcosine\tsentence" and len(rows) == 5
    assert rows[1].split("\t")[:3] == ["q", "A", "1"] and rows[4].split("\t")[:3] == ["q", "B", "2"]
    content = json.loads(write_neighbors(tmp_path / "n.json", answers, ["A", "B"], {"k": 2}).read_text())
    assert content["k"] == 2
    assert content["models"] == ["A", "B"]
    assert len(content["neighbors"]) == 4
    assert content["shared"] == [{"query": "q", "shared": ["b"]}]
    with pytest.raises(ValueError, match=r"must end in .json or .tsv, got 'n.txt'"):
        write_neighbors(tmp_path / "n.txt", answers, ["A", "B"], {})


def test_each_text_is_encoded_once() -> None:
    seen: list[str] = []

    def counting(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return first(texts)

    nearest_neighbors([counting], ["a", "b", "a"], ["a", "q", "a"])
    assert sorted(seen) == ["a", "b", "q"]


def test_errors() -> None:
    with pytest.raises(ValueError, match="at least one encoder"):
        nearest_neighbors([], ["a"], ["b"])
    with pytest.raises(ValueError, match="at least 2 distinct sentences, got 1"):
        nearest_neighbors([first], ["a", " a "], ["b"])
    with pytest.raises(ValueError, match="at least one string"):
        nearest_neighbors([first], ["a", "b"], [])


def test_sentences_are_read_once_and_drawn_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_bytes("one  two\r\n\n three\none two\nvier ü\n".encode())
    assert read_sentences(path) == ["one two", "three", "vier ü"]
    with pytest.raises(ValueError, match="at least 4 distinct sentences, got 3"):
        read_sentences(path, least=4)
    many = [str(i) for i in range(100)]
    drawn = draw_sentences(many, 10, seed=1)
    assert drawn == draw_sentences(many, 10, seed=1) != draw_sentences(many, 10, seed=2)
    assert drawn == sorted(drawn, key=int) and len(set(drawn)) == 10
    assert draw_sentences(many, 100) == draw_sentences(many, 1000) == many
    with pytest.raises(ValueError, match="n must be at least 1"):
        draw_sentences(many, 0)
