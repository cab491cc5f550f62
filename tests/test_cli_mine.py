"""``csekit mine``: the command on files, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.trainers import load_corpus

WORDS = ["the dog", "a cat", "red house", "blue tree", "a man sings", "the woman plays", "slow guitar", "fast ball"]


def mine(*words: str | Path) -> Any:
    return CliRunner().invoke(main, ["mine", *map(str, words)])


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    lines = [f"{a}\t{b}" for a, b in zip(WORDS[:4], WORDS[4:], strict=True)]
    file.write_text("\n".join(["query\tanswer", *lines]) + "\n")
    return file


def test_triplets_with_the_closest_other_texts(tmp_path: Path, tiny_folder: Path, pairs: Path) -> None:
    (tmp_path / "further.txt").write_text("a tree was red\nin the house\n")
    output = tmp_path / "triplets.jsonl"
    words = ("--model", tiny_folder, "--pooling", "mean", "--output", output, "--device", "cpu", "--no_progress")
    found = mine(pairs, *words, "--corpus", tmp_path / "further.txt", "--num_negatives", 2)
    assert found.exit_code == 0, found.output
    assert "pairs 4, pairs without 0, triplets 8" in found.output
    encoder = load_encoder(tiny_folder, "mean", device="cpu")
    pool = [*WORDS[4:], "a tree was red", "in the house"]
    vectors = encoder.encode([*WORDS[:4], *pool]).astype(float)
    vectors /= (vectors**2).sum(1, keepdims=True) ** 0.5
    expected = []
    for place, (query, answer) in enumerate(zip(WORDS[:4], WORDS[4:], strict=True)):
        ranked = sorted(range(len(pool)), key=lambda i, place=place: -(vectors[place] @ vectors[4 + i]))
        closest = [pool[i] for i in ranked if pool[i] != answer][:2]
        expected += [{"query": query, "answer": answer, "negative": negative} for negative in closest]
    assert [json.loads(line) for line in output.read_text().splitlines()] == expected
    assert mine(pairs, *words).exit_code == 2  # the output is kept


def test_columns_are_named_as_in_train(tmp_path: Path, tiny_folder: Path, pairs: Path) -> None:
    """``csekit train-pairs --columns query answer`` is what the pages show; here the second word was refused."""
    more = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu", "--no_progress")
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    found = mine(pairs, "--columns", "answer", "query", "--output", first, *more)
    assert found.exit_code == 0, found.output
    assert json.loads(first.read_text().splitlines()[0])["answer"] == WORDS[4]
    found = mine(*more, "--columns", "answer", "--columns", "query", "--output", second, pairs)
    assert found.exit_code == 0, found.output
    assert second.read_text() == first.read_text()


def test_rows_that_are_left_out_are_told(tmp_path: Path, tiny_folder: Path, pairs: Path) -> None:
    """Blank and repeated pairs used to vanish without a word."""
    words = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu", "--no_progress")
    found = mine(pairs, "--output", tmp_path / "whole.jsonl", *words)
    assert "rows used" not in found.output  # nothing is left out
    pairs.write_text(pairs.read_text() + f"{WORDS[0]}\t{WORDS[4]}\n" * 2 + "the dog\t \n")
    (tmp_path / "further.txt").write_text("a tree\n\nthe dog\na tree\n")
    found = mine(pairs, "--corpus", tmp_path / "further.txt", "--output", tmp_path / "triplets.jsonl", *words)
    assert found.exit_code == 0, found.output
    told = found.output.splitlines()
    assert "pairs.tsv: 4 of 7 rows used; 1 blank ones dropped; 2 exact duplicates dropped" in told
    assert "further.txt: 2 of 4 rows used; 1 blank ones dropped; 1 exact duplicates dropped" in told


def test_what_is_written_to_csv_is_read_back(tmp_path: Path, tiny_folder: Path) -> None:
    """A lone carriage return had no quotes, and a passage of 120 lines was taken for an unbalanced quote."""
    odd = ["a man\rsings", 'a "dog"\r\nruns, fast', "the cat\n" * 120 + "end", "a tree " * 20_000 + "red", "\ra ball"]
    queries = ["a man", "a dog", "a cat", "trees", '"ball']
    file, output = tmp_path / "pairs.jsonl", tmp_path / "triplets.csv"
    file.write_text("".join(json.dumps({"q": q, "p": p}) + "\n" for q, p in zip(queries, odd, strict=True)))
    words = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu", "--no_progress", "--max_length", 32)
    found = mine(file, "--output", output, *words, "--num_negatives", 2)
    assert found.exit_code == 0, found.output
    corpus = load_corpus(output, cache_dir=tmp_path / "cache", tell=False)
    rows = [row["texts"] for row in corpus.dataset.__getitems__(range(corpus.rows))]
    assert corpus.columns == ("q", "p", "negative")
    assert [row[:2] for row in rows] == [[q, p] for q, p in zip(queries, odd, strict=True) for _ in range(2)]
    assert {row[2] for row in rows} <= set(odd)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output", "x.tsv"), "the file to write must end in .jsonl or .csv, got 'x.tsv'"),
        (("--num_negatives", 0), "num_negatives must be a number of at least 1, got 0"),
        (("--columns", "query"), "--columns must be two names, of query and positive, got query"),
        (("--corpus_column", "text"), "--corpus_column needs --corpus"),
    ],
)
def test_what_is_refused_before_the_model_is_read(
    tmp_path: Path, pairs: Path, words: tuple[Any, ...], message: str
) -> None:
    given = ("--output", tmp_path / "x.jsonl") if "--output" not in words else ()
    found = mine(pairs, "--model", tmp_path / "nowhere", *given, *words)
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_a_corpus_of_one_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(WORDS) + "\n")
    found = mine(tmp_path / "texts.txt", "--model", "nowhere", "--output", tmp_path / "x.jsonl")
    assert found.exit_code == 2
    assert "texts.txt must have two columns, the query and its positive, got text: name them" in found.output
