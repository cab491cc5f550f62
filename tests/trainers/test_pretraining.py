"""Tokenizer and masked-LM pre-training from nothing, at tiny sizes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from csekit.trainers.pretraining import (
    mask_block,
    masked_lm_logits,
    masked_lm_score,
    pack,
    pretrain_mlm,
    train_tokenizer,
)

SUBJECTS = ["the cat", "the dog", "a bird", "the old man", "our neighbour", "a Child"]
VERBS = ["sees", "follows", "calls", "feeds", "likes"]
SENTENCES = [f"{a.capitalize()} {v} {b}." for a in SUBJECTS for v in VERBS for b in SUBJECTS if a != b]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(SENTENCES, 150)


def config(tokenizer: PreTrainedTokenizerFast) -> BertConfig:
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )


def train(tokenizer: PreTrainedTokenizerFast, steps: int = 3, **settings: object) -> BertForMaskedLM:
    settings = {"batch_size": 4, "block_length": 16, "progress": False, **settings}
    return pretrain_mlm(SENTENCES, tokenizer, config(tokenizer), steps, **settings)


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
    with pytest.raises(ValueError, match="sentences must not be empty"):
        train_tokenizer([], 80)


def test_rare_characters_are_left_out() -> None:
    tokenizer = train_tokenizer([*SENTENCES, "The 猫 sees."], 80, limit_alphabet=20)
    assert "猫" not in tokenizer.get_vocab()
    assert tokenizer.convert_ids_to_tokens(tokenizer("the 猫")["input_ids"]) == ["[CLS]", "the", "[UNK]", "[SEP]"]


def test_pack_loses_nothing_but_the_tail(tokenizer: PreTrainedTokenizerFast) -> None:
    blocks_NL = pack(SENTENCES, tokenizer, 16)
    assert (blocks_NL[:, 0] == tokenizer.cls_token_id).all() and not (blocks_NL == tokenizer.pad_token_id).any()
    stream = [id for text in SENTENCES for id in tokenizer(text)["input_ids"][1:]]
    packed = blocks_NL[:, 1:].flatten().tolist()
    assert packed == stream[: len(packed)] and len(stream) - len(packed) < 15
    with pytest.raises(ValueError, match="block_length=512"):
        pack(SENTENCES[:2], tokenizer, 512)


def test_masking_rates_and_untouched_input(tokenizer: PreTrainedTokenizerFast) -> None:
    ids_BL = pack(SENTENCES, tokenizer, 16).repeat(200, 1)
    original = ids_BL.clone()
    masked_BL, positions_M, labels_M = mask_block(ids_BL, tokenizer, 0.15, torch.Generator().manual_seed(0))
    assert torch.equal(ids_BL, original)
    assert torch.equal(labels_M, ids_BL.flatten()[positions_M])
    assert (positions_M.diff() > 0).all()
    special = torch.tensor(tokenizer.all_special_ids)
    assert not torch.isin(labels_M, special).any()
    untouched = torch.ones(ids_BL.numel(), dtype=torch.bool)
    untouched[positions_M] = False
    assert torch.equal(masked_BL.flatten()[untouched], ids_BL.flatten()[untouched])
    ordinary = (~torch.isin(ids_BL, special)).sum().item()
    assert len(positions_M) / ordinary == pytest.approx(0.15, abs=0.005)
    inputs_M = masked_BL.flatten()[positions_M]
    assert (inputs_M == tokenizer.mask_token_id).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (inputs_M == labels_M).float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert not torch.isin(inputs_M[inputs_M != tokenizer.mask_token_id], special).any()


def test_gathered_logits_are_those_of_the_whole_model(tokenizer: PreTrainedTokenizerFast) -> None:
    model = BertForMaskedLM(config(tokenizer)).eval()
    masked_BL, positions_M, _ = mask_block(pack(SENTENCES, tokenizer, 16)[:4], tokenizer)
    with torch.no_grad():
        whole = model(input_ids=masked_BL).logits.flatten(0, 1)[positions_M]
        torch.testing.assert_close(masked_lm_logits(model, masked_BL, positions_M), whole)


def test_pretraining_repeats_by_seed_and_restores_the_global_generator(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train(tokenizer)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    second, other = train(tokenizer).state_dict(), train(tokenizer, seed=1).state_dict()
    assert not first.training
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second[name]), name
    assert not torch.equal(first.state_dict()["cls.predictions.bias"], other["cls.predictions.bias"])


def test_pretraining_learns_more_than_frequencies(tokenizer: PreTrainedTokenizerFast) -> None:
    """The corpus has 29 words at most; which kind of word stands where is learnt at once."""
    model = train(tokenizer, steps=250, learning_rate=1e-2, batch_size=16)
    score = masked_lm_score(model, SENTENCES, tokenizer, block_length=16)
    assert score == masked_lm_score(model, SENTENCES, tokenizer, block_length=16)
    ids = pack(SENTENCES, tokenizer, 16)
    counts = torch.bincount(ids[~torch.isin(ids, torch.tensor(tokenizer.all_special_ids))]).double()
    shares = counts[counts > 0] / counts.sum()
    assert score.loss < -(shares * shares.log()).sum()
    assert score.accuracy > shares.max()


def test_heldout_is_logged(tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="csekit.trainers.pretraining"):
        train(tokenizer, steps=1, heldout=SENTENCES[:40])
    assert "held-out masked LM: loss" in caplog.text


def test_errors_name_the_field(tokenizer: PreTrainedTokenizerFast) -> None:
    wrong = config(tokenizer)
    wrong.vocab_size = 7
    with pytest.raises(ValueError, match=r"config.vocab_size must be len\(tokenizer\) = \d+, got 7"):
        pretrain_mlm(SENTENCES, tokenizer, wrong, 1, progress=False)
    with pytest.raises(ValueError, match="block_length must be at most max_position_embeddings = 32, got 64"):
        pretrain_mlm(SENTENCES, tokenizer, config(tokenizer), 1, progress=False)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        train(tokenizer, steps=0)
