"""``csekit eval --truncate_dim``: scores by the number of dimensions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.evaluation import dimensions, read_results
from csekit.evaluation.dimensions import cut_encoders

PAIRS = "sentence1\tsentence2\tscore\na dog\ta cat\t1\na man\ta woman\t2\nred\tred\t5\nthe tree\tthe house\t0\n"


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"CSEKIT_DATA": None})


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text(PAIRS)
    return file


def test_every_size_is_scored_and_written(
    tmp_path: Path, tiny_folder: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    embed = dimensions.embed
    monkeypatch.setattr(dimensions, "embed", lambda *words: calls.append(len(words[1])) or embed(*words))
    common = ("--pairs", pairs, "--pooling", "mean", "--device", "cpu", "--no_progress")
    output = tmp_path / "tiny.json"
    found = run("eval", tiny_folder, *common, "--truncate_dim", 3, "--truncate_dim", 8, "--output", output)
    assert found.exit_code == 0, found.output
    assert "tiny-bert @ 3" in found.output
    assert calls == [1, 7]  # the width, then the texts once
    assert not output.exists()
    from_scratch = load_encoder(tiny_folder, "mean", device="cpu")
    rows = [line.split("\t") for line in PAIRS.splitlines()[1:]]
    for size in (3, 8):
        content = read_results(tmp_path / f"tiny-{size}.json")
        assert content["run"]["encoder"]["truncate_dim"] == size
        (scores,) = next(value for name, value in content.items() if name.startswith("pairs:"))["tasks"].values()
        a, b = (from_scratch.encode([row[c] for row in rows])[:, :size] for c in range(2))
        cosine = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        ranks = np.corrcoef(cosine.argsort().argsort(), np.array([1, 2, 3, 0]))[0, 1]
        assert scores["spearman"] == pytest.approx(100 * ranks, abs=1e-3)


def test_cut_vectors_are_stored_and_searched(tmp_path: Path, tiny_folder: Path) -> None:
    """The record beside the vectors says the size: ``csekit search`` cuts the query."""
    texts = ["the dog runs", "a red house", "the slow guitar"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    words = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu", "--no_progress", "--truncate_dim", 4)
    made = run("encode", tmp_path / "texts.txt", *words, "-o", tmp_path / "out.npy")
    assert made.exit_code == 0, made.output
    expected = load_encoder(tiny_folder, "mean", device="cpu").encode(texts)[:, :4]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    found = run("search", tmp_path / "out.npy", "-q", texts[1], "-k", 1, "--device", "cpu", "--format", "json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout.strip().splitlines()[-1])
    assert (answer["row"], answer["score"]) == (1, pytest.approx(1.0, abs=1e-5))


def test_memory_is_bounded(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts beyond it are encoded again, with the same result."""
    texts = ["a dog", "a cat"]
    encoder = load_encoder(tiny_folder, "mean", device="cpu")
    kept, expected = cut_encoders(encoder, [4, 5]), encoder.encode(texts)
    monkeypatch.setattr(dimensions, "MEMORY", 3)
    for each in kept:
        np.testing.assert_array_equal(each.encode(texts), expected[:, : each.truncate_dim])
    assert kept[0].kept == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--truncate_dim", 0), "truncate_dim must be from 1 to the embeddings' size, "),
        (("--truncate_dim", 4, "--truncate_dim", 4), "--truncate_dim must be different sizes, got 4 4"),
    ],
)
def test_sizes_that_are_not_allowed(tiny_folder: Path, pairs: Path, words: tuple[Any, ...], message: str) -> None:
    found = run("eval", tiny_folder, "--pairs", pairs, "--pooling", "mean", "--device", "cpu", *words)
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_a_size_above_the_folder_s_own_is_scored(tmp_path: Path, tiny_folder: Path, pairs: Path) -> None:
    """``csekit encode`` took it; ``csekit eval`` refused it as above the size that the folder cuts to."""
    (tiny_folder / "config_sentence_transformers.json").write_text('{"truncate_dim": 4}')
    common = ("--pairs", pairs, "--pooling", "mean", "--device", "cpu", "--no_progress")
    found = run("eval", tiny_folder, *common, "--truncate_dim", 16)
    assert found.exit_code == 0, found.output
    assert "tiny-bert @ 16" in found.output
    encoder = load_encoder(tiny_folder, pooling="mean", device="cpu")
    (cut,) = cut_encoders(encoder, [16])
    assert cut.encode(["a dog"]).shape == (1, 16)
    assert encoder.truncate_dim == 4
