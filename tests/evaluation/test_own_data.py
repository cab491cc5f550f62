"""Anyone's own files: labelled texts as a transfer task, pairs with their scores, mteb's tasks by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from datasets import Dataset, DatasetDict
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation import read_results
from csekit.evaluation.mteb_adapter import evaluate_mteb, load_mteb_task, mteb_sts_tasks
from csekit.evaluation.own_data import load_classification, score_pair_file
from csekit.evaluation.pairs import Pairs, read_lines, read_pairs
from csekit.evaluation.sts import evaluate_pairs, evaluate_sts
from csekit.evaluation.sts_data import STSTask
from csekit.evaluation.transfer import evaluate_transfer
from csekit.trainers import load_corpus


def letters(texts: list[str]) -> np.ndarray:
    return np.array([[text.count(chr(97 + i)) + 0.1 * i for i in range(26)] for text in texts])


def write(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_labelled_texts_are_a_transfer_task(tmp_path: Path) -> None:
    rows = [f"{'dog' if i % 2 else 'cat'} {'x' * (i % 5)}y\t{'bark' if i % 2 else 'meow'}" for i in range(30)]
    train, test = write(tmp_path / "pets.tsv", "text\tlabel", rows), write(tmp_path / "t.tsv", "text\tlabel", rows[:7])
    task = load_classification(train, test)
    assert task.name == "pets"
    assert list(task.splits) == ["train", "test"]
    assert task.splits["test"].columns == (("cat y", "dog xy", "cat xxy", "dog xxxy", "cat xxxxy", "dog y", "cat xy"),)
    assert task.splits["test"].labels.tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert evaluate_transfer(letters, [task]).tasks["pets"].accuracy == 100
    with_dev = load_classification(train, test, dev=test, name="mine")
    assert (with_dev.name, list(with_dev.splits)) == ("mine", ["train", "dev", "test"])


def test_pairs_and_csv(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    train = write(tmp_path / "folder/train.csv", "label,sentence2,sentence1", ['no,"b, c",a', "yes,d,d"])
    task = load_classification(train, train)
    assert task.name == "folder", "a file that is called train says nothing"
    assert task.splits["train"].columns == (("a", "d"), ("b, c", "d"))
    assert task.splits["train"].labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        (
            "text\tclass",
            "a\tx",
            r"test\.tsv, line 1: label must be one of the columns \['text', 'class'\]",
        ),
        ("text\tlabel", "a\tz", r"test\.tsv, line 2, field label: must be a label of train\.tsv, got 'z'"),
        ("text\tlabel", " \tx", r"test\.tsv, line 2, field text \('text'\): must not be empty"),
        ("text\tlabel", "a", r"test\.tsv, line 2, field label \('label'\): must be column 2, the line has 1"),
        ("text\tlabel", "", r"test\.tsv: must hold labelled rows"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, head: str, row: str, message: str) -> None:
    train = write(tmp_path / "train.tsv", "text\tlabel", ["a\tx", "b\ty"])
    with pytest.raises(ValueError, match=message):
        load_classification(train, write(tmp_path / "test.tsv", head, [row]))


@pytest.mark.parametrize("pairs_first", [True, False])
def test_both_sides_hold_pairs_or_neither(tmp_path: Path, pairs_first: bool) -> None:
    """Pairs on one side alone ended, after encoding, in an error of NumPy about shapes."""
    single = write(tmp_path / "single.tsv", "text\tlabel", [f"a {i}\t{i % 2}" for i in range(20)])
    double = write(tmp_path / "double.tsv", "sentence1\tsentence2\tlabel", [f"a {i}\tb\t{i % 2}" for i in range(20)])
    train, test = (double, single) if pairs_first else (single, double)
    found = CliRunner().invoke(main, ["eval", "tfidf", "--classification", str(train), str(test)])
    assert found.exit_code == 2
    field = "sentence1" if pairs_first else "text"
    assert f"{test.name}, line 1: {field} must be one of the columns" in " ".join(found.output.split())


def test_a_file_of_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.tsv", "sentence1\tsentence2\tscore", ["a b\tb a\t1", "a\tc\t0", "dd\td\t1"])
    pairs = read_pairs(path)
    scores = score_pair_file(letters, pairs)
    assert scores.to_dict()["tasks"]["mine"].items() >= evaluate_pairs(letters, pairs).items()
    assert scores.to_dict()["tasks"]["mine"]["checksum"] == scores.checksum
    head, rows = scores.table()
    further = ["average precision × 100", "accuracy × 100", "cosine threshold"]
    assert head == ["file", "Spearman × 100", "Pearson × 100", "pairs", *further]
    assert (rows[0][0], rows[0][3], len(rows[0])) == ("mine", "3", len(head))


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("mteb", reason="needs the extra mteb")


def test_an_mteb_task_by_name(mteb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    first, second = (tuple("".join(rng.choice(list("abcd "), 12)) + "e" for _ in range(40)) for _ in range(2))
    sets = [STSTask("STS12", (Pairs("one", first, second, rng.integers(0, 11, 40) / 2),))]
    (local,) = mteb_sts_tasks(sets)
    local.load_data = lambda: None
    monkeypatch.setattr(mteb, "get_task", {"STS12": local}.__getitem__)
    scores = evaluate_mteb(letters, load_mteb_task("STS12"))
    assert scores.main_score == pytest.approx(evaluate_sts(letters, sets).tasks["STS12"].all, abs=1e-2)
    assert scores.to_dict()["metric"] == "cosine_spearman"
    assert scores.splits["test"][0]["main_score"] == pytest.approx(scores.main_score / 100)
    assert scores.table()[1] == [["STS12-tokenized", "cosine_spearman", f"{scores.main_score:.2f}"]]
    with pytest.raises(ValueError, match="mteb has no task 'STS99'"):
        load_mteb_task("STS99")


def test_data_that_cannot_be_fetched_are_an_error_that_names_the_task(mteb: Any, monkeypatch: Any) -> None:
    class Task:
        def load_data(self) -> None:
            raise RuntimeError("no\nnetwork")

    monkeypatch.setattr(mteb, "get_task", lambda name: Task())
    with pytest.raises(OSError, match="mteb cannot load Nearby: no network"):
        load_mteb_task("Nearby")


#: MSSE's Fig. 5, as docs/retrieval.md has it.
FIG_5 = (
    "mteb:AmazonCounterfactualClassification/en,mteb:Banking77Classification,mteb:MassiveIntentClassification/en,"
    "mteb:QuoraRetrieval,mteb:AskUbuntuDupQuestions"
)


def test_one_subset_of_an_mteb_task_from_the_command_line(
    mteb: Any, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_data(self: Any, **_: Any) -> None:
        rows = {"text": [f"the {('dog', 'cat', 'tree')[i % 3]}{' is' * (i // 3)}" for i in range(60)]}
        rows |= {"label": [("walk", "sleep", "grow")[i % 3] for i in range(60)], "lang": ["en"] * 60}
        data = Dataset.from_dict(rows)
        self.dataset, self.data_loaded = {"en": DatasetDict({"train": data, "test": data})}, True

    monkeypatch.setattr(type(mteb.get_task("MassiveIntentClassification")), "load_data", load_data)
    output = tmp_path / "tiny.json"
    common = ["--pooling", "mean", "--device", "cpu", "--no_progress", "--output", str(output)]
    chosen = ["--tasks", "mteb:MassiveIntentClassification/en"]
    found = CliRunner().invoke(main, ["eval", str(tiny_folder), *chosen, *common])
    assert found.exit_code == 0, found.output
    scores = read_results(output)["mteb:MassiveIntentClassification/en"]
    assert scores["splits"].keys() == {"test"}
    assert [row["hf_subset"] for row in scores["splits"]["test"]] == ["en"]
    with pytest.raises(ValueError, match=r"mteb's MassiveIntentClassification must be one of \['.*got 'english'"):
        load_mteb_task("MassiveIntentClassification/english")


@pytest.mark.parametrize("name", [name.removeprefix("mteb:") for name in FIG_5.split(",")])
def test_mteb_has_the_sets_of_fig_5(mteb: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, _, subset = name.partition("/")
    monkeypatch.setattr(type(mteb.get_task(task)), "load_data", lambda self, **_: None)
    loaded = load_mteb_task(name)
    assert list(loaded.hf_subsets) == [subset or "default"]
    assert loaded.eval_splits == ["test"]


def test_the_command_of_fig_5_is_the_one_of_the_documents_and_of_the_plan() -> None:
    root = Path(__file__).parents[2]
    assert FIG_5 in (root / "docs" / "retrieval.md").read_text(encoding="utf-8")
    plan = yaml.safe_load((root / "experiments" / "plans" / "papers" / "msse.yaml").read_text(encoding="utf-8"))
    assert FIG_5 in plan["experiments"]["mteb"]["command"]


def test_a_class_of_few_examples_is_named(tmp_path: Path) -> None:
    """Regression: the message counted classes 0, 1 and 2, of which the files know nothing."""
    rows = [f"text {i}\t{'news' if i % 2 else 'sport'}" for i in range(40)]
    for name, more in (("train", ["text 40\tweather"]), ("test", [])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows, *more]) + "\n")
    task = load_classification(tmp_path / "train.tsv", tmp_path / "test.tsv", name="own")
    with pytest.raises(ValueError, match=r"own: .* of at least 10 examples, got .*'sport': 20, 'weather': 1}"):
        evaluate_transfer(lambda texts: np.eye(len(texts), 4), [task])


def test_a_file_of_several_kinds_of_line_ends_has_the_rows_of_training(tmp_path: Path, tiny_folder: Path) -> None:
    """Regression: a lone CR beside LF ended a line for training and csekit encode alone."""
    texts, table = tmp_path / "a.txt", tmp_path / "a.tsv"
    texts.write_bytes(b"a dog\nthe man\ra cat\r\n\nred\r")
    table.write_bytes(b"sentence1\tsentence2\tscore\na dog\ta cat\t1\rthe man\tred\t2\r\na tree\ta ball\t3\n")
    rows = load_corpus(texts, tell=False, cache_dir=tmp_path / "cache").dataset
    trained = [rows[i]["texts"][0] for i in range(len(rows))]
    assert trained == [line for line in read_lines(texts) if line] == ["a dog", "the man", "a cat", "red"]
    assert read_pairs(table).sentences1 == ("a dog", "the man", "a tree")
    common = ("--device", "cpu", "--no_progress")
    words = ("encode", texts, "--model", tiny_folder, "--pooling", "mean", "--output", tmp_path / "a.npy", *common)
    assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
    assert len(np.load(tmp_path / "a.npy")) == len(read_lines(texts)) == 5
    words = ("search", tmp_path / "a.npy", "--file", texts, "--top_k", 1, "--format", "json", *common)
    found = CliRunner().invoke(main, [str(word) for word in words])
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(each["line"], each["query"], each["row"]) for each in answers] == [
        (1, "a dog", 0), (2, "the man", 1), (3, "a cat", 2), (5, "red", 4)
    ]  # fmt: skip
    cells = tmp_path / "a.csv"  # inside quotes it is a part of the cell
    cells.write_bytes(b'sentence1,sentence2,score\r"a\rdog",a cat,1\rthe man,"red, blue",2\na tree,a ball,3\n')
    assert read_pairs(cells).sentences1 == ("a dog", "the man", "a tree")
    with pytest.raises(ValueError, match=r"b\.txt, line 3: must be UTF-8, got the byte 0xFF"):
        (tmp_path / "b.txt").write_bytes(b"a\rb\r\n\xff\n")
        read_lines(tmp_path / "b.txt")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_kinds_of_line_ends(tmp_path: Path, end: str) -> None:
    """Regression: of a file whose lines end in a lone CR, which training and csekit encode read, ``csekit search
    --file`` made one query, and other commands one sentence."""
    path = tmp_path / "a.tsv"
    path.write_bytes(end.join(["\ufeffsentence1\tsentence2\tscore", "a\tb\t1", "", "c\td\t2", "e\tf\t3", ""]).encode())
    assert read_lines(path)[1:] == ["a\tb\t1", "", "c\td\t2", "e\tf\t3"]
    assert read_pairs(path).sentences1 == ("a", "c", "e")
