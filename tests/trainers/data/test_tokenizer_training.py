"""The tokenizer that is trained on the spot."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from csekit.trainers import train_tokenizer

SUBJECTS = ["the cat", "the dog", "a bird", "the old man", "our neighbour", "a Child"]
VERBS = ["sees", "follows", "calls", "feeds", "likes"]
SENTENCES = [f"{a.capitalize()} {v} {b}." for a in SUBJECTS for v in VERBS for b in SUBJECTS if a != b]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(SENTENCES, 150)


def test_tokenizer_frames_lowercases_and_reloads(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    special = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id]
    assert [*special, tokenizer.sep_token_id, tokenizer.mask_token_id] == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    ids = tokenizer("The CAT sees.")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "the", "cat", "sees", ".", "[SEP]"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat sees."
    pair = tokenizer("the cat", "a dog", return_token_type_ids=True)
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("The CAT sees.")["input_ids"] == ids


def test_tokenizer_is_the_same_on_every_run(tokenizer: PreTrainedTokenizerFast) -> None:
    """The trainer of the tokenizers library alone numbers characters, and so breaks ties, differently in every run."""
    for _ in range(5):
        assert train_tokenizer(SENTENCES, 150).get_vocab() == tokenizer.get_vocab()


def test_tokenizer_keeps_to_the_size_and_names_errors(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) <= 150
    with pytest.raises(ValueError, match=r"vocab_size must hold 5 special tokens and \d+ characters, got 10"):
        train_tokenizer(SENTENCES, 10)
    with pytest.raises(ValueError, match="sentences must hold at least one sentence"):
        train_tokenizer([], 80)


def test_rare_characters_are_left_out() -> None:
    tokenizer = train_tokenizer([*SENTENCES, "The 猫 sees."], 80, limit_alphabet=20)
    assert "猫" not in tokenizer.get_vocab()
    assert tokenizer.convert_ids_to_tokens(tokenizer("the 猫")["input_ids"]) == ["[CLS]", "the", "[UNK]", "[SEP]"]


def test_half_of_a_large_vocabulary_may_be_characters() -> None:
    """At most 1,000 characters had pieces, whatever the size: Chinese and Japanese became [UNK]."""
    characters = [chr(0x4E00 + i) for i in range(3000)]
    texts = ["".join(characters[i : i + 20]) for i in range(0, 3000, 10)]
    tokenizer = train_tokenizer(texts, 8000)
    assert set(characters) <= set(tokenizer.get_vocab())
    assert tokenizer.unk_token_id not in tokenizer(texts[-1])["input_ids"]
    hangul = [chr(0xAC00 + i) for i in range(2500)]  # each of them begins words and continues others
    words = [f"{first}{second}" for first, second in zip(hangul, [*hangul[1:], hangul[0]], strict=True)]
    assert len(train_tokenizer(words, 4000)) == 4000
