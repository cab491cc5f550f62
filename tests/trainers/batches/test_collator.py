import time

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from csekit.modeling.objectives import MaskingSpec, TargetSpec
from csekit.modeling.tokenization import pad, sentence_frame, tokenize, training_length, with_template
from csekit.trainers.batches.collator import CSECollator

TEMPLATE = 'This: "{sentence}" means {mask}.'
MLM = {"mlm": MaskingSpec(0.3)}


def rows(sentences, columns=1, epoch=0, first=0):
    texts = [[sentences[(i + c) % len(sentences)] for c in range(columns)] for i in range(len(sentences))]
    return [{"texts": t, "index": first + i, "epoch": epoch} for i, t in enumerate(texts)]


@pytest.mark.parametrize("max_length", [8, 16, 128])
def test_tokenize_is_the_tokenizers_own(tokenizer, sentences, max_length):
    texts = [*sentences, "", "  two  spaces ", "日本語", f"a {tokenizer.mask_token} b {tokenizer.sep_token}"]
    ours = tokenize(tokenizer, texts, max_length)
    own = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    full = tokenizer(texts)["input_ids"]
    assert ours.input_ids == own
    assert ours.truncated == [len(row) > max_length for row in full]
    assert [row[f:e] for row, f, e in zip(ours.input_ids, ours.first, ours.last, strict=True)] == [
        row[1:-1] for row in own
    ]
    padded = pad(tokenizer, ours.input_ids)
    reference = tokenizer(texts, truncation=True, max_length=max_length, padding=True, return_tensors="pt")
    assert (padded["input_ids"] == reference["input_ids"]).all()
    assert (padded["attention_mask"] == reference["attention_mask"]).all()


def test_tokenize_after_other_calls_and_settings(wordpiece, sentences):
    """Regression: truncation and padding left over in the Rust tokenizer by an earlier call must not matter."""
    want = tokenize(wordpiece, sentences, 32).input_ids
    wordpiece(sentences, truncation=True, max_length=4, padding="max_length")
    assert tokenize(wordpiece, sentences, 32).input_ids == want


def test_frame_of_a_vocabulary_without_the_letter_a():
    """Regression: the probe "a" had no token, and the whole frame was taken for the part behind the sentence."""
    inner = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "<pad>": 2, "б": 3}, []))
    special = [("<s>", 0), ("</s>", 1)]
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, cls_token="<s>", sep_token="</s>", pad_token="<pad>")
    assert tokenizer("a", add_special_tokens=False)["input_ids"] == []
    frame = sentence_frame(tokenizer)
    assert (frame.before, frame.after) == ((0,), (1,))


@pytest.mark.parametrize("max_length", [20, 32, 64])
def test_template_is_never_truncated_nor_masked(tokenizer, sentences, max_length):
    frame = sentence_frame(tokenizer, TEMPLATE)
    collator = CSECollator(tokenizer, max_length, {"mlm": MaskingSpec(1.0)}, prompt_template=TEMPLATE)
    long = [sentence * 5 for sentence in sentences]
    batch = collator(rows([*long, f"I am {tokenizer.mask_token} here"]))
    assert batch["input_ids"].shape[-1] == training_length(tokenizer, max_length, TEMPLATE)
    copies = batch["mlm_input_ids"].view(2, *batch["input_ids"].squeeze(1).shape)
    lengths = batch["attention_mask"].squeeze(1).sum(-1)
    for n, ids in enumerate(batch["input_ids"].squeeze(1)):
        for row in (ids, copies[0, n], copies[1, n]):
            real = row[: lengths[n]].tolist()
            assert tuple(real[: len(frame.before)]) == frame.before
            assert tuple(real[-len(frame.after) :]) == frame.after
            assert real[frame.mask_offset] == tokenizer.mask_token_id


@pytest.mark.parametrize("template", [TEMPLATE, "{mask}: {sentence}", "the {sentence} is {mask}"])
def test_a_sentence_is_as_long_with_a_template_as_without(tokenizer, sentences, template):
    """Regression: the template's tokens took the place of the sentence's."""
    specs = {"own": TargetSpec(0.0, views=1)}  # the sentence's own tokens
    long = rows([sentence * 10 for sentence in sentences])
    plain = CSECollator(tokenizer, 32, specs)(long)
    framed = CSECollator(tokenizer, 32, specs, prompt_template=template)(long)
    assert framed["own_attention_mask"].sum(1).tolist() == [30] * len(long)
    assert torch.equal(framed["own_input_ids"], plain["own_input_ids"])


def test_a_template_that_the_tokenizer_holds_comes_on_top_too(tokenizer, sentences):
    long = rows([sentence * 10 for sentence in sentences])
    framed = CSECollator(tokenizer, 32, prompt_template=TEMPLATE)(long)
    held = CSECollator(with_template(tokenizer, TEMPLATE), 32)(long)
    assert torch.equal(held["input_ids"], framed["input_ids"])


def test_the_template_counts_against_the_tokenizer_s_limit(wordpiece):
    frame = sentence_frame(wordpiece, TEMPLATE)
    room = 128 - (len(frame.before) + len(frame.after) - 2)
    CSECollator(wordpiece, room, prompt_template=TEMPLATE)
    with pytest.raises(ValueError, match=rf"max_seq_length must be at most {room}, .* got {room + 1}"):
        CSECollator(wordpiece, room + 1, prompt_template=TEMPLATE)


def test_one_column(tokenizer, sentences):
    batch = CSECollator(tokenizer, 16)(rows(sentences, first=100))
    B = len(sentences)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (B, 1, 16)
    assert batch["input_ids"].dtype == batch["attention_mask"].dtype == batch["index"].dtype == torch.int64
    assert batch["index"].tolist() == list(range(100, 100 + B))
    assert batch["return_loss"] is True
    assert set(batch) == {"input_ids", "attention_mask", "token_counts", "index", "return_loss"}
    assert batch["token_counts"].tolist() == batch["attention_mask"].sum(2).tolist()
    own = tokenizer(sentences, truncation=True, max_length=16, padding=True, return_tensors="pt")
    assert (batch["input_ids"][:, 0] == own["input_ids"]).all()


@pytest.mark.parametrize("columns", [2, 3])
def test_pairs_and_triplets(wordpiece, sentences, columns):
    items = rows(sentences, columns)
    specs = {"mlm": MaskingSpec(0.3), "one": MaskingSpec(0.3, views=1)}
    batch = CSECollator(wordpiece, 24, specs)(items)
    B, L = len(items), batch["input_ids"].shape[-1]
    assert batch["input_ids"].shape == (B, columns, L)
    for c in range(columns):
        own = tokenize(wordpiece, [item["texts"][c] for item in items], 24).input_ids
        for n in range(B):
            length = int(batch["attention_mask"][n, c].sum())
            assert batch["input_ids"][n, c, :length].tolist() == own[n]
            assert (batch["input_ids"][n, c, length:] == wordpiece.pad_token_id).all()
    assert batch["mlm_input_ids"].shape == (2 * B, L)
    assert batch["one_input_ids"].shape == (B, L)
    views = batch["input_ids"][:, :2].transpose(0, 1).reshape(2 * B, L)
    restored = batch["mlm_input_ids"].clone()
    restored.view(-1)[batch["mlm_positions"]] = batch["mlm_labels"]
    assert (restored == views).all()
    assert (batch["mlm_input_ids"] != views).any()


def test_masked_views_of_one_sentence(tokenizer, sentences):
    specs = {"mlm": MaskingSpec(0.4), "rtd": MaskingSpec(0.3), "single": MaskingSpec(0.4, views=1)}
    plain = CSECollator(tokenizer, 32)(rows(sentences))
    batch = CSECollator(tokenizer, 32, specs)(rows(sentences))
    B, L = len(sentences), batch["input_ids"].shape[-1]
    assert (batch["input_ids"] == plain["input_ids"]).all()  # the contrastive input is not touched
    ids = batch["input_ids"].squeeze(1)
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    for name, spec in specs.items():
        assert batch[f"{name}_input_ids"].shape == (spec.views * B, L)
        positions = batch[f"{name}_positions"]
        assert (positions.diff() > 0).all()
        assert positions.dtype == torch.int64
        assert not special.repeat(spec.views, 1).view(-1)[positions].any()
        restored = batch[f"{name}_input_ids"].clone()
        restored.view(-1)[positions] = batch[f"{name}_labels"]
        assert (restored == ids.repeat(spec.views, 1)).all()
    first, second = batch["mlm_input_ids"].view(2, B, L)
    assert (first != second).any()
    assert len(set(batch["mlm_positions"].tolist()) ^ set(batch["rtd_positions"].tolist())) > 0


def test_special_tokens_in_the_text_are_never_masked(tokenizer):
    text = f"the {tokenizer.sep_token} fox {tokenizer.mask_token} dog {tokenizer.unk_token}"
    batch = CSECollator(tokenizer, 32, {"mlm": MaskingSpec(1.0, random_share=0.2)})(rows([text, text]))
    assert not set(batch["mlm_labels"].tolist()) & set(tokenizer.all_special_ids)
    assert len(batch["mlm_labels"]) > 0


def sentence_copies(batch, name="mlm"):
    """Masked copies by sample index, without padding."""
    views = batch[f"{name}_input_ids"].view(-1, len(batch["index"]), batch["input_ids"].shape[-1])
    lengths = batch["attention_mask"][:, 0].sum(-1).tolist()
    return {int(i): views[:, n, : lengths[n]].tolist() for n, i in enumerate(batch["index"])}


def test_masking_is_a_function_of_the_sample_alone(wordpiece, sentences):
    items = rows(sentences)
    whole = sentence_copies(CSECollator(wordpiece, 32, MLM)(items))
    parts = {}
    for part in (items[5:], items[3:5][::-1], items[:3]):  # other order, other batches, one uneven
        parts |= sentence_copies(CSECollator(wordpiece, 32, MLM, pad_to_multiple_of=8)(part))
    assert parts == whole
    assert sentence_copies(CSECollator(wordpiece, 32, MLM)(rows(sentences, epoch=1))) != whole
    assert sentence_copies(CSECollator(wordpiece, 32, MLM, seed=1)(items)) != whole


def test_each_row_has_its_own_epoch_s_masks(wordpiece, sentences):
    """A repeated stream has batches of two epochs."""
    both = rows(sentences), rows(sentences, epoch=1)
    seam = [both[i % 2][i] for i in range(len(sentences))]
    first, second = (sentence_copies(CSECollator(wordpiece, 32, MLM)(part)) for part in both)
    assert sentence_copies(CSECollator(wordpiece, 32, MLM)(seam)) == {
        index: (second if index % 2 else first)[index] for index in first
    }
    assert any(first[index] != second[index] for index in list(first)[1::2])


@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_last_batch_in_a_loader(wordpiece, sentences, workers):
    items = rows(sentences * 2)[:9]
    loader = DataLoader(items, batch_size=4, collate_fn=CSECollator(wordpiece, 32, MLM), num_workers=workers)
    batches = list(loader)
    assert [len(batch["index"]) for batch in batches] == [4, 4, 1]
    got = {i: copies for batch in batches for i, copies in sentence_copies(batch).items()}
    assert got == sentence_copies(CSECollator(wordpiece, 32, MLM)(items))


def test_nothing_masked(wordpiece):
    batch = CSECollator(wordpiece, 32, {"mlm": MaskingSpec(0.0)})(rows(["It rains."]))
    assert batch["mlm_positions"].shape == batch["mlm_labels"].shape == (0,)
    assert batch["mlm_positions"].dtype == torch.int64
    assert (batch["mlm_input_ids"] == batch["input_ids"].view(1, -1).repeat(2, 1)).all()


def test_pad_to_multiple_and_padding_side(wordpiece, sentences):
    wordpiece.padding_side = "left"
    try:
        batch = CSECollator(wordpiece, 30, pad_to_multiple_of=8)(rows(sentences))
    finally:
        wordpiece.padding_side = "right"
    assert batch["input_ids"].shape[-1] % 8 == 0
    assert (batch["attention_mask"].diff(dim=-1) <= 0).all()  # padding on the right


def test_refusals(wordpiece, sentences):
    with pytest.raises(ValueError, match=r"max_seq_length must be at most 128, .* got 129"):
        CSECollator(wordpiece, 129)
    with pytest.raises(ValueError, match="max_length must exceed the 2 tokens"):
        CSECollator(wordpiece, 2)
    with pytest.raises(ValueError, match=r"batch_specs\['mlm'\]: probability"):
        CSECollator(wordpiece, 32, {"mlm": MaskingSpec(2.0)})
    with pytest.raises(ValueError, match="pad_to_multiple_of must be at least 1, got 0"):
        CSECollator(wordpiece, 32, pad_to_multiple_of=0)
    with pytest.raises(ValueError, match="prompt_template must hold"):
        CSECollator(wordpiece, 32, prompt_template="no place")
    mixed = [*rows(sentences), *rows(sentences, 2)]
    with pytest.raises(ValueError, match=r"all rows of a batch must hold 1 texts, got \[1, 2\]"):
        CSECollator(wordpiece, 32)(mixed)


def test_refuses_tokenizers_that_lack_a_token(wordpiece):
    bare = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, unk_token="[UNK]")
    with pytest.raises(ValueError, match="no padding token"):
        CSECollator(bare)
    bare.pad_token = "[PAD]"
    CSECollator(bare)
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        CSECollator(bare, batch_specs=MLM)


def test_collating_is_fast(wordpiece, sentences):
    """A generous bound, against a loop creeping in: 64 sentences, one spec."""
    collator, items = CSECollator(wordpiece, 32, MLM), rows(sentences * 8)
    collator(items)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        collator(items)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("views", [1, 2])
def test_the_contrast_reads_the_masked_copies_on_request(wordpiece, sentences, columns, views):
    items, specs = rows(sentences, columns), {"mlm": MaskingSpec(0.5, views=views)}
    plain = CSECollator(wordpiece, 24, specs)(items)
    masked = CSECollator(wordpiece, 24, specs, mask_contrastive_input=True)(items)
    B, C = len(items), max(columns, 2)
    shown = [min(column, columns - 1) for column in range(C)]
    assert masked["input_ids"].shape[:2] == (B, C)
    assert torch.equal(masked["attention_mask"], plain["attention_mask"][:, shown])
    assert masked["token_counts"].tolist() == plain["token_counts"][:, shown].tolist()
    for key in ("mlm_input_ids", "mlm_positions", "mlm_labels"):
        assert torch.equal(masked[key], plain[key])
    for column in range(C):
        copy = masked["mlm_input_ids"][column * B : (column + 1) * B] if column < views else None
        wanted = plain["input_ids"][:, shown[column]] if copy is None else copy
        assert torch.equal(masked["input_ids"][:, column], wanted)
    assert (masked["input_ids"][:, 0] == wordpiece.mask_token_id).any()


def test_a_masked_contrast_needs_masked_copies(wordpiece):
    with pytest.raises(ValueError, match="mask_contrastive_input must be False without the objective 'mlm', got True"):
        CSECollator(wordpiece, 24, mask_contrastive_input=True)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_every_text_but_the_first_has_the_second_template(tokenizer, sentences, columns):
    """One sentence becomes two columns; a sentence is as long, and masked in the same places, in either template."""
    second = "{mask}, the {sentence}"
    collator = CSECollator(tokenizer, 12, {"mlm": MaskingSpec(1.0)}, prompt_template=TEMPLATE, second_template=second)
    batch = collator(rows(sentences, columns))
    frames = [sentence_frame(tokenizer, template) for template in (TEMPLATE, second)]
    assert batch["input_ids"].shape[:2] == (len(sentences), max(columns, 2))
    copies = batch["mlm_input_ids"].unflatten(0, (2, -1))
    for i in range(len(sentences)):
        for c in range(max(columns, 2)):
            frame = frames[c > 0]
            ids = batch["input_ids"][i, c][batch["attention_mask"][i, c].bool()].tolist()
            text = sentences[(i + (c if columns > 1 else 0)) % len(sentences)]
            own = tokenizer(text, add_special_tokens=False)["input_ids"][:10]
            assert ids == [*frame.before, *own, *frame.after]
            assert batch["token_counts"][i, c] == len(ids)
            if c < 2:
                last = len(ids) - len(frame.after)
                assert copies[c, i, : len(frame.before)].tolist() == list(frame.before)
                assert copies[c, i, last : len(ids)].tolist() == list(frame.after)


def test_a_second_template_counts_against_the_tokenizer_s_limit(wordpiece):
    longer = f"{TEMPLATE} the the the the"
    room = wordpiece.model_max_length - training_length(wordpiece, 0, longer)
    CSECollator(wordpiece, room, prompt_template=TEMPLATE, second_template=longer)
    with pytest.raises(ValueError, match=f"max_seq_length must be at most {room}, the tokenizer's"):
        CSECollator(wordpiece, room + 1, prompt_template=TEMPLATE, second_template=longer)
