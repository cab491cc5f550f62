"""Further positives of a sentence: the texts of each kind, their draws, and where they stand in a batch."""

from typing import Any

import pytest

from csekit.modeling.objectives import FURTHER_POSITIVES, PositivesSpec
from csekit.modeling.tokenization import tokenize, training_length
from csekit.trainers.batches.collator import CSECollator
from csekit.trainers.data.augmentation import Augmentation, fitting_words

TEMPLATE = 'This: "{sentence}" means {mask}.'


def specs(*kinds: str) -> dict[str, PositivesSpec]:
    return {FURTHER_POSITIVES: PositivesSpec(kinds=kinds)}


def items(texts: list[list[str]], epoch: int = 0) -> list[dict[str, Any]]:
    return [{"texts": row, "index": 10 + i, "epoch": epoch} for i, row in enumerate(texts)]


def texts_of(batch: dict[str, Any]) -> list[list[int]]:
    names = (f"{FURTHER_POSITIVES}_{key}" for key in ("input_ids", "attention_mask"))
    return [ids[mask.bool()].tolist() for ids, mask in zip(*(batch[name] for name in names), strict=True)]


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_the_texts_are_those_of_each_kind_kind_by_kind(wordpiece: Any, sentences: list[str], template: Any) -> None:
    translated = [*sentences[1:], sentences[0]]
    rows = items([list(pair) for pair in zip(sentences, translated, strict=True)])
    kinds = ("dropout", "reverse", "shuffle", "mask", "column")
    batch = CSECollator(wordpiece, 24, specs(*kinds), seed=7, prompt_template=template)(rows)
    length, B = training_length(wordpiece, 24, template), len(sentences)
    words = fitting_words(wordpiece, sentences, length, template)
    reverse = [" ".join(text.split()[:count][::-1]) for text, count in zip(sentences, words, strict=True)]
    draws = {"seed": 7, "epoch": [0] * B, "index": list(range(10, 10 + B)), "words": words}
    shuffled = Augmentation("shuffle", 1.0)(sentences, **draws, number=3)
    masked = Augmentation("mask", 1.0)(sentences, **draws, number=4, mask_token=wordpiece.mask_token)
    expected = [*sentences, *reverse, *shuffled, *masked, *translated]
    assert texts_of(batch) == tokenize(wordpiece, expected, length, template).input_ids
    assert batch["input_ids"].shape[1] == 1  # the corpus's last column is none of the contrast
    assert batch[f"{FURTHER_POSITIVES}_token_counts"].tolist() == [len(ids) for ids in texts_of(batch)]


def test_a_kind_draws_anew_each_time_and_each_epoch_and_the_same_in_any_batch(
    wordpiece: Any, sentences: list[str]
) -> None:
    collator = CSECollator(wordpiece, 32, specs("shuffle", "shuffle"))
    rows = items([[text] for text in sentences])
    found, B = texts_of(collator(rows)), len(sentences)
    longest = max(range(B), key=lambda i: len(found[i]))
    assert found[longest] != found[B + longest]
    assert sorted(found[longest]) == sorted(found[B + longest])
    assert texts_of(collator([rows[longest]])) == [found[longest], found[B + longest]]
    assert texts_of(collator([rows[longest] | {"epoch": 1}]))[0] not in (found[longest], found[B + longest])


def test_a_kind_that_is_none_is_refused(wordpiece: Any) -> None:
    with pytest.raises(ValueError, match=r"batch_specs\['further_positives'\]: kinds must be of .*, got \('swap',\)"):
        CSECollator(wordpiece, 32, specs("swap"))


def test_a_positive_of_two_texts_has_its_halves_or_two_columns(wordpiece: Any, sentences: list[str]) -> None:
    rows = items([[text, "the " + text, text[::-1]] for text in ["the dog", "cat", *sentences]])
    batch = CSECollator(wordpiece, 24, specs("dropout", "halves", "parts"))(rows)
    texts, firsts, seconds = (list(column) for column in zip(*(row["texts"] for row in rows), strict=True))
    words = [text.split()[:count] for text, count in zip(texts, fitting_words(wordpiece, texts, 24), strict=True)]
    left = [" ".join(each[: -(-len(each) // 2)]) for each in words]
    right = [" ".join(each[-(-len(each) // 2) :] or each) for each in words]
    assert (left[:2], right[:2]) == (["the", "cat"], ["dog", "cat"])
    expected = [*texts, *left, *right, *firsts, *seconds]
    assert texts_of(batch) == tokenize(wordpiece, expected, 24, None).input_ids
    assert batch["input_ids"].shape[1] == 1  # the parts' columns are none of the contrast


def test_parts_need_two_further_columns(wordpiece: Any, sentences: list[str]) -> None:
    with pytest.raises(ValueError, match="rows must hold 3 texts, batch_specs need two further columns, got 2"):
        CSECollator(wordpiece, 24, specs("parts"))(items([[text, text] for text in sentences]))
