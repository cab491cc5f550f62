import json
import resource
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.cli.common import model_labels

SENTENCES = ["the man plays guitar", "the dog runs fast", "a red ball", "the house is slow", "a woman sings", "a tree"]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["neighbors", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*SENTENCES, SENTENCES[0]]) + "\n")
    return path


@pytest.mark.parametrize("name", ["results.json", "notes.json", "texts.tsv"])
def test_a_file_that_holds_something_else_stays(
    tmp_path: Path, tiny_folder: Path, corpus: Path, no_encoder: None, name: str
) -> None:
    """A run's results and a corpus were replaced without a word."""
    content = {"results.json": '{"format": 1, "method": "simcse"}', "notes.json": "none", "texts.tsv": "a\tb\n"}[name]
    (tmp_path / name).write_text(content)
    words = ("--pooling_a", "mean", "--pooling_b", "cls", "--corpus", corpus, "-o", tmp_path / name)
    found = run(tiny_folder, tiny_folder, *words)
    assert found.exit_code == 2
    assert f"{name}: holds something else than neighbours; choose another name" in " ".join(found.output.split())
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize("name", ["a.json", "a.tsv"])
def test_an_empty_file_stays_as_in_other_commands(
    tmp_path: Path, tiny_folder: Path, corpus: Path, no_encoder: None, name: str
) -> None:
    """Regression: it was said to hold something else than neighbours."""
    (tmp_path / name).touch()
    found = run(tiny_folder, tiny_folder, "--corpus", corpus, "-o", tmp_path / name)
    assert found.exit_code == 2
    assert f"{name}: exists and is empty; delete it or choose another name" in " ".join(found.output.split())


@pytest.mark.parametrize("name", ["a.json", "a.tsv"])
def test_a_full_disk_leaves_the_earlier_answer_and_no_empty_file(
    tmp_path: Path, tiny_folder: Path, corpus: Path, name: str
) -> None:
    """Regression: it left a piece, and the same command then refused its own file."""
    words = ("--pooling_a", "mean", "--pooling_b", "cls", "--corpus", corpus, "-o", tmp_path / name, "--no_progress")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for earlier in (False, True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as a full disk
        try:
            found = run(tiny_folder, tiny_folder, *words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert found.exit_code == 2, found.output
        assert [path.name for path in tmp_path.glob("*a.*")] == ([name] if earlier else [])
        found = run(tiny_folder, tiny_folder, *words)
        assert found.exit_code == 0, found.output


@pytest.mark.parametrize("ending", ["json", "tsv"])
def test_an_earlier_answer_is_replaced(tmp_path: Path, tiny_folder: Path, corpus: Path, ending: str) -> None:
    words = ("--pooling_a", "mean", "--pooling_b", "cls", "--corpus", corpus, "-o", tmp_path / f"a.{ending}")
    for _ in range(2):
        found = run(tiny_folder, tiny_folder, *words, "--no_progress")
        assert found.exit_code == 0, found.output


def test_two_encoders_side_by_side(tmp_path: Path, tiny_folder: Path, corpus: Path) -> None:
    output = tmp_path / "n.json"
    sides = ("--pooling_a", "cls", "--pooling_b", "mean", "--device", "cpu", "--no_progress")
    common = (tiny_folder, tiny_folder, "--corpus", corpus, *sides)
    found = run(*common, "--query", "the dog runs fast", "--query", "a cat", "-k", "2", "-o", output)
    assert found.exit_code == 0, found.output
    assert found.output.count("Query: ") == 2 and "2 queries, 6 sentences" in found.output
    assert found.output.splitlines()[1].split() == ["tiny-bert", "(1)", "|", "tiny-bert", "(2)"]
    assert all(len(line) <= 100 for line in found.output.splitlines() if not line.startswith("written"))
    content = json.loads(output.read_text())
    assert [encoder["pooling"] for encoder in content["encoders"]] == ["cls", "mean"]
    assert str(tmp_path) not in output.read_text()
    neighbors = [row for row in content["neighbors"] if row["query"] == "the dog runs fast"]
    assert len(neighbors) == 4 and all(row["sentence"] in SENTENCES for row in neighbors)
    assert "the dog runs fast" not in [row["sentence"] for row in neighbors]
    kept = run(*common, "--query", "the dog runs fast", "-k", "1", "--keep_equal")
    assert kept.output.count(" 1.000 * the dog runs fast") == 2 and "100 % of the nearest 1" in kept.output
    assert run(*common, "--sample", "3").output == run(*common, "--sample", "3").output
    (tmp_path / "q.txt").write_text("a cat\n\nblue\n")
    assert run(*common, "--queries", tmp_path / "q.txt").output.count("Query: ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "x", "--queries", "CORPUS"], "exclude each other"),
        (["--query", " "], "--query must not be empty"),
        (["--queries", "nowhere.txt"], "no such file"),
        (["-o", "n.csv"], "must end in .json or .tsv"),
        (["-k", "0"], "k must be at least 1"),
        (["--sample", "0"], "n must be at least 1"),
        (["--pooling_b", "median"], "pooling must be one of"),
    ],
)
def test_errors_are_one_line(tiny_folder: Path, corpus: Path, arguments: list[str], message: str) -> None:
    words = [str(corpus) if word == "CORPUS" else word for word in arguments]
    pooling = ("--pooling_a", "cls", "--pooling_b", "cls", "--no_progress")
    found = run(tiny_folder, tiny_folder, "--corpus", corpus, *pooling, *words)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1


def test_labels_tell_the_models_apart() -> None:
    assert model_labels(["runs/a", "runs/b/"]) == ["a", "b"]
    assert model_labels(["runs/a/seed=42", "runs/b/seed=42"]) == ["a/seed=42", "b/seed=42"]
    assert model_labels(["runs/a/seed=42"]) == ["a/seed=42"]
    assert model_labels(["x/a/m", "y/a/m"]) == ["x/a/m", "y/a/m"]
    assert model_labels(["m", "m"]) == ["m (1)", "m (2)"]
