import numpy as np
import pytest

from csekit.modeling.objectives import MaskingSpec
from csekit.trainers.batches.masking import MaskingVocabulary, check_spec, masked_copy
from csekit.trainers.data.draws import row_keys, stream_id, uniform

MASK = 4
SPEC = MaskingSpec(0.3)
WORD = 2**64


@pytest.fixture
def vocabulary():
    special = np.zeros(1000, dtype=bool)
    special[:5] = True
    special[500] = True  # an added special token in the middle
    return MaskingVocabulary(MASK, np.flatnonzero(~special), special)


def rows(count=400, length=32, seed=0):
    ids = np.random.default_rng(seed).integers(0, 1000, (count, length))
    maskable = np.arange(length)[None, :] < np.random.default_rng(seed + 1).integers(1, length + 1, (count, 1))
    maskable[:, 0] = False
    return ids, maskable


def mask(ids, maskable, vocabulary, spec=SPEC, *, index=None, view=0, seed=42, epoch=0, name="mlm"):
    index = np.arange(len(ids)) if index is None else index
    view = np.full(len(ids), view)
    return masked_copy(ids, maskable, spec, vocabulary, seed=seed, epoch=epoch, index=index, view=view, name=name)


def naive_mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def naive_key(*values):
    key = 0
    for value in values:
        key = naive_mix(key ^ (value + 1) * 0x9E3779B97F4A7C15 % WORD)
    return key


def naive_unit(key):
    return (key >> 11) / 2**53


def naive_masked_copy(ids, maskable, spec, vocabulary, seed, epoch, index, view, name):
    """One token after the other, in Python's integers."""
    copies, positions, labels = [list(map(int, row)) for row in ids], [], []
    for n, row in enumerate(copies):
        for place, token in enumerate(list(row)):
            values = (seed % WORD, epoch, stream_id(f"mask/{name}"), int(index[n]), int(view[n]), place)
            key = naive_key(*values)
            if not maskable[n][place] or vocabulary.special[token] or naive_unit(key) >= spec.probability:
                continue
            positions.append(n * len(row) + place)
            labels.append(token)
            kind = naive_unit(naive_mix(key ^ 2 * 0x9E3779B97F4A7C15 % WORD))
            draw = naive_unit(naive_mix(key ^ 3 * 0x9E3779B97F4A7C15 % WORD))
            if kind < spec.mask_share:
                row[place] = vocabulary.mask_id
            elif kind < spec.mask_share + spec.random_share:
                row[place] = int(vocabulary.ordinary[int(draw * len(vocabulary.ordinary))])
    return copies, positions, labels


@pytest.mark.parametrize("seed", [42, -1, 2**40])
def test_vectorised_masking_decides_as_the_naive_loop(vocabulary, seed):
    ids, maskable = rows(60, 20)
    spec = MaskingSpec(0.4, mask_share=0.5, random_share=0.3)
    index, view = np.arange(60) * 7 + 2**33, np.arange(60) % 2
    got = masked_copy(ids, maskable, spec, vocabulary, seed=seed, epoch=3, index=index, view=view, name="rtd")
    want = naive_masked_copy(ids, maskable, spec, vocabulary, seed, 3, index, view, "rtd")
    for one, other in zip(got, want, strict=True):
        assert one.dtype == np.int64
        assert one.tolist() == other


def test_rates(vocabulary):
    ids, maskable = rows(4000)
    eligible = (maskable & ~vocabulary.special[ids]).sum()
    copies, positions, labels = mask(ids, maskable, vocabulary)
    new = copies.reshape(-1)[positions]
    assert len(positions) / eligible == pytest.approx(0.3, abs=0.01)
    assert (new == MASK).mean() == pytest.approx(0.8, abs=0.015)
    random = (new != MASK) & (new != labels)
    assert random.mean() == pytest.approx(0.1, abs=0.012)
    drawn = new[random]
    assert not vocabulary.special[drawn].any()
    assert np.histogram(drawn, bins=4, range=(0, 1000))[0] / len(drawn) == pytest.approx([0.25] * 4, abs=0.04)


def test_only_chosen_tokens_change_and_the_input_stays(vocabulary):
    ids, maskable = rows()
    before = ids.copy(), maskable.copy()
    copies, positions, labels = mask(ids, maskable, vocabulary, MaskingSpec(1.0, mask_share=1.0, random_share=0.0))
    assert (ids == before[0]).all()
    assert (maskable == before[1]).all()
    eligible = maskable & ~vocabulary.special[ids]
    assert (copies[eligible] == MASK).all()
    assert (copies[~eligible] == ids[~eligible]).all()
    assert (positions == np.flatnonzero(eligible)).all()
    assert (labels == ids[eligible]).all()


def test_nothing_chosen_is_an_empty_array(vocabulary):
    ids, maskable = rows(3)
    for spec, allowed in ((MaskingSpec(0.0), maskable), (MaskingSpec(1.0), np.zeros_like(maskable))):
        copies, positions, labels = mask(ids, allowed, vocabulary, spec)
        assert positions.shape == labels.shape == (0,)
        assert positions.dtype == labels.dtype == np.int64
        assert (copies == ids).all()


def test_independent_of_padding_batch_and_order(vocabulary):
    ids, maskable = rows(50, 24)
    whole, positions, _ = mask(ids, maskable, vocabulary)
    wide = np.pad(ids, ((0, 0), (0, 9)))
    padded, wide_positions, _ = mask(wide, np.pad(maskable, ((0, 0), (0, 9))), vocabulary)
    assert (padded[:, :24] == whole).all()
    assert (padded[:, 24:] == 0).all()
    assert [(p // 33, p % 33) for p in wide_positions] == [(p // 24, p % 24) for p in positions]
    order = np.random.default_rng(5).permutation(50)[:17]
    some, _, _ = mask(ids[order], maskable[order], vocabulary, index=order)
    assert (some == whole[order]).all()


@pytest.mark.parametrize("change", [{"epoch": 1}, {"view": 1}, {"name": "rtd"}, {"seed": 43}])
def test_epoch_view_name_and_seed_draw_independently(vocabulary, change):
    ids, maskable = rows(2000)
    size = maskable.size
    one = np.isin(np.arange(size), mask(ids, maskable, vocabulary)[1])
    other = np.isin(np.arange(size), mask(ids, maskable, vocabulary, **change)[1])
    eligible = (maskable & ~vocabulary.special[ids]).sum()
    assert (one & other).sum() / eligible == pytest.approx(0.09, abs=0.01)


def test_uniform():
    index = np.arange(1000)
    big = uniform(1, 0, index, "shuffle", (5, 7))
    assert big.shape == (1000, 5, 7)
    assert (big >= 0).all()
    assert (big < 1).all()
    assert big.mean() == pytest.approx(0.5, abs=0.01)
    assert big.var() == pytest.approx(1 / 12, abs=0.003)
    assert (uniform(1, 0, index[::-1], "shuffle", (3, 4))[::-1] == big[:, :3, :4]).all()
    assert uniform(1, 0, index, "shuffle").shape == (1000,)
    flat = np.stack([uniform(1, e, index, s) for e in (0, 1, 2) for s in ("a", "b", "c")])
    correlation = np.corrcoef(np.concatenate([flat, big[:, 0, :].T]))
    assert np.abs(correlation - np.eye(len(correlation))).max() < 0.13
    assert len(np.unique(row_keys(1, 0, np.arange(100_000), "a"))) == 100_000


def test_uniform_is_the_same_forever():
    """A resumed run on a newer version must go on with the same numbers."""
    assert uniform(42, 0, [0, 1], "x", (2,)).tolist() == [
        [naive_unit(naive_key(42, 0, stream_id("x"), n, place)) for place in (0, 1)] for n in (0, 1)
    ]
    assert row_keys(42, 0, [0], "mask/mlm").tolist() == [3368281382843514969]
    assert uniform(42, 0, [7], "mask/mlm", (2,)).tolist() == [[0.9455686016359438, 0.539977359733485]]


def test_vocabulary_from_tokenizer(tokenizer):
    vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
    assert vocabulary.mask_id == tokenizer.mask_token_id
    assert np.flatnonzero(vocabulary.special).tolist() == sorted(tokenizer.all_special_ids)
    assert set(vocabulary.ordinary) | set(tokenizer.all_special_ids) == set(tokenizer.get_vocab().values())
    assert not set(vocabulary.ordinary) & set(tokenizer.all_special_ids)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (MaskingSpec(1.5), "probability must lie in"),
        (MaskingSpec(0.1, views=3), "views must be 1 or 2, got 3"),
        (MaskingSpec(0.1, mask_share=0.9, random_share=0.2), "together at most 1"),
        (MaskingSpec(0.1, mask_share=-0.1), "at least 0"),
    ],
)
def test_bad_specs(vocabulary, spec, message):
    with pytest.raises(ValueError, match=f"mlm.*{message}"):
        check_spec("mlm", spec, vocabulary)


def test_mask_token_needed_only_where_one_is_wanted(vocabulary):
    without = MaskingVocabulary(None, vocabulary.ordinary, vocabulary.special)
    with pytest.raises(ValueError, match=r"mlm: mask_share=0\.8 needs a tokenizer with a mask token"):
        check_spec("mlm", MaskingSpec(0.1), without)
    only_random = MaskingSpec(0.5, mask_share=0.0, random_share=1.0)
    check_spec("mlm", only_random, without)
    ids, maskable = rows(10)
    copies, positions, labels = mask(ids, maskable, without, only_random)
    assert (copies.reshape(-1)[positions] != labels).mean() > 0.9
