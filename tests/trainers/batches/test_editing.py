"""Edited copies against a loop over the tokens of a row."""

import numpy as np
import pytest
import torch

from csekit.modeling.objectives import EditSpec, MaskingSpec
from csekit.trainers.batches.collator import CSECollator
from csekit.trainers.batches.editing import EDITED, edited_copy
from csekit.trainers.batches.masking import MaskingVocabulary, check_spec, choose, masked_copy, replacement_ids
from csekit.trainers.data.draws import fold_in, unit

MASK, PAD, CLS, SEP, INNER = 4, 0, 2, 3, 50
DRAWS = {"seed": 42, "epoch": 1, "name": "rtd"}


@pytest.fixture
def vocabulary():
    special = np.zeros(100, dtype=bool)
    special[[PAD, 1, CLS, SEP, MASK, INNER]] = True
    return MaskingVocabulary(MASK, np.flatnonzero(~special), special)


def texts(count=120, longest=14, seed=0):
    """Rows [CLS] sentence [SEP], the sentence of 0 to ``longest`` tokens, some of them special."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, longest + 1, count)
    ids = np.full((count, longest + 2), PAD)
    maskable = np.zeros(ids.shape, dtype=bool)
    for row, size in enumerate(sizes):
        ids[row, : size + 2] = [CLS, *rng.integers(40, 100, size), SEP]
        maskable[row, 1 : size + 1] = True
    return ids, maskable, sizes + 2


def naive(ids, maskable, lengths, spec, vocabulary, view, max_length):
    index = np.arange(len(ids))
    chosen, keys = choose(ids, maskable, spec.probability, vocabulary, index=index, view=view, **DRAWS)
    rows = []
    for n in range(len(ids)):
        units, bereft = [], False
        for t in range(lengths[n]):
            token, key = ids[n, t], keys[n, t : t + 1]
            operation = spec.operation if chosen[n, t] else "none"
            if operation == "all":
                operation = ("replace", "insert", "delete")[
                    int(3 * unit(fold_in(key, np.array([3], dtype=np.uint64)))[0])
                ]
            if operation == "delete":
                bereft = True
                continue
            own = maskable[n, t] and not vocabulary.special[token]
            behind = t > 0 and maskable[n, t - 1] and not maskable[n, t] and spec.operation in ("delete", "all")
            new = replacement_ids(np.array([token]), key, spec, vocabulary)[0] if operation == "replace" else token
            original = EDITED if bereft else token
            units.append((new, original, operation == "replace", own, own or behind, maskable[n, t]))
            bereft = False
            if operation == "insert":
                units.append((MASK, EDITED, True, True, True, True))
        while len(units) > max_length:
            del units[max(i for i, unit_ in enumerate(units) if unit_[5])]
        rows.append(units)
    K = max(map(len, rows))
    filled = [row + [(PAD, PAD, False, False, False, False)] * (K - len(row)) for row in rows]
    columns = [[[unit_[c] for unit_ in row] for row in filled] for c in range(5)]
    return {
        "input_ids": columns[0],
        "attention_mask": [[int(k < len(row)) for k in range(K)] for row in rows],
        "originals": columns[1],
        **{
            name: np.flatnonzero(np.array(columns[c])).tolist()
            for c, name in ((2, "positions"), (3, "own"), (4, "scored"))
        },
    }


@pytest.mark.parametrize("operation", ["replace", "insert", "delete", "all"])
@pytest.mark.parametrize(("probability", "max_length"), [(0.3, 40), (0.9, 12), (0.02, 16)])
def test_against_a_loop(vocabulary, operation, probability, max_length):
    ids, maskable, lengths = texts(longest=min(14, max_length - 2))
    before = ids.copy(), maskable.copy()
    view = np.arange(len(ids)) % 2
    spec = EditSpec(probability, operation=operation)
    got = edited_copy(
        ids,
        maskable,
        lengths,
        spec,
        vocabulary,
        index=np.arange(len(ids)),
        view=view,
        max_length=max_length,
        pad_id=PAD,
        **DRAWS,
    )
    want = naive(ids, maskable, lengths, spec, vocabulary, view, max_length)
    assert (ids == before[0]).all()
    assert (maskable == before[1]).all()
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.dtype == np.int64, name
        assert value.tolist() == want[name], name
    assert got["attention_mask"].sum(1).max() <= max_length
    if probability > 0.1:
        assert (got["originals"] == EDITED).any() == (operation != "replace")
        kept = set(got["own"]) - set(got["positions"])
        assert kept
        assert not vocabulary.special[got["input_ids"].reshape(-1)[list(kept)]].any()
        assert (got["input_ids"][:, 0] == CLS).all()
        assert ((got["input_ids"] == SEP).sum(1) == 1).all()


def test_replacing_is_masking(vocabulary):
    """The copies of a plain MaskingSpec of the same name."""
    ids, maskable, lengths = texts()
    common = {"index": np.arange(len(ids)), "view": np.zeros(len(ids)), **DRAWS}
    edited = edited_copy(
        ids, maskable, lengths, EditSpec(0.3), vocabulary, max_length=40, pad_id=PAD, multiple=16, **common
    )
    copies, positions, labels = masked_copy(ids, maskable, MaskingSpec(0.3), vocabulary, **common)
    assert (edited["input_ids"] == copies).all()
    assert (edited["positions"] == positions).all()
    assert (edited["originals"] == ids).all()
    assert (edited["originals"].reshape(-1)[positions] == labels).all()
    assert edited["input_ids"].shape[1] == 16


def test_refusals(vocabulary):
    with pytest.raises(ValueError, match=r"rtd: operation must be one of .*, got 'swap'"):
        check_spec("rtd", EditSpec(0.3, operation="swap"), vocabulary)
    with pytest.raises(ValueError, match=r"rtd: text must be one of .*, got 'last'"):
        check_spec("rtd", EditSpec(0.3, text="last"), vocabulary)
    bare = MaskingVocabulary(None, vocabulary.ordinary, vocabulary.special)
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        check_spec("rtd", EditSpec(0.3, operation="insert", mask_share=0.0), bare)
    check_spec("rtd", EditSpec(0.3, operation="delete", mask_share=0.0), bare)


# In the collator


def items(sentences, columns):
    rows = [[sentences[(i + c) % len(sentences)] for c in range(columns)] for i in range(len(sentences))]
    return [{"texts": row, "index": i, "epoch": 0} for i, row in enumerate(rows)]


@pytest.mark.parametrize("operation", ["replace", "insert", "delete", "all"])
def test_two_rates_in_one_batch(tokenizer, sentences, operation):
    specs = {"mlm": MaskingSpec(0.4), "rtd": EditSpec(0.3, operation=operation)}
    batch = CSECollator(tokenizer, 16, specs)(items(sentences, 1))
    alone = CSECollator(tokenizer, 16, {"rtd": specs["rtd"]})(items(sentences, 1))
    for name, value in alone.items():
        assert np.array_equal(batch[name], value)
    R, K = batch["rtd_input_ids"].shape
    assert 2 * len(sentences) == R
    assert K <= 16
    assert batch["rtd_originals"].shape == batch["rtd_attention_mask"].shape == (R, K)
    assert not torch.equal(batch["rtd_input_ids"][: R // 2], batch["rtd_input_ids"][R // 2 :])
    places = [batch[f"rtd_{name}"] for name in ("positions", "own", "scored")]
    assert set(places[0].tolist()) <= set(places[1].tolist()) <= set(places[2].tolist())
    assert batch["rtd_attention_mask"].flatten()[places[2]].all()
    if operation == "replace":
        assert torch.equal(batch["rtd_originals"], batch["input_ids"].squeeze(1).repeat(2, 1))


@pytest.mark.parametrize(("text", "factor"), [("next", 1), ("both", 2)])
def test_further_column(tokenizer, sentences, text, factor):
    """The last column is no contrastive one; what is copied is the next sentence's own text."""
    collator = CSECollator(tokenizer, 16, {"rtd": EditSpec(0.3, text=text)})
    B = len(sentences)
    batch = collator(items(sentences, 2))
    plain = CSECollator(tokenizer, 16)(items(sentences, 1))
    assert torch.equal(batch["input_ids"], plain["input_ids"])
    assert len(batch["rtd_input_ids"]) == 2 * B * factor
    following = plain["input_ids"].squeeze(1).roll(-1, 0)
    rows = batch["rtd_originals"][-2 * B :]
    assert torch.equal(rows, following.repeat(2, 1))
    if text == "both":
        assert torch.equal(batch["rtd_originals"][: 2 * B], plain["input_ids"].squeeze(1).repeat(2, 1))
    with pytest.raises(ValueError, match="rows must hold 2 texts, batch_specs need a further column, got 1"):
        collator(items(sentences, 1))


def test_independent_of_batch_and_padding(wordpiece, sentences):
    collator = CSECollator(wordpiece, 24, {"rtd": EditSpec(0.4, operation="all")}, pad_to_multiple_of=8)
    rows = items(sentences, 1)
    whole, B = collator(rows), len(rows)
    for n, row in enumerate(rows):
        alone = collator([row])
        for view in range(2):
            length = alone["rtd_attention_mask"][view].sum()
            for name in ("rtd_input_ids", "rtd_originals"):
                assert torch.equal(alone[name][view, :length], whole[name][view * B + n, :length])
            assert length == whole["rtd_attention_mask"][view * B + n].sum()
