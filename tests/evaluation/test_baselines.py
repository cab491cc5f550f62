"""Baselines against plain formulas, and that evaluations fit them on a task at a time."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from csekit.encoding.encoder import TextEncoder, embed
from csekit.encoding.load import load_encoder
from csekit.evaluation.baselines import (
    TfidfEncoder,
    Whitening,
    corpus_sentences,
    static_encoder,
    whitening,
)
from csekit.evaluation.correlation import cosine
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.sts import evaluate_sts
from csekit.evaluation.sts_data import STSTask

TEXTS = ["the man plays guitar .", "a dog runs", "cat", "a red ball is in the house", "fast fast dog"]


@pytest.fixture
def encoder(tiny_folder: Path) -> TextEncoder:
    return load_encoder(tiny_folder, pooling="mean", device="cpu")


def test_static_is_the_mean_of_the_sentence_s_own_rows(tiny_folder: Path, tiny_bert: Any, tiny_tokenizer: Any) -> None:
    found = static_encoder(tiny_folder, device="cpu")
    matrix = tiny_bert.get_input_embeddings().weight.detach().double()
    wanted = [matrix[tiny_tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0).tolist() for text in TEXTS]
    np.testing.assert_allclose(found.encode(TEXTS), wanted, atol=1e-6)
    assert found.describe()["pooling"] == "static" and found.describe()["name"] == "tiny-bert"
    assert found.max_length == 512 and sum(p.numel() for p in found.model.parameters()) == matrix.numel()


def test_static_keeps_unknown_words_and_leaves_a_template_out(
    tiny_folder: Path, tiny_bert: Any, tiny_tokenizer: Any
) -> None:
    from csekit.modeling.tokenization import with_template

    matrix = tiny_bert.get_input_embeddings().weight.detach()
    unknown = matrix[tiny_tokenizer.unk_token_id].numpy()
    np.testing.assert_allclose(static_encoder(tiny_folder, device="cpu").encode(["xyzzy"])[0], unknown, atol=1e-6)
    plain = static_encoder(tiny_folder, device="cpu").encode(TEXTS)
    from transformers import PreTrainedTokenizerFast

    backend = PreTrainedTokenizerFast.from_pretrained(tiny_folder)
    with_template(backend, "the {sentence} is {mask} .").save_pretrained(tiny_folder)
    np.testing.assert_allclose(static_encoder(tiny_folder, device="cpu").encode(TEXTS), plain, atol=1e-6)


def test_a_text_without_tokens_is_the_zero_vector(tiny_folder: Path) -> None:
    assert not static_encoder(tiny_folder, device="cpu").encode([" ", "cat"])[0].any()


def test_static_refuses_a_limit_of_no_token(tiny_folder: Path) -> None:
    """0 was taken for the default, 512."""
    with pytest.raises(ValueError, match=r"max_length must exceed the 2 tokens .*, got 0"):
        static_encoder(tiny_folder, max_length=0, device="cpu").encode(["dog"])


def test_static_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        static_encoder(tmp_path)


def test_whitened_embeddings_have_covariance_one(encoder: TextEncoder) -> None:
    found = Whitening(encoder, dim=3).encode(TEXTS).astype(np.float64)
    assert found.shape == (5, 3)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(found.T @ found / 5, np.eye(3), atol=1e-3)


def test_whitening_is_the_formula_in_loops() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)) @ np.array([[2.0, 1, 0], [0, 1, 3], [0, 0, 0.1]]) + 5
    mean = [sum(row[j] for row in x) / 40 for j in range(3)]
    covariance = [[sum((r[i] - mean[i]) * (r[j] - mean[j]) for r in x) / 40 for j in range(3)] for i in range(3)]
    u, values, _ = np.linalg.svd(covariance)
    found_mean, found_map = whitening(x)
    np.testing.assert_allclose(found_mean, mean)
    np.testing.assert_allclose(np.abs(found_map), np.abs(u / np.sqrt(values)), rtol=1e-8)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    a, b = (x - found_mean) @ found_map, (x @ turn * 9 - whitening(x @ turn * 9)[0]) @ whitening(x @ turn * 9)[1]
    np.testing.assert_allclose(a @ a.T, b @ b.T, atol=1e-8)  # rotation and scale of the space are gone


def test_directions_that_are_not_there_are_left_out() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    assert whitening(np.hstack([x, x]))[1].shape == (4, 2)
    for bad, dim, message in [
        (x, 3, "at most 2"),
        (x[:1], None, "two different"),
        (np.ones((4, 2)), None, "two diff"),
    ]:
        with pytest.raises(ValueError, match=message):
            whitening(bad, dim)
    with pytest.raises(ValueError, match="dim must be at least 1"):
        Whitening(None, dim=0)  # type: ignore[arg-type]


def test_whitening_on_a_corpus_is_fitted_once_and_on_it_alone(encoder: TextEncoder, tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("a  dog runs\n\nthe cat\nred house\nblue tree was on\n")
    corpus = corpus_sentences(path)
    assert corpus == ["a dog runs", "the cat", "red house", "blue tree was on"]
    found = Whitening(encoder, corpus, corpus_name=path.name)
    mean, matrix = whitening(encoder.encode(corpus))
    np.testing.assert_allclose(found.encode(TEXTS[:2]), (encoder.encode(TEXTS[:2]) - mean) @ matrix, atol=1e-3)
    np.testing.assert_allclose(found.encode(TEXTS)[:2], found.encode(TEXTS[:2]), atol=1e-3)
    assert not found.fits_texts
    assert found.describe()["whitening"].items() >= {"fitted_on": "corpus.txt", "dim": None}.items()
    path.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no sentence"):
        corpus_sentences(path)


def test_tfidf_is_the_formula() -> None:
    """idf = ln((1 + N) / (1 + df)) + 1, times the count, rows to length 1; single letters are words."""
    texts = ["A cat , a dog", "the cat !", "..."]
    found = TfidfEncoder().encode(texts).toarray()
    idf = {"a": math.log(4 / 2) + 1, "cat": math.log(4 / 3) + 1, "dog": math.log(4 / 2) + 1}
    row = np.array([2 * idf["a"], idf["cat"], idf["dog"], 0])
    np.testing.assert_allclose(found[0], row / np.linalg.norm(row))
    assert not found[2].any()
    with pytest.raises(ValueError, match="a text with a word in it"):
        TfidfEncoder().encode(["...", "?"])


def test_sparse_cosine_is_the_dense_one() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(6, 9)) * (rng.random((6, 9)) < 0.4) for _ in range(2))
    x[0] = 0
    np.testing.assert_allclose(cosine(csr_matrix(x), csr_matrix(y)), cosine(x, y), atol=1e-12)


def test_embed_refuses_sparse_vectors() -> None:
    with pytest.raises(ValueError, match=r"array \(5, H\), got a sparse matrix"):
        embed(TfidfEncoder(), TEXTS)


def sts(name: str, first: list[str], second: list[str]) -> STSTask:
    return STSTask(name, (Pairs(name, tuple(first), tuple(second), np.arange(len(first), dtype=float)),))


@pytest.mark.parametrize("kind", ["whitening", "tfidf"])
def test_sts_fits_them_on_each_set_alone(encoder: TextEncoder, kind: str) -> None:
    one = sts("STS12", TEXTS[:4], TEXTS[1:])
    two = sts("STS13", ["the house", "a tree", "red ball"], ["a house", "the tree", "cat"])
    fresh = {"whitening": lambda: Whitening(encoder, dim=2), "tfidf": TfidfEncoder}[kind]
    both, alone = evaluate_sts(fresh(), [one, two]), evaluate_sts(fresh(), [two])
    np.testing.assert_allclose(both.tasks["STS13"].similarities, alone.tasks["STS13"].similarities, atol=1e-5)
    assert both.sentences == 11 and both.truncated == 0
    joined = sts("STS13", [*TEXTS[:4], "the house", "a tree", "red ball"], [*TEXTS[1:], "a house", "the tree", "cat"])
    mixed = evaluate_sts(fresh(), [joined]).tasks["STS13"].similarities[4:]
    assert abs(mixed - alone.tasks["STS13"].similarities).max() > 1e-3  # the fit does matter
