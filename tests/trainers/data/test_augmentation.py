"""Positives made of a sentence's own words: what changes, what it depends on, where it is refused."""

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from csekit.modeling.objectives import EditSpec, MaskingSpec, PositivesSpec
from csekit.modeling.tokenization import tokenize
from csekit.trainers import CSECollator, load_corpus
from csekit.trainers.data.augmentation import Augmentation, check_augmentation, fitting_words, make_augmentation
from csekit.trainers.data.draws import uniform

KINDS = ("shuffle", "delete", "repeat")
TEXTS = [" ".join(f"w{n}.{i}" for i in range(n)) for n in (1, 2, 3, 4, 10, 25, 40)]


def positives(kind: str, rate: float | None = None, texts: Any = TEXTS, **changes: Any) -> list[list[str]]:
    augmentation = make_augmentation(kind, rate)
    assert augmentation is not None
    given = {"seed": 42, "epoch": [0] * len(texts), "index": list(range(len(texts)))} | changes
    given.setdefault("words", [len(text.split()) for text in texts])
    return [text.split() for text in augmentation(texts, **given)]


def naive(kind: str, rate: float, text: str, seed: int, epoch: int, index: int) -> list[str]:
    """One sentence, one draw after the other."""
    words = text.split()
    n = len(words)
    if n < 2:
        return words
    draw = uniform(seed, epoch, [index], f"augmentation/{kind}", (2, n))[0]
    count = round(rate * n)
    count = max(count, 2 if kind in ("shuffle", "reverse") else 1)
    if kind == "delete":
        count = min(count, n - 1)
    drawn = sorted(range(n), key=lambda place: draw[0][place])[:count]
    if kind == "delete":
        return [words[i] for i in range(n) if i not in drawn]
    if kind == "repeat":
        return [word for i, word in enumerate(words) for _ in range(2 if i in drawn else 1)]
    result = list(words)
    if kind == "reverse":
        for place, source in zip(sorted(drawn), sorted(drawn, reverse=True), strict=True):
            result[place] = words[source]
        return result
    for place, source in zip(sorted(drawn), sorted(drawn, key=lambda place: draw[1][place]), strict=True):
        result[place] = words[source]
    return result


@pytest.mark.parametrize("kind", [*KINDS, "reverse"])
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
def test_the_batch_is_the_naive_loop(kind: str, rate: float) -> None:
    epoch, index = [0, 1, 0, 2, 2, 0, 1], [5, 0, 7, 7, 2**33, 1, 5]
    got = positives(kind, rate, epoch=epoch, index=index, seed=-3)
    assert got == [naive(kind, rate, t, -3, e, i) for t, e, i in zip(TEXTS, epoch, index, strict=True)]


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 1.0])
def test_what_each_kind_keeps(rate: float) -> None:
    for kind in KINDS:
        for text, got in zip(TEXTS, positives(kind, rate), strict=True):
            words = text.split()
            n = len(words)
            if n == 1:
                assert got == words
            elif kind == "shuffle":
                assert Counter(got) == Counter(words)
                assert sum(a != b for a, b in zip(got, words, strict=True)) <= max(2, round(rate * n))
            elif kind == "delete":
                assert len(got) == n - min(max(1, round(rate * n)), n - 1)
                assert [word for word in words if word in got] == got  # the order stays
            else:
                assert len(got) == n + max(1, round(rate * n))
                assert list(dict.fromkeys(got)) == words  # copies stand beside their word
                assert set(Counter(got).values()) <= {1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_is_as_likely_as_another(kind: str) -> None:
    words, count = TEXTS[4], 4000  # ten words
    changed = Counter()
    for got in positives(kind, 0.3, [words] * count):
        if kind == "shuffle":
            changed.update(place for place, (a, b) in enumerate(zip(got, words.split(), strict=True)) if a != b)
        else:
            held = Counter(got)
            changed.update(place for place, word in enumerate(words.split()) if held[word] != 1)
    # of three words that change places each stays where it was in a third of the draws
    expected = 0.3 * (2 / 3 if kind == "shuffle" else 1)
    for place in range(10):
        assert changed[place] / count == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_it_depends_on_seed_epoch_and_sample_alone(kind: str) -> None:
    texts = [TEXTS[5]] * 6
    base = positives(kind, texts=texts)
    assert len({" ".join(words) for words in base}) == 6
    assert positives(kind, texts=texts) == base
    assert positives(kind, texts=[*texts[:3], TEXTS[6]], index=[4, 0, 2, 1])[:3] == [base[4], base[0], base[2]]
    for change in ({"epoch": [1] * 6}, {"seed": 43}, {"index": [*range(6, 12)]}):
        assert not [
            pair
            for pair in zip(positives(kind, texts=texts, **change), base, strict=True)
            if len(set(map(tuple, pair))) == 1
        ]


def test_no_word_from_behind_the_cut_comes_forward() -> None:
    for kind in KINDS:
        got = positives(kind, texts=[TEXTS[6]], words=[8])[0]
        assert set(got) <= set(TEXTS[6].split()[:8])


@pytest.mark.parametrize("template", [None, 'This: "{sentence}" means {mask}.'])
def test_the_words_in_front_of_the_cut_are_counted(wordpiece: Any, sentences: list[str], template: str | None) -> None:
    texts = [*sentences, " ".join(sentences), "extraordinarily" * 20, "It rains."]
    for max_length in (18, 24, 60):
        counts = fitting_words(wordpiece, texts, max_length, template)
        read = tokenize(wordpiece, texts, max_length, template)
        for i, (text, count) in enumerate(zip(texts, counts, strict=True)):
            words = text.split()
            heads = [
                len(wordpiece(" ".join(words[:n]), add_special_tokens=False)["input_ids"]) for n in (count, count + 1)
            ]
            room = read.last[i] - read.first[i]
            if not read.truncated[i]:
                assert count == len(words)
            elif count > 1:
                assert heads[0] <= room < heads[1]
            else:
                assert room < heads[1]


@pytest.mark.parametrize(
    ("kind", "rate", "message"),
    [
        ("swap", None, r"augmentation must be one of 'none', .* 'repeat', 'reverse', 'mask', got 'swap'"),
        ("mask", 0.2, "augmentation_rate must be left out with augmentation 'mask', got 0.2"),
        ("delete", 0.0, r"augmentation_rate must lie in \(0, 1\], got 0.0"),
        ("shuffle", 1.5, r"augmentation_rate must lie in \(0, 1\], got 1.5"),
        ("none", 0.2, "augmentation_rate must be left out with augmentation 'none', got 0.2"),
    ],
)
def test_settings_that_cannot_be(kind: str, rate: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_augmentation(kind, rate)


@pytest.mark.parametrize(
    ("kind", "span", "message"),
    [
        ("mask", 0, "augmentation_span must be at least 1, got 0"),
        ("delete", 5, "augmentation_span must be left out with augmentation 'delete', got 5"),
    ],
)
def test_spans_that_cannot_be(kind: str, span: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_augmentation(kind, None, span)


# A masked span of characters


def masked(texts: list[str], span: int | None = None, **changes: Any) -> list[str]:
    augmentation = make_augmentation("mask", None, span)
    assert augmentation is not None
    given = {"seed": 42, "epoch": [0] * len(texts), "index": list(range(len(texts)))} | changes
    given.setdefault("words", [len(text.split()) for text in texts])
    return augmentation(texts, mask_token="[MASK]", **given)


@pytest.mark.parametrize("span", [1, 5, 60])
def test_a_span_of_characters_becomes_one_mask_token(span: int) -> None:
    text = "A blind man heard the green dog sing in its sleep, and it sang well."
    assert len(text) == 68
    starts = Counter()
    for got in masked([text] * 3000, span):
        left, right = got.split(" [MASK] ")
        assert text.startswith(left)
        assert text.endswith(right)
        assert len(left) + span + len(right) == len(text)
        starts[len(left)] += 1
    places = len(text) - span + 1
    assert set(starts) <= set(range(places))
    assert {0, places - 1} <= set(starts)
    assert max(starts.values()) < 2.5 * 3000 / places


def test_short_texts_stay_and_the_draw_depends_on_seed_epoch_and_sample_alone() -> None:
    short, long = "x" * 29, "x" * 30
    assert masked([short, "y" * 61], 61) == [short, "y" * 61]
    assert masked([long])[0] != long
    assert masked([long, short])[1] == short
    sentence = " ".join(TEXTS[5].split())
    base = masked([sentence] * 6)
    assert len(set(base)) > 1
    assert masked([sentence] * 2, index=[4, 0]) == [base[4], base[0]]
    assert masked([sentence] * 6, epoch=[1] * 6) != base
    assert masked([sentence] * 6, seed=43) != base
    cut = masked([sentence], words=[12])[0].replace(" [MASK] ", "")
    assert len(cut) == len(" ".join(sentence.split()[:12])) - 5  # nothing from behind the truncation


def test_the_collator_masks_with_the_tokenizer_s_own_token(wordpiece: Any) -> None:
    texts = ["A blind man heard the green dog sing in its sleep, and it sang well.", "It rains."]
    augmentation = make_augmentation("mask")
    batch = CSECollator(wordpiece, 32, augmentation=augmentation)(rows([[text] for text in texts]))
    found = (batch["input_ids"] == wordpiece.mask_token_id).sum(-1)
    assert found.tolist() == [[0, 1], [0, 0]]


def test_a_tokenizer_without_mask_token_is_refused(wordpiece: Any) -> None:
    other = copy.deepcopy(wordpiece)
    other.mask_token = None
    with pytest.raises(ValueError, match="augmentation 'mask' needs a tokenizer with a mask token, this one has none"):
        CSECollator(other, 32, augmentation=make_augmentation("mask"))
    with pytest.raises(ValueError, match="kind 'mask' needs a tokenizer with a mask token, this one has none"):
        CSECollator(other, 32, {"further_positives": PositivesSpec(kinds=("mask",))})


def test_a_corpus_of_short_texts_is_told(tmp_path: Path, caplog: Any) -> None:
    augmentation = make_augmentation("mask")
    (tmp_path / "short.txt").write_text("A man runs.\nTwo dogs sleep.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"100% of 2 texts of .* are shorter than 30 characters, which augmentation"):
        check_augmentation(augmentation, load_corpus(tmp_path / "short.txt", cache_dir=tmp_path))
    long = "A blind man heard the green dog sing in its sleep.\n"
    (tmp_path / "mixed.txt").write_text(f"{long}A man runs.\n", encoding="utf-8")
    check_augmentation(augmentation, load_corpus(tmp_path / "mixed.txt", cache_dir=tmp_path))
    assert "50% of 2 texts" in caplog.text


# In the batch


def rows(texts: list[list[str]], epoch: int = 0, first: int = 0) -> list[dict[str, Any]]:
    return [{"texts": t, "index": first + i, "epoch": epoch} for i, t in enumerate(texts)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_collator_adds_the_positive_as_second_column(wordpiece: Any, sentences: list[str], kind: str) -> None:
    augmentation = make_augmentation(kind)
    assert augmentation is not None
    batch = CSECollator(wordpiece, 32, {"mlm": MaskingSpec(0.3)}, seed=7, augmentation=augmentation)(
        rows([[sentence] for sentence in sentences], epoch=3, first=100)
    )
    B = len(sentences)
    words = fitting_words(wordpiece, sentences, 32)
    own = augmentation(sentences, seed=7, epoch=[3] * B, index=list(range(100, 100 + B)), words=words)
    pairs = CSECollator(wordpiece, 32, {"mlm": MaskingSpec(0.3)}, seed=7)(
        rows([list(pair) for pair in zip(sentences, own, strict=True)], epoch=3, first=100)
    )
    assert batch["input_ids"].shape[:2] == (B, 2)
    assert all(np.array_equal(batch[name], pairs[name]) for name in pairs)
    assert not torch.equal(batch["input_ids"][:, 0], batch["input_ids"][:, 1])


def test_a_further_column_stays_behind_the_positive(wordpiece: Any, sentences: list[str]) -> None:
    """Next sentences of an objective that edits them: the positive is no further column."""
    pairs = [[one, other] for one, other in zip(sentences, reversed(sentences), strict=True)]
    specs = {"rtd": EditSpec(0.3, text="next")}
    plain = CSECollator(wordpiece, 32, specs)(rows(pairs))
    batch = CSECollator(wordpiece, 32, specs, augmentation=Augmentation("delete", 0.2))(rows(pairs))
    assert (plain["input_ids"].shape[1], batch["input_ids"].shape[1]) == (1, 2)
    assert torch.equal(batch["rtd_originals"], plain["rtd_originals"])
    with pytest.raises(ValueError, match="rows must hold one text for augmentation 'delete', got 2"):
        CSECollator(wordpiece, 32, augmentation=Augmentation("delete", 0.2))(rows(pairs))


@pytest.mark.parametrize("streaming", [False, True])
def test_workers_and_streams_make_the_same_positives(
    wordpiece: Any, sentences: list[str], tmp_path: Path, streaming: bool
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences * 3), encoding="utf-8")
    dataset = load_corpus(tmp_path / "texts.txt", streaming=streaming, cache_dir=tmp_path).dataset
    collator = CSECollator(wordpiece, 32, augmentation=make_augmentation("shuffle"))
    if streaming:
        dataset.block_size = 4
    seen = []
    for workers in (0, 2):
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            batches = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collator)
            seen.append([batch["input_ids"] for batch in batches])
    assert all(map(torch.equal, seen[0], seen[2]))
    assert all(map(torch.equal, seen[1], seen[3]))
    assert not any(map(torch.equal, seen[0], seen[1]))  # a new view in each epoch


# In training


def test_without_dropout_the_augmentation_alone_makes_two_views(small_run: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose an --augmentation"):
        small_run(tmp_path / "none", fields={"dropout": 0.0})
    trainer = small_run(tmp_path / "run", fields={"dropout": 0.0}, augmentation="repeat", max_steps=2)
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert 0 < entry["metrics/positive_cosine"] < 1 - 1e-6


def test_pairs_are_not_augmented(small_run: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"makes the positive of a single sentence, texts.tsv has the columns s0, s1"):
        small_run(tmp_path / "run", columns=2, augmentation="delete")


def test_texts_without_words_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def corpus(name: str, lines: list[str]) -> Any:
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        return load_corpus(tmp_path / name, cache_dir=tmp_path)

    shuffle = make_augmentation("shuffle")
    with pytest.raises(ValueError, match=r"100% of 3 texts of zh.txt are a single word"):
        check_augmentation(shuffle, corpus("zh.txt", ["今天天气很好。", "他在弹吉他。", "猫"]))
    check_augmentation(shuffle, corpus("some.txt", ["one", "two", "three words here", "and four of them"]))
    assert "50% of 4 texts of some.txt are a single word" in caplog.text
    caplog.clear()
    check_augmentation(shuffle, corpus("fine.txt", ["one", *["three words here"] * 39]))
    check_augmentation(None, corpus("zh.txt", ["今天天气很好。", "他在弹吉他。", "猫"]))
    assert "of the texts" not in caplog.text
