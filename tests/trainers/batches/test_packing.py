"""Packing loses nothing, words stay whole, masks depend on seed, epoch and block alone."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from csekit.trainers import Blocks, PretrainingCollator, pack, train_tokenizer
from csekit.trainers.batches.masking import MaskingVocabulary
from csekit.trainers.data.draws import fold_in, row_keys, unit


def content(blocks: Blocks) -> list[int]:
    """The stream of tokens behind the first token of each block."""
    rows = zip(blocks.ids_NL, blocks.lengths_N, strict=True)
    return [int(id) for row, length in rows for id in row[1:length]]


@pytest.mark.parametrize("block_length", [3, 16, 37, 128, 1000])
@pytest.mark.parametrize("whole_words", [True, False])
def test_packing_loses_nothing(
    tokenizer: PreTrainedTokenizerFast, sentences: list[str], block_length: int, whole_words: bool
) -> None:
    blocks = pack(sentences, tokenizer, block_length, whole_words)
    stream = [id for text in sentences for id in tokenizer(text)["input_ids"][1:]]
    assert content(blocks) == stream
    assert (blocks.ids_NL[:, 0] == tokenizer.cls_token_id).all()
    assert blocks.block_length == block_length
    assert (blocks.lengths_N[:-1] == block_length).all()
    assert 1 < blocks.lengths_N[-1] <= block_length
    assert (blocks.ids_NL[-1, blocks.lengths_N[-1] :] == tokenizer.pad_token_id).all()
    assert len(blocks) == -(-len(stream) // (block_length - 1))


def test_many_texts_are_packed_as_few_are(
    wordpiece: PreTrainedTokenizerFast, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack(sentences * 3, wordpiece, 16)
    monkeypatch.setattr("csekit.trainers.batches.packing._CHUNK", 5)
    parts = pack(sentences * 3, wordpiece, 16)
    assert np.array_equal(whole.ids_NL, parts.ids_NL)
    assert np.array_equal(whole.words_NL, parts.words_NL)


def naive_words(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    """Word numbers of a block by the marks that the pieces carry, one piece after the other."""
    numbers, number = [], 0
    for place, piece in enumerate(tokenizer.convert_ids_to_tokens(ids)):
        special = piece in tokenizer.all_special_tokens
        before_special = place > 0 and ids[place - 1] in tokenizer.all_special_ids
        inside = piece.startswith("##") if "[MASK]" in tokenizer.get_vocab() else not piece.startswith("▁")
        if place and (special or before_special or not inside):
            number += 1
        numbers.append(number)
    return numbers


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
@pytest.mark.parametrize("block_length", [7, 64])
def test_words_are_those_of_the_pieces_marks(
    tokenizers: dict[str, PreTrainedTokenizerFast], sentences: list[str], kind: str, block_length: int
) -> None:
    """A block that begins inside a word counts that part as a word of its own."""
    tokenizer = train_tokenizer(sentences, 120) if kind == "wordpiece" else tokenizers[kind]
    blocks = pack(sentences, tokenizer, block_length)
    for ids, words, length in zip(blocks.ids_NL, blocks.words_NL, blocks.lengths_N, strict=True):
        assert words[:length].tolist() == naive_words(tokenizer, ids[:length].tolist())
    inside = [np.diff(words[:length]) == 0 for words, length in zip(blocks.words_NL, blocks.lengths_N, strict=True)]
    assert any(places.any() for places in inside)


def test_words_of_byte_level_pieces(tokenizers: dict[str, PreTrainedTokenizerFast], sentences: list[str]) -> None:
    """No mark tells a full stop from the end of a word: the pre-tokenizer does."""
    tokenizer = tokenizers["bytelevel"]
    for text in sentences:
        blocks = pack([text], tokenizer, 200)
        spans = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        words = blocks.words_NL[0, 1 : blocks.lengths_N[0] - 1]
        joined: dict[int, str] = {}
        for word, id in zip(words, blocks.ids_NL[0, 1:], strict=False):
            joined[word] = joined.get(word, "") + tokenizer.convert_ids_to_tokens(int(id))
        assert list(joined.values()) == [span for span, _ in spans]


def test_without_whole_words_every_token_is_one(wordpiece: PreTrainedTokenizerFast, sentences: list[str]) -> None:
    blocks = pack(sentences, wordpiece, 16, whole_words=False)
    assert (blocks.words_NL == np.arange(16)).all()


def naive_masks(blocks: Blocks, tokenizer: Any, probability: float, seed: int, epoch: int) -> list[tuple[int, int]]:
    """(block, place) of every chosen token: one number for each word, drawn by its own hash."""
    vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
    chosen = []
    for index in range(len(blocks)):
        key = fold_in(row_keys(seed, epoch, [index], "mask/mlm"), np.array([0], dtype=np.uint64))
        words: dict[int, list[int]] = {}
        for place in range(int(blocks.lengths_N[index])):
            words.setdefault(int(blocks.words_NL[index, place]), []).append(place)
        for word, places in words.items():
            if unit(fold_in(key, np.array([word], dtype=np.uint64)))[0] < probability:
                ordinary = [place for place in places if not vocabulary.special[blocks.ids_NL[index, place]]]
                chosen += [(index, place) for place in ordinary]
    return sorted(chosen)


@pytest.mark.parametrize("whole_words", [True, False])
def test_masking_equals_a_loop_over_words(
    tokenizer: PreTrainedTokenizerFast, sentences: list[str], whole_words: bool
) -> None:
    blocks = pack(sentences, tokenizer, 24, whole_words)
    blocks.set_epoch(3)
    batch = PretrainingCollator(tokenizer, 0.3, seed=11)([blocks[i] for i in range(len(blocks))])
    found = [divmod(position, 24) for position in batch["masked_positions"].tolist()]
    expected = naive_masks(blocks, tokenizer, 0.3, seed=11, epoch=3)
    assert found == expected
    assert len(found) > 10
    assert batch["labels"].tolist() == [int(blocks.ids_NL[place]) for place in expected]
    untouched = np.ones(blocks.ids_NL.shape, dtype=bool)
    untouched[tuple(np.array(expected).T)] = False
    assert (batch["input_ids"].numpy()[untouched] == blocks.ids_NL[untouched]).all()
    assert batch["attention_mask"].sum(1).tolist() == blocks.lengths_N.tolist()


def test_the_scored_positions_are_all_tokens_that_are_not_special(
    tokenizer: PreTrainedTokenizerFast, sentences: list[str]
) -> None:
    blocks = pack(sentences, tokenizer, 24)
    rows = [blocks[i] for i in range(len(blocks))]
    batch = PretrainingCollator(tokenizer, 0.3, scored=True)(rows)
    special = set(tokenizer.all_special_ids)
    places = [(i, t) for i, length in enumerate(blocks.lengths_N) for t in range(length)]
    expected = [24 * i + t for i, t in places if int(blocks.ids_NL[i, t]) not in special]
    assert batch["scored_positions"].tolist() == expected
    assert set(batch["masked_positions"].tolist()) < set(expected)
    plain = PretrainingCollator(tokenizer, 0.3)(rows)
    assert plain.keys() == batch.keys() - {"scored_positions"}
    assert torch.equal(plain["input_ids"], batch["input_ids"])


def test_rates_are_berts(wordpiece: PreTrainedTokenizerFast, sentences: list[str]) -> None:
    """15 % of words, so of tokens in the mean; of the chosen 80 % masked, 10 % another, 10 % kept."""
    blocks = pack(sentences * 400, wordpiece, 64)
    batch = PretrainingCollator(wordpiece, 0.15)([blocks[i] for i in range(len(blocks))])
    special = torch.tensor(wordpiece.all_special_ids)
    ordinary = int((~torch.isin(torch.from_numpy(blocks.ids_NL), special)).sum())
    inputs_M, labels_M = batch["input_ids"].flatten()[batch["masked_positions"]], batch["labels"]
    assert len(labels_M) / ordinary == pytest.approx(0.15, abs=0.006)
    assert (inputs_M == wordpiece.mask_token_id).double().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (inputs_M == labels_M).double().mean().item() == pytest.approx(0.1, abs=0.01)
    assert not torch.isin(labels_M, special).any()


def test_masks_depend_on_seed_epoch_and_block_alone(wordpiece: PreTrainedTokenizerFast, sentences: list[str]) -> None:
    blocks = pack(sentences, wordpiece, 16)
    collator = PretrainingCollator(wordpiece, 0.3, seed=1)
    alone = collator([blocks[3]])
    beside = collator([blocks[1], blocks[3]])
    assert torch.equal(alone["input_ids"][0], beside["input_ids"][1])
    assert not torch.equal(PretrainingCollator(wordpiece, 0.3, seed=2)([blocks[3]])["input_ids"], alone["input_ids"])
    blocks.set_epoch(1)
    assert not torch.equal(collator([blocks[3]])["input_ids"], alone["input_ids"])


def test_sentences_are_what_stands_between_special_tokens(
    wordpiece: PreTrainedTokenizerFast, sentences: list[str]
) -> None:
    special = MaskingVocabulary.from_tokenizer(wordpiece).special
    found = [piece.tolist() for piece in pack(sentences, wordpiece, 1000).sentences(special)]
    assert found == [wordpiece(text, add_special_tokens=False)["input_ids"] for text in sentences]
    short = [id for piece in pack(sentences, wordpiece, 9).sentences(special) for id in piece]
    assert short == [id for piece in found for id in piece]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "texts must hold at least one token, got none in 0 texts"),
        (["", " "], {}, "texts must hold at least one token, got none in 2 texts"),
        (["a"], {"block_length": 2}, "block_length must be at least 3, got 2"),
    ],
)
def test_errors_name_the_field(
    wordpiece: PreTrainedTokenizerFast, texts: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pack(texts, wordpiece, **options)


def test_a_block_needs_a_first_token(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    from tokenizers import processors

    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizers["wordpiece"].backend_tokenizer, mask_token="[MASK]")
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(ValueError, match=r"must put a token such as .* in front of a text"):
        pack(["a dog"], bare)
