"""A drawn share of a corpus, and the rows that hold sentences of evaluation sets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts_data import load_sts
from csekit.trainers import CSETrainingArguments, load_corpus
from csekit.trainers.data.subsets import comparable, draw_fraction, find_overlap, without_rows
from csekit.trainers.scripts.runs import steps_of


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Any]:
    def make(lines: list[str], name: str = "texts.txt", **options: Any) -> Any:
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return load_corpus(tmp_path / name, cache_dir=tmp_path / "cache", **options)

    return make


def texts(corpus: Any) -> list[Any]:
    return [row["texts"] for row in corpus.dataset]


# Few-shot


def test_a_smaller_fraction_is_part_of_a_larger_one(corpus: Callable[..., Any]) -> None:
    whole = corpus([f"sentence {i}" for i in range(1000)])
    drawn = {share: [row[0] for row in texts(draw_fraction(whole, share, seed=3))] for share in (0.005, 0.05, 0.5, 1)}
    assert [len(rows) for rows in drawn.values()] == [5, 50, 500, 1000]
    assert set(drawn[0.005]) < set(drawn[0.05]) < set(drawn[0.5]) < set(drawn[1])
    assert drawn[0.5] == [text for text in drawn[1] if text in drawn[0.5]]  # in the order of the corpus
    assert drawn[0.05] == [row[0] for row in texts(draw_fraction(whole, 0.05, seed=3))]
    assert len(set(drawn[0.05]) & {row[0] for row in texts(draw_fraction(whole, 0.05, seed=4))}) < 15


def test_every_row_is_drawn_as_often_as_another(corpus: Callable[..., Any]) -> None:
    whole = corpus([f"sentence {i}" for i in range(20)])
    drawn = np.zeros(20)
    for seed in range(400):
        drawn[[int(row[0].split()[1]) for row in texts(draw_fraction(whole, 0.25, seed))]] += 1
    assert drawn.sum() == 2000
    assert drawn.min() > 65
    assert drawn.max() < 140


def test_a_fraction_says_what_it_is_and_leaves_the_whole_as_it_was(corpus: Callable[..., Any]) -> None:
    whole = corpus([f"{i} one\t{i} two" for i in range(41)], "pairs.tsv")
    part = draw_fraction(whole, 0.1, seed=1)
    assert (part.report.used, part.report.fraction, part.report.rows) == (4, 0.1, 40)
    assert part.checksum == whole.checksum
    assert part.columns == whole.columns
    assert part.name == whole.name
    assert "4 of 40 rows used; a share of 0.1 drawn" in part.report.summary()
    assert [row["index"] for row in part.dataset] == [0, 1, 2, 3]
    assert len(whole.dataset) == 40
    assert whole.report.fraction is None


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0.0, r"train_fraction must lie in \(0, 1\], got 0.0"),
        (1.1, r"train_fraction must lie in \(0, 1\], got 1.1"),
        (0.01, "train_fraction 0.01 of the 50 rows of texts.txt is 0, 2 are needed"),
    ],
)
def test_fractions_that_cannot_be(corpus: Callable[..., Any], fraction: float, message: str) -> None:
    whole = corpus([f"sentence {i}" for i in range(50)])
    with pytest.raises(ValueError, match=message):
        draw_fraction(whole, fraction, seed=1)
    with pytest.raises(ValueError, match="train_fraction needs the whole corpus at the start"):
        draw_fraction(corpus(["one", "two"], streaming=True), 1.0, seed=1)


@pytest.mark.parametrize("rows", [40, 41, 47])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_train_epochs": 1.5}, {"gradient_accumulation_steps": 4}, {"dataloader_drop_last": True}],
    ids=["plain", "epochs", "accumulation", "drop-last"],
)
def test_the_steps_of_the_whole_corpus_are_those_of_the_trainer(
    small_run: Callable[..., Any], tmp_path: Path, rows: int, options: dict[str, Any]
) -> None:
    trainer = small_run(tmp_path / "run", rows, **options)
    steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    args = CSETrainingArguments(str(tmp_path / "x"), per_device_train_batch_size=8, use_cpu=True, **options)
    assert steps_of(rows, args) == steps


# Overlap with evaluation sets


@pytest.mark.parametrize(
    ("raw", "tokenised"),
    [
        ("A man's guitar isn't (really) \u201cred\u201d.", "a man 's guitar is n't ( really ) \" red \" ."),
        ("It cost $3.50 -- in 1984!", "it cost $ 3.50 - in 1984 !"),
        ("Nai\u0308ve CAFE\u0301s", "nai\u0308ve  caf\u00e9s"),
        ("under_score", "under score"),
        ("\uff21\uff22\uff23 \u5929\u6c14", "abc \u5929 \u6c14"),
    ],
)
def test_texts_compare_by_letters_and_digits(raw: str, tokenised: str) -> None:
    assert comparable(raw) == comparable(tokenised) != ""
    assert comparable("a dog runs") != comparable("a dog ran")


SETS = [
    ("dev", [Pairs("dev", ("A dog runs .", "x y", "!?"), ("the cat", "A man plays", "."), np.array([1.0, 2, 3]))]),
    (
        "test",
        [Pairs("a", ("the cat sat",), ("The cat",), np.array([1.0])), Pairs("b", ("z",), ("q",), np.array([2.0]))],
    ),
    ("other", [Pairs("c", ("nothing here",), ("of it",), np.array([1.0]))]),
]


def test_overlap_is_counted_by_row_by_text_and_by_set(corpus: Callable[..., Any]) -> None:
    lines = ["s\tp", "a dog runs\tThe cat.", "fine\tgood", "The Cat\tsomething", "... !\tno text to compare", "x\ty"]
    triplets = corpus(lines, "pairs.tsv")
    overlap = find_overlap(triplets, SETS)
    assert overlap.rows.tolist() == [0, 2]
    assert overlap.texts == 3
    # sentences without a letter or digit do not count
    assert overlap.sets == {"dev": (2, 4), "test": (1, 4), "other": (0, 2)}
    described = overlap.describe(filtered=False)
    assert described == {
        "rows": 2,
        "texts": 3,
        "filtered": False,
        "sets": {
            "dev": {"sentences": 2, "of": 4},
            "test": {"sentences": 1, "of": 4},
            "other": {"sentences": 0, "of": 2},
        },
    }
    assert "2 rows hold a sentence of an evaluation set (dev 2 of 4, test 1 of 4)" in overlap.summary(False)
    assert "--filter_overlap" in overlap.summary(False)
    assert "were left out" in overlap.summary(True)

    clean = without_rows(triplets, overlap.rows)
    assert texts(clean) == [["fine", "good"], ["... !", "no text to compare"], ["x", "y"]]
    assert (clean.report.used, clean.report.filtered) == (3, 2)
    assert "2 with a sentence" in clean.report.summary()
    again = find_overlap(clean, SETS)
    assert not len(again.rows)
    assert again.summary(False) == "no row holds a sentence of dev, test, other"
    with pytest.raises(ValueError, match=r"pairs.tsv: filter_overlap must leave at least 2 of 5 rows, got 0"):
        without_rows(triplets, np.arange(5))


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("लड़का आता है", "लड़की आती है"),  # a boy, a girl comes
        ("มีข่าว", "มีข้าว"),  # there is news, rice
    ],
    ids=["hindi", "thai"],
)
def test_sentences_that_differ_in_vowel_signs_or_tones_are_no_overlap(
    corpus: Callable[..., Any], own: str, other: str
) -> None:
    """Regression: such marks were taken for punctuation, and rows of other sentences were left out."""
    sets = [("dev", [Pairs("dev", (own, "x"), (f"{own} !", "y"), np.array([1.0, 2.0]))])]
    overlap = find_overlap(corpus([other, own, "a"]), sets)
    assert (overlap.rows.tolist(), overlap.sets) == ([1], {"dev": (2, 4)})


def test_accents_and_points_that_may_be_left_out_make_no_difference() -> None:
    assert comparable("за́мок") == comparable("замок")
    assert comparable("كَتَبَ") == comparable("كتب")
    assert comparable("İzmir ❤️") == comparable("izmir")


@pytest.mark.data
def test_the_snli_triplets_overlap_with_the_sets_they_are_known_to(data_dir: Path, tmp_path: Path) -> None:
    triplets = load_corpus(
        data_dir / "nli" / "snli_triplets.csv", columns=("sent0", "sent1", "hard_neg"), cache_dir=tmp_path
    )
    tasks = load_sts(data_dir)
    parts = [(f"{task.name} {pairs.name}", [pairs]) for task in tasks for pairs in task.subsets]
    overlap = find_overlap(triplets, parts)
    found = {name: count for name, (count, _) in overlap.sets.items() if count}
    assert found == {"STS12 MSRvid": 142, "STS15 images": 60, "STS-B test": 61, "SICK-R test": 269}
    assert not find_overlap(without_rows(triplets, overlap.rows), parts).texts
