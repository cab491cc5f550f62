"""``csekit search`` on what ``csekit encode`` wrote, beside a brute-force search in numpy."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder, open_embeddings, stored

WORDS = ("man", "woman", "dog", "cat", "ball", "house", "tree", "guitar")
TEXTS = [f"the {a} is in the {b}" for a in WORDS for b in WORDS]
QUERIES = ["a red dog", "the slow house"]


def csekit(*words: str | Path) -> Any:
    return CliRunner().invoke(main, [*map(str, words)], env={"COLUMNS": "100"})


@pytest.fixture
def encoded(tmp_path: Path, tiny_folder: Path) -> Path:
    """A folder with a model, a text file, and the file's embeddings by ``csekit encode``."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    encode(tmp_path, "out.npy")
    return tmp_path


def encode(folder: Path, output: str, *words: str) -> None:
    model = ("--model", folder / "tiny-bert", "--pooling", "mean", "--device", "cpu", "--chunk_rows", "20")
    made = csekit("encode", folder / "texts.txt", *model, "-o", folder / output, "--no_progress", *words)
    assert made.exit_code == 0, made.output


def search(embeddings: Path, *words: str | Path) -> Any:
    return csekit("search", embeddings, "--device", "cpu", "--no_progress", *words)


def brute_force(folder: Path, k: int) -> list[dict[str, Any]]:
    """The answers, by numpy on the embeddings of Python's encoder."""
    encoder = load_encoder(folder / "tiny-bert", pooling="mean", device="cpu")
    rows, queries = (
        (x / np.linalg.norm(x, axis=1, keepdims=True))
        for x in (encoder.encode(texts).astype(np.float64) for texts in (TEXTS, QUERIES))
    )
    answers = []
    for query, cosines in zip(QUERIES, queries @ rows.T, strict=True):
        for rank, row in enumerate(np.argsort(-cosines, kind="stable")[:k], 1):
            answers.append({"query": query, "rank": rank, "row": int(row), "score": cosines[row], "text": TEXTS[row]})
    return answers


@pytest.mark.parametrize("index", ["exact", "faiss"])
@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_the_answers_are_those_of_a_brute_force_search(
    encoded: Path, kind: str, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if index == "faiss":
        pytest.importorskip("faiss")
    monkeypatch.setattr(stored, "BLOCK_ROWS", 7)
    if kind == "parquet":
        encode(encoded, "out.parquet", "--dtype", "float32")
    asked = [word for query in QUERIES for word in ("--query", query)]
    found = search(encoded / f"out.{kind}", *asked, "--top_k", "10", "--format", "json", "--index", index)
    assert found.exit_code == 0, found.output
    answers, wanted = [json.loads(line) for line in found.output.splitlines()], brute_force(encoded, 10)
    scores = [[answer.pop("score") for answer in side] for side in (answers, wanted)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    assert answers == wanted


def test_without_faiss_its_extra_is_named(encoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    found = search(encoded / "out.npy", "--query", "a cat", "--index", "faiss")
    assert found.exit_code == 2, found.output
    assert "pip install 'csekit[faiss]'" in found.output
    assert found.output.count("\n") == 1


def test_queries_of_a_file_and_answers_as_text(encoded: Path) -> None:
    (encoded / "queries.txt").write_text("\n".join(QUERIES) + "\n")
    found = search(encoded / "out.npy", "--file", encoded / "queries.txt", "-k", "1")
    assert found.exit_code == 0, found.output
    first, second = brute_force(encoded, 1)
    assert found.output.splitlines() == [
        f"Query: {QUERIES[0]}",
        f" 1 {first['score']:6.3f}  {first['text']} [row {first['row']}]",
        "",
        f"Query: {QUERIES[1]}",
        f" 1 {second['score']:6.3f}  {second['text']} [row {second['row']}]",
    ]


def test_each_line_of_the_file_has_its_answers(encoded: Path) -> None:
    lines = ["", "a  red dog ", "the slow house", "   ", "a  red dog ", "\ta cat", ""]
    (encoded / "queries.txt").write_bytes("\r\n".join(lines).encode())
    found = search(encoded / "out.npy", "--file", encoded / "queries.txt", "-k", "2", "--format", "json")
    assert found.exit_code == 0, found.output
    answers = [json.loads(line) for line in found.output.splitlines()]
    wanted = [(i, lines[i - 1], rank) for i in (2, 3, 5, 6) for rank in (1, 2)]
    assert [(answer["line"], answer["query"], answer["rank"]) for answer in answers] == wanted
    assert [answer["row"] for answer in answers[:2]] == [answer["row"] for answer in answers[4:6]]
    (encoded / "queries.txt").write_text("\n \n")
    found = search(encoded / "out.npy", "--file", encoded / "queries.txt")
    assert found.exit_code == 2, found.output
    assert found.output.endswith("queries.txt: must hold at least 1 query, got only blank lines or none\n")
    assert found.output.count("\n") == 1


def test_a_folder_that_moved_as_a_whole_is_still_searched(encoded: Path, tmp_path_factory: Any) -> None:
    before = search(encoded / "out.npy", "--query", "a cat").output
    place = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.move(encoded, place)
    assert search(place / "out.npy", "--query", "a cat").output == before
    assert str(encoded) not in (place / "out.npy.json").read_text()


def test_a_model_or_texts_that_moved_are_named_by_an_option(encoded: Path) -> None:
    before = search(encoded / "out.npy", "--query", "a cat").output
    (encoded / "tiny-bert").rename(encoded / "renamed")
    (encoded / "texts.txt").rename(encoded / "sentences.txt")
    lost = search(encoded / "out.npy", "--query", "a cat")
    assert "the encoder of out.npy is not there, name the model" in lost.output
    untitled = search(encoded / "out.npy", "--query", "a cat", "--model", encoded / "renamed")
    assert untitled.exit_code == 0
    assert "warning: rows without texts, name the file with --texts" in untitled.stderr
    rows = [line.split("[row ")[1] for text in (untitled.stdout, before) for line in text.splitlines()[1:]]
    assert rows[:5] == rows[5:]
    named = ("--model", encoded / "renamed", "--texts", encoded / "sentences.txt")
    assert search(encoded / "out.npy", "--query", "a cat", *named).output == before


def other_encoder(folder: Path) -> list[str | Path]:
    from safetensors.torch import load_file, save_file

    copy = Path(shutil.copytree(folder / "tiny-bert", folder / "other"))
    weights = load_file(copy / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    return ["--model", copy]


def smaller_array(folder: Path) -> list[str | Path]:
    np.save(folder / "out.npy", np.load(folder / "out.npy")[:, :8])
    return []


def other_texts(folder: Path) -> list[str | Path]:
    (folder / "other.txt").write_text("\n".join(reversed(TEXTS)) + "\n")
    return ["--texts", folder / "other.txt"]


def no_record(folder: Path) -> list[str | Path]:
    (folder / "out.npy.json").unlink()
    return []


def unfinished(folder: Path) -> list[str | Path]:
    record = json.loads((folder / "out.npy.json").read_text())
    (folder / "out.npy.json").write_text(json.dumps(record | {"complete": False, "done": 20}))
    return []


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (other_encoder, "encoded with another encoder than"),
        (smaller_array, "has shape (64, 8), its record says (64, 32)"),
        (other_texts, "not the file that out.npy was encoded from"),
        (no_record, "no record of csekit encode beside it (out.npy.json)"),
        (unfinished, "20 of 64 rows are there, run the same csekit encode again"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(encoded: Path, prepare: Any, message: str) -> None:
    found = search(encoded / "out.npy", "--query", "a cat", *prepare(encoded))
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--query or --file must be given"),
        (["--query", "x", "--file", "q.txt"], "--file and --query exclude each other"),
        (["--query", "x", "--format", "xml"], "--format must be text or json, got 'xml'"),
        (["--query", "x", "--index", "hnsw"], "index must be one of 'exact', 'faiss', got 'hnsw'"),
        (["--query", "x", "--top_k", "0"], "--top_k must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_told_in_one_line(encoded: Path, words: list[str], message: str) -> None:
    found = search(encoded / "out.npy", *words)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1


def test_a_record_keeps_where_its_encoder_and_its_texts_are(encoded: Path) -> None:
    source = open_embeddings(encoded / "out.npy").record["source"]
    assert source == {"model": "./tiny-bert", "loading": {"pooling": "mean"}, "input": "./texts.txt"}


@pytest.mark.parametrize("command", ["search", "neighbors"])
def test_a_query_that_is_no_utf_8_is_one_line(encoded: Path, command: str) -> None:
    """A byte of the command line that is no UTF-8 arrives as half a surrogate pair; it ended in a traceback."""
    where = [encoded / "out.npy"] if command == "search" else [encoded / "tiny-bert"] * 2
    corpus = ["--corpus", encoded / "texts.txt"] if command == "neighbors" else []
    found = csekit(command, *where, *corpus, "--query", "caf\udce9", "--device", "cpu")
    assert found.exit_code == 2
    assert "--query must be UTF-8, got 'caf\\udce9'" in found.output


def test_a_text_of_half_a_surrogate_pair_is_named(encoded: Path) -> None:
    encoder = load_encoder(encoded / "tiny-bert", pooling="mean", device="cpu")
    with pytest.raises(ValueError, match=r"got half a surrogate pair at texts\[1\]"):
        encoder.encode(["cat", "\ud800"])
