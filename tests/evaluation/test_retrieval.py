"""Collections in BEIR's format, their metrics against naive formulas, and STS-B retrieval against loops."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation import sts_data
from csekit.evaluation.baselines import TfidfEncoder
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.retrieval import (
    evaluate_retrieval,
    load_retrieval,
    retrieval_suite,
    score_pair_retrieval,
    stsb_retrieval,
)
from csekit.evaluation.retrieval_data import CQADUPSTACK, Collection, CollectionGroup, load_beir

WORDS = "river stone light market winter engine paper garden music doctor bridge window salt train".split()  # noqa: SIM905


def words_encoder(texts: Sequence[str]) -> np.ndarray:
    """Counts of words, a weight each."""
    return np.array([[text.split().count(w) * (i + 2) ** 0.5 + 0.01 for i, w in enumerate(WORDS)] for text in texts])


def make_collection(documents: int = 40, queries: int = 7, seed: int = 0) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)

    def text(n: int) -> str:
        return " ".join(rng.choice(WORDS, n))

    corpus = [{"_id": f"d{i}", "title": text(1) if i % 3 else "", "text": text(4)} for i in range(documents)]
    asked = [{"_id": f"q{i}", "text": text(3)} for i in range(queries + 2)]  # the last two are judged nowhere
    qrels = [
        (f"q{i}", f"d{j}", int(rng.integers(0, 3))) for i in range(queries) for j in rng.permutation(documents)[:5]
    ]
    return {"corpus": corpus, "queries": asked, "qrels": qrels}


def write_collection(folder: Path, content: dict[str, list[Any]], qrels: str = "qrels/test.tsv") -> Path:
    (folder / qrels).parent.mkdir(parents=True, exist_ok=True)
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content[name]))
    lines = ["\t".join(map(str, row)) + "\n" for row in content["qrels"]]
    (folder / qrels).write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def naive_metrics(ranking: dict[str, list[str]], qrels: dict[str, dict[str, int]], k: int) -> dict[str, float]:
    """nDCG@10, MRR@10 and recall@k as the formulas say."""
    ndcg, mrr, recall = [], [], []
    for query, grades in qrels.items():
        gain = sum(grades.get(d, 0) / math.log2(i + 2) for i, d in enumerate(ranking[query][:10]))
        ideal = sum(g / math.log2(i + 2) for i, g in enumerate(sorted(grades.values(), reverse=True)[:10]))
        ndcg.append(gain / ideal if ideal else 0.0)
        mrr.append(next((1 / (i + 1) for i, d in enumerate(ranking[query][:10]) if grades.get(d, 0) > 0), 0.0))
        relevant = [d for d, g in grades.items() if g > 0]
        recall.append(sum(d in ranking[query][:k] for d in relevant) / len(relevant) if relevant else 0.0)
    return {"ndcg@10": 100 * np.mean(ndcg), "mrr@10": 100 * np.mean(mrr), f"recall@{k}": 100 * np.mean(recall)}


def naive_ranking(collection: Collection) -> dict[str, list[str]]:
    ids, vectors = collection.document_ids, words_encoder(collection.documents)
    found = {}
    for key, query in zip(collection.query_ids, words_encoder(collection.queries), strict=True):
        scores = [float(np.float32(v @ query / np.linalg.norm(v) / np.linalg.norm(query))) for v in vectors]
        best = sorted(range(len(ids)), key=lambda i: (scores[i], ids[i]), reverse=True)
        found[key] = [ids[i] for i in best]
    return found


@pytest.mark.parametrize("qrels", ["qrels/test.tsv", "qrels.tsv", "qrels_test.tsv"])
def test_beir_folder(tmp_path: Path, qrels: str) -> None:
    content = make_collection()
    found = load_beir(write_collection(tmp_path, content, qrels))
    assert isinstance(found, Collection)
    assert len(found.documents) == 40 and found.query_ids == tuple(f"q{i}" for i in range(7))
    row = content["corpus"][1]
    assert found.documents[1] == f"{row['title']} {row['text']}" and found.documents[0] == content["corpus"][0]["text"]
    assert {(q, d, g) for q, grades in found.qrels.items() for d, g in grades.items()} == set(content["qrels"])


@pytest.mark.parametrize("chunk", [50_000, 7])
def test_metrics_are_the_formulas(tmp_path: Path, chunk: int) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    content = make_collection()
    content["corpus"][11] = {**content["corpus"][3], "_id": "d11"}  # ties: the greater id comes first
    collection = load_beir(write_collection(tmp_path, content))
    assert isinstance(collection, Collection)
    scores = evaluate_retrieval(words_encoder, collection, recall_at=(3, 100), chunk=chunk)
    ranking = naive_ranking(collection)
    assert scores.metrics == pytest.approx(
        naive_metrics(ranking, collection.qrels, 3) | {"recall@100": 100.0}, abs=1e-5
    )
    content_dict = scores.to_dict()
    assert (content_dict["queries"], content_dict["documents"], content_dict["truncated"]) == (7, 40, None)
    assert "parts" not in content_dict and content_dict["checksum"] == collection.checksum()


def test_negative_grades_count_as_zero(tmp_path: Path) -> None:
    """pytrec_eval writes out of bounds for grades of −2 and below; in 50 calls that kills the process."""
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    content = make_collection()
    grades = [grade - 2 for grade in range(3)]
    content["qrels"] = [(q, d, grades[g] if g < 2 else 2) for q, d, g in content["qrels"]]
    content["qrels"][0] = (*content["qrels"][0][:2], -10)
    found = load_beir(write_collection(tmp_path / "negative", content))
    content["qrels"] = [(q, d, max(0, g)) for q, d, g in content["qrels"]]
    clamped = load_beir(write_collection(tmp_path / "clamped", content))
    assert isinstance(found, Collection)
    assert min(grade for row in found.qrels.values() for grade in row.values()) == 0
    wanted = evaluate_retrieval(words_encoder, clamped).metrics
    assert all(evaluate_retrieval(words_encoder, found).metrics == wanted for _ in range(50))


def test_words_alone_search_by_the_formula() -> None:
    """TF-IDF with the documents' vocabulary and idf: ln((1 + N) / (1 + df)) + 1; unknown words of a query count
    nothing."""
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    documents = ("red cat", "red dog runs", "blue dog", "tree")
    queries = ("dog runs runs", "red zebra", "zebra")
    qrels = {"q0": {"b": 1}, "q1": {"a": 2, "b": 1}, "q2": {"a": 1}}
    collection = Collection("c", tuple("abcd"), documents, tuple(qrels), queries, qrels)
    vocabulary = sorted({word for text in documents for word in text.split()})
    idf = [math.log(5 / (1 + sum(word in text.split() for text in documents))) + 1 for word in vocabulary]

    def tfidf(texts: Sequence[str]) -> np.ndarray:
        rows = np.array([[text.split().count(word) for word in vocabulary] for text in texts]) * idf
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)

    ours = evaluate_retrieval(TfidfEncoder(), collection, recall_at=(1, 2), chunk=2)
    assert ours.metrics == evaluate_retrieval(tfidf, collection, recall_at=(1, 2)).metrics
    assert ours.metrics["recall@2"] == pytest.approx(200 / 3)
    assert ours.truncated == 0


def test_a_document_with_the_query_s_id_is_left_out_on_demand() -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    texts = ("river stone", "river stone light", "salt")
    collection = Collection("c", ("a", "b", "c"), texts, ("a",), texts[:1], {"a": {"b": 1}})
    assert evaluate_retrieval(words_encoder, collection, recall_at=(1,)).metrics["mrr@10"] == 50
    own = evaluate_retrieval(words_encoder, collection, recall_at=(1,), ignore_identical_ids=True)
    assert own.metrics == {"ndcg@10": 100, "recall@1": 100, "mrr@10": 100}


def test_cqadupstack_is_the_mean_of_twelve(tmp_path: Path) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    for i, part in enumerate(CQADUPSTACK):
        write_collection(tmp_path / "cqadupstack" / part, make_collection(20 + i, 3 + i % 4, seed=i))
    group = load_beir(tmp_path / "cqadupstack")
    assert isinstance(group, CollectionGroup)
    scores = evaluate_retrieval(words_encoder, group)
    each = [evaluate_retrieval(words_encoder, part).metrics["ndcg@10"] for part in group.parts]
    assert len(each) == 12 and len(set(each)) > 1
    assert scores.metrics["ndcg@10"] == pytest.approx(np.mean(each)) and scores.documents == 12 * 20 + 66
    assert list(scores.to_dict()["parts"]) == list(CQADUPSTACK)
    (tmp_path / "cqadupstack" / "tex").rename(tmp_path / "tex")
    with pytest.raises(FileNotFoundError, match="twelve parts of CQADupStack, tex missing"):
        load_beir(tmp_path / "cqadupstack")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "corpus.jsonl",
            '"_id": "d1"',
            '"id": "d1"',
            r"corpus\.jsonl, line 2, field _id: must be a string, got nothing",
        ),
        ("corpus.jsonl", '"_id": "d1"', '"_id": 1', r"line 2, field _id: must be a string, got int 1"),
        ("corpus.jsonl", '"_id": "d1"', '"_id": "d0"', r"line 2, field _id: must be given once, got 'd0' again"),
        ("corpus.jsonl", '"text"', '"body"', r"corpus\.jsonl, line 1, field text: must be a string, got nothing"),
        ("corpus.jsonl", '{"_id": "d2"', '"_id": "d2"', r"corpus\.jsonl, line 3: must be a JSON object, got '\"_id\""),
        ("queries.jsonl", '"text"', '"text": " ", "was"', r"queries\.jsonl, line 1, field text: must not be empty"),
        ("queries.jsonl", '"text": "', '"text": "\\ud800', r"queries\.jsonl, line 1, field text: .* half a surrogate"),
        (
            "corpus.jsonl",
            '"text": "',
            '"text": ' + "[" * 10**5,
            r"corpus\.jsonl, line 1: must be a JSON object, got '{",
        ),
        ("corpus.jsonl", '"text": "', f'"n": {"1" * 5000}, "text": "', r"corpus\.jsonl, line 1: must be a JSON obj"),
        (
            "corpus.jsonl",
            '"_id": "d1"',
            '"_id": "d\\u0000"',
            r"line 2, field _id: must not hold the character U\+0000",
        ),
        ("queries.jsonl", '"_id": "q0"', '"_id": "\\u0000q"', r"queries\.jsonl, line 1, field _id: must not hold the"),
        (
            "qrels/test.tsv",
            "score\n",
            "score\nq1\td1\t1_0\n",
            r"line 2, field score: must be a whole number, got '1_0'",
        ),
        (
            "qrels/test.tsv",
            "score\n",
            "score\nq1\td1\t99999999999999999999\n",
            r"field score: must be at most 10,000, got",
        ),
        ("qrels/test.tsv", "q0\t", "q0 ", r"test\.tsv, line 2: must hold query-id, corpus-id and score, tab-sep"),
        ("qrels/test.tsv", "q0\t", "x0\t", r"test\.tsv, line 2, field query-id: must be the _id of a query, got 'x0'"),
        ("qrels/test.tsv", "q0\td", "q0\tx", r"line 2, field corpus-id: must be the _id of a document, got 'x"),
        ("qrels/test.tsv", "score\n", "score\nq1\td1\thigh\n", r"line 2, field score: must be a whole number, got 'h"),
        ("qrels/test.tsv", "score\n", "score\nq1\td1\t1\nq1\td1\t2\n", r"line 3: must agree with"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    path = write_collection(tmp_path, make_collection()) / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        load_beir(tmp_path)


def test_cut_bytes_and_missing_files(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "c", make_collection())
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(lines[:5]))  # cut short: the judgements tell
    with pytest.raises(ValueError, match="field corpus-id: must be the _id of a document"):
        load_beir(folder)
    found = load_beir(folder, allow_missing=True)
    assert isinstance(found, Collection)
    assert len(found.documents) == 5
    assert len(found.qrels["q0"]) == 5
    (folder / "corpus.jsonl").write_bytes(b'{"_id": "d0", "text": "caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 1: must be UTF-8, got the byte 0xE9"):
        load_beir(folder)
    with pytest.raises(FileNotFoundError, match=r"holds none of qrels/dev\.tsv, qrels_dev\.tsv"):
        load_beir(folder, split="dev")
    (folder / "queries.jsonl").write_text("\n")
    (folder / "corpus.jsonl").write_text('{"_id": "d0", "text": ""}\n')
    with pytest.raises(ValueError, match=r"queries\.jsonl: must hold at least one line"):
        load_beir(folder)
    with pytest.raises(FileNotFoundError, match="folder must be a folder in BEIR's format"):
        load_beir(tmp_path / "nowhere")


def test_the_missing_extra_is_said_before_anything_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(texts: Sequence[str]) -> np.ndarray:
        raise AssertionError("encoded")

    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    with pytest.raises(ImportError, match=r"pip install 'csekit\[retrieval\]'"):
        evaluate_retrieval(never, Collection("c", ("a",), ("x",), ("q",), ("y",), {"q": {"a": 1}}))


def make_pairs() -> Pairs:
    """Of six pairs two ask; a text occurs twice, another three times."""
    rows = [
        ("river stone light", "river stone salt", 5.0),
        ("market", "winter engine", 0.0),
        ("paper garden", "paper garden music", 5.0),
        ("river stone", "river stone salt", 3.0),
        ("paper garden", "doctor", 1.0),
        ("paper garden music", "letter", 2.0),
    ]
    first, second, scores = zip(*rows, strict=True)
    return Pairs("test", first, second, np.array(scores))


def naive_recall(pairs: Pairs, both: bool, k: int) -> float:
    texts = [*pairs.sentences1, *pairs.sentences2]
    vectors, hits = words_encoder(texts), []
    for i, score in enumerate(pairs.scores):
        for own, other in [(i, i + len(pairs)), (i + len(pairs), i)][: 1 + both] if score == 5.0 else []:

            def cosine(j: int, own: int = own) -> float:
                x, y = vectors[own], vectors[j]
                return float(np.float32(x @ y / np.linalg.norm(x) / np.linalg.norm(y)))

            ranked = sorted((j for j in range(len(texts)) if j != own), key=lambda j: (-cosine(j), j))
            hits.append(texts[other] in [texts[j] for j in ranked[:k]])
    return 100 * float(np.mean(hits))


def test_stsb_retrieval_is_the_loops() -> None:
    pairs = make_pairs()
    scores = score_pair_retrieval(words_encoder, pairs)
    assert (scores["first"].queries, scores["both"].queries, scores["both"].documents) == (2, 4, 12)
    for direction in ("first", "both"):
        assert scores[direction].metrics == {
            f"recall@{k}": naive_recall(pairs, direction == "both", k) for k in (1, 5, 10)
        }
    # "paper garden" stands twice: the copy is nearer than the sentence that is sought; of the others the text counts
    assert scores["first"].metrics["recall@1"] < scores["first"].metrics["recall@5"] == 100
    with pytest.raises(ValueError, match=r"must hold pairs with gold score 5\.0"):
        score_pair_retrieval(words_encoder, Pairs("p", ("a",), ("b",), np.array([4.0])))


def test_directions_and_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directions must be 'first' or 'both', got 'second'"):
        stsb_retrieval(words_encoder, tmp_path, "second")


def test_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    pairs = make_pairs()
    monkeypatch.setattr(sts_data, "COUNTS", {**sts_data.COUNTS, "STS-B": {"test": len(pairs)}})
    (tmp_path / "STS/STSBenchmark").mkdir(parents=True)
    lines = [
        f"g\tf\ty\t{i}\t{score}\t{a}\t{b}\n"
        for i, (a, b, score) in enumerate(zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True))
    ]
    (tmp_path / "STS/STSBenchmark/sts-test.csv").write_text("".join(lines))
    assert len(retrieval_suite(words_encoder, load_retrieval(tmp_path)).to_dict()) == 2
    write_collection(tmp_path / "scifact", make_collection())
    scores = retrieval_suite(words_encoder, load_retrieval(tmp_path))
    assert list(scores.to_dict()) == ["STS-B, 2 queries", "STS-B, 4 queries", "scifact"]
    head, rows = scores.table()
    assert head[:4] == ["Retrieval × 100", "queries", "documents", "recall@1"] and head[-1] == "mrr@10"
    assert {len(row) for row in rows} == {len(head)}
    assert rows[0][:3] == ["STS-B, 2 queries", "2", "12"] and rows[0][-1] == ""
    assert scores.to_dict()["STS-B, 4 queries"] == stsb_retrieval(words_encoder, tmp_path).to_dict()
    with pytest.raises(FileNotFoundError, match="BEIR's format"):
        load_retrieval(tmp_path, collections=["nfcorpus"])


def test_a_collection_needs_no_stsb(tmp_path: Path) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    write_collection(tmp_path / "scifact", make_collection())
    data = load_retrieval(tmp_path)
    assert data.pairs is None
    assert list(retrieval_suite(words_encoder, data).to_dict()) == ["scifact"]
    (tmp_path / "STS/STSBenchmark").mkdir(parents=True)  # STS-B is there, but broken
    with pytest.raises(FileNotFoundError, match=r"sts-test\.csv"):
        load_retrieval(tmp_path)
    with pytest.raises(FileNotFoundError, match="STS"):
        load_retrieval(tmp_path / "scifact")


@pytest.mark.data
def test_real_data_have_their_numbers(data_dir: Path) -> None:
    found = load_beir(data_dir / "scifact")
    assert isinstance(found, Collection)
    assert (len(found.documents), len(found.queries), sum(map(len, found.qrels.values()))) == (5183, 300, 339)
    train = load_beir(data_dir / "scifact", split="train")
    assert isinstance(train, Collection)
    assert (len(train.queries), sum(map(len, train.qrels.values()))) == (809, 919)

    def letters(texts: Sequence[str]) -> np.ndarray:
        return np.array([[text.count(chr(97 + i)) + 0.1 for i in range(26)] for text in texts])

    for direction, queries in (("first", 97), ("both", 194)):
        scores = stsb_retrieval(letters, data_dir, direction)
        assert (scores.queries, scores.documents) == (queries, 2758)
        assert 0 < scores.metrics["recall@1"] <= scores.metrics["recall@5"] <= scores.metrics["recall@10"] < 100
