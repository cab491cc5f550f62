"""Word vectors from counts beside the naive loops of the formula; near-identity attention."""

import math

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, DistilBertConfig, DistilBertModel

from csekit.modeling.initialization import (
    cooccurrence_counts,
    load_word_embeddings_,
    near_identity_attention_,
    positive_pmi,
    ppmi_embeddings,
    truncated_svd,
)

ROWS = [[1, 2, 3, 1, 4], [2, 2, 5], [3], [], [4, 1, 2, 6, 3, 5, 1, 1]]
V = 8  # id 0 and 7 never occur


def naive_counts(rows: list[list[int]], window: int) -> np.ndarray:
    counts = np.zeros((V, V))
    for row in rows:
        for i, word in enumerate(row):
            for j, context in enumerate(row):
                if i != j and abs(i - j) <= window:
                    counts[word, context] += 1 / abs(i - j)
    return counts


def naive_ppmi(counts: np.ndarray, smoothing: float, shift: float) -> np.ndarray:
    total = counts.sum()
    smoothed = sum(counts[:, c].sum() ** smoothing for c in range(V))
    result = np.zeros((V, V))
    for w in range(V):
        for c in range(V):
            if counts[w, c] > 0:
                joint, word = counts[w, c] / total, counts[w].sum() / total
                context = counts[:, c].sum() ** smoothing / smoothed
                result[w, c] = max(math.log(joint / (word * context)) - shift, 0.0)
    return result


def bert(**settings: int) -> BertConfig:
    return BertConfig(
        vocab_size=V, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, **settings
    )


@pytest.mark.parametrize("window", [1, 2, 5])
def test_counts_are_those_of_the_naive_loops(window: int) -> None:
    np.testing.assert_allclose(cooccurrence_counts(ROWS, V, window).toarray(), naive_counts(ROWS, window), atol=1e-12)


@pytest.mark.parametrize(("smoothing", "shift"), [(0.75, 0.0), (1.0, 0.0), (0.75, math.log(2))])
def test_ppmi_is_that_of_the_naive_loops(smoothing: float, shift: float) -> None:
    sparse = positive_pmi(cooccurrence_counts(ROWS, V, 2), smoothing, shift)
    naive = naive_ppmi(naive_counts(ROWS, 2), smoothing, shift)
    assert naive.any()
    np.testing.assert_allclose(sparse.toarray(), naive, atol=1e-12)


def test_truncated_svd_has_the_leading_values_of_the_full_one() -> None:
    dense = np.random.default_rng(1).standard_normal((30, 30)) * 0.9 ** np.arange(30)
    left, values = truncated_svd(dense, 5)
    full_left, full_values, _ = np.linalg.svd(dense)
    np.testing.assert_allclose(values, full_values[:5], rtol=1e-4)
    np.testing.assert_allclose(np.abs((left * full_left[:, :5]).sum(axis=0)), 1.0, atol=1e-3)
    assert (left[np.abs(left).argmax(axis=0), np.arange(5)] > 0).all()


def test_ppmi_embeddings_are_u_sqrt_s_scaled() -> None:
    vectors = ppmi_embeddings(ROWS, V, 3, window=2, shift=0.0, std=0.04)
    left, values, _ = np.linalg.svd(naive_ppmi(naive_counts(ROWS, 2), 0.75, 0.0))
    expected = left[:, :3] * np.sqrt(values[:3])
    gram, naive = (vectors @ vectors.T).double().numpy(), expected @ expected.T
    scale = gram.trace() / naive.trace()  # of columns without a sign
    np.testing.assert_allclose(gram, naive * scale, atol=1e-8)
    known = vectors.any(dim=1)
    assert known.tolist() == [False, True, True, True, True, True, True, False]
    assert vectors[known].std(correction=0).item() == pytest.approx(0.04, rel=1e-4)


def test_ppmi_embeddings_repeat_and_leave_the_global_generator() -> None:
    state = torch.get_rng_state()
    assert torch.equal(ppmi_embeddings(ROWS, V, 3), ppmi_embeddings(iter(ROWS), V, 3))
    assert torch.equal(state, torch.get_rng_state())


def test_a_corpus_without_pairs_gives_zeros() -> None:
    assert not ppmi_embeddings([[1], [2], []], V, 3).any()


def test_errors_name_what_came() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        cooccurrence_counts(ROWS, V, 0)
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 7\], got 1\.\.9"):
        cooccurrence_counts([[1, 9]], V)
    with pytest.raises(ValueError, match=r"token ids must be in"):
        cooccurrence_counts([[1, -1]], V)
    with pytest.raises(ValueError, match=r"embedding_size must be in \[1, 7\], got 8"):
        ppmi_embeddings(ROWS, V, 8)


def test_load_word_embeddings_keeps_the_rows_of_unknown_tokens_and_the_tie() -> None:
    model = BertForMaskedLM(bert())
    before = model.get_input_embeddings().weight.detach().clone()
    vectors = torch.zeros(V, 4)
    vectors[2:5] = torch.arange(1.0, 13.0).view(3, 4)
    load_word_embeddings_(model, vectors)
    weight = model.get_input_embeddings().weight
    assert torch.equal(weight[2:5], vectors[2:5])
    assert torch.equal(weight[[0, 1, 5, 6, 7]], before[[0, 1, 5, 6, 7]])
    assert model.get_output_embeddings().weight is weight
    with pytest.raises(ValueError, match=r"vectors must have shape \(8, 4\), got \(8, 5\)"):
        load_word_embeddings_(model, torch.zeros(V, 5))


def test_near_identity_adds_identities_and_nothing_else() -> None:
    model = BertForMaskedLM(bert())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    near_identity_attention_(model)
    eye = torch.eye(4)
    for name, tensor in model.state_dict().items():
        added = tensor - before[name]
        if name.endswith("attention.self.value.weight") or name.endswith("transform.dense.weight"):
            torch.testing.assert_close(added, eye)
        elif name.endswith("attention.output.dense.weight"):
            torch.testing.assert_close(added, 0.7 * eye)
        else:
            assert not added.any(), name


def test_near_identity_attention_begins_as_the_mean_of_its_input() -> None:
    """The layer's contribution, before residual and LayerNorm, is 0.7 times the mean of the context."""
    model = BertModel(bert(initializer_range=1e-6), add_pooling_layer=False).eval()
    near_identity_attention_(model)
    attention, states_1LH = model.encoder.layer[0].attention, torch.randn(1, 5, 4)
    with torch.no_grad():
        context = attention.self(states_1LH)[0]
        added = attention.output.dense(context)
    torch.testing.assert_close(added, 0.7 * states_1LH.mean(dim=1, keepdim=True).expand(1, 5, 4), atol=1e-4, rtol=1e-4)


def test_near_identity_refuses_another_architecture() -> None:
    model = DistilBertModel(DistilBertConfig(vocab_size=V, dim=4, n_layers=1, n_heads=2, hidden_dim=8))
    with pytest.raises(TypeError, match=r"must be of the BERT architecture .* got DistilBertModel"):
        near_identity_attention_(model)
