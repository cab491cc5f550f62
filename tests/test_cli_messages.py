"""Small things that a user meets on the first day: names in messages, bars, heads, an encoder printed in a shell."""

import ast
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from transformers import DistilBertConfig, DistilBertModel
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.evaluation import write_results
from csekit.modeling import CSEModel, InfoCSEForPreTraining, SimCSEModel, hub
from csekit.trainers import load_corpus

ROOT = Path(__file__).parents[1]
LONG = " ".join(["the man plays the red guitar"] * 8)


def csekit(*words: str | Path) -> Any:
    return CliRunner().invoke(main, [*map(str, words)], env={"COLUMNS": "120"})


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([LONG, "a man sings", "a dog runs", "the red ball"]) + "\n")
    return path


def test_check_says_what_to_raise_for_truncated_texts(texts: Path, tiny_folder: Path) -> None:
    found = csekit("check", texts, "--model", tiny_folder)
    assert found.exit_code == 0, found.output
    assert "25.0% of the texts are longer than 32 tokens" in found.output
    assert "raise --max_seq_length" in found.output
    enough = csekit("check", texts, "--model", tiny_folder, "--max_seq_length", "64")
    assert enough.exit_code == 0, enough.output
    assert "raise --max_seq_length" not in enough.output
    small = csekit("check", texts, "--model", tiny_folder, "--max_seq_length", "2")
    assert small.exit_code == 2
    assert small.output == "error: --max_seq_length must be at least 3, two special tokens and one more, got 2\n"


def test_check_tells_repeats_once(texts: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts.write_text(texts.read_text() * 2)
    found = csekit("check", texts, "--model", tiny_folder)
    assert found.exit_code == 0, found.output
    assert (found.output + caplog.text).count("8 of 8 rows used; 4 exact duplicates kept") == 1


def test_every_command_takes_no_progress(texts: Path, tiny_folder: Path) -> None:
    found = csekit("check", texts, "--model", tiny_folder, "--no_progress")
    assert found.exit_code == 0, found.output
    names = re.findall(r"^│ (\w+)", csekit("--help").output, re.MULTILINE)
    assert {"check", "search", "geometry"} <= set(names)
    for name in sorted({*names} - {"train", "pretrain"}):  # without arguments, training starts the demo
        told = csekit(name, "--no_progress")
        assert "no such option" not in told.output.lower(), name


def test_training_takes_no_progress_for_its_own_option(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("csekit.trainers.scripts.train.main", lambda words: given.append(list(words)) or 0)
    assert csekit("train", "--no_progress", "--max_steps", "5").exit_code == 0
    assert given == [["--disable_tqdm", "True", "--max_steps", "5"]]


def test_bars_say_what_they_count(texts: Path, tiny_folder: Path, tmp_path: Path) -> None:
    model = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu")
    encoded = csekit("encode", texts, *model, "-o", tmp_path / "out.npy")
    assert "encode texts.txt:" in encoded.stderr
    found = csekit("search", tmp_path / "out.npy", "--query", "a cat", "--device", "cpu")
    assert "search:" in found.stderr


def test_the_heads_of_eval_are_words(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text(
        "sentence1\tsentence2\tscore\na man\ta dog\t1\na cat\tthe cat\t5\nred\tblue\t2\n"
    )
    found = csekit("eval", tiny_folder, "--pooling", "mean", "--pairs", tmp_path / "own.tsv", "--no_progress")
    assert found.exit_code == 0, found.output
    assert re.split(r" {2,}", found.output.splitlines()[0]) == ["file", "Spearman × 100", "Pearson × 100", "pairs"]


def test_an_encoder_shows_its_settings(tiny_folder: Path) -> None:
    shown = repr(load_encoder(tiny_folder, pooling="mean", device="cpu"))
    assert shown == (
        "TextEncoder(name='tiny-bert', class='BertModel', pooling='mean', max_length=32, precision='float32')"
    )


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """No Hub can be reached. Yields the addresses that were asked for."""
    asked: list[Any] = []

    def refuse(address: Any, timeout: float) -> Any:
        asked.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "create_connection", refuse)
    hub._reachable.cache_clear()
    yield asked
    hub._reachable.cache_clear()


@pytest.mark.parametrize("command", [["check", "TEXTS", "--model"], ["eval", "--pairs", "TEXTS", "--pooling", "cls"]])
def test_a_name_on_a_hub_out_of_reach_fails_at_once_with_a_hint(
    texts: Path, unreachable: list[Any], command: list[str]
) -> None:
    (texts.parent / "pairs.tsv").write_text(
        "sentence1\tsentence2\tscore\na man\ta dog\t1\na cat\tthe cat\t5\nx\ty\t2\n"
    )
    given = {"TEXTS": texts if command[0] == "check" else texts.parent / "pairs.tsv"}
    words = [str(given.get(word, word)) for word in command]
    started = time.monotonic()
    found = csekit(*words, "no-such-owner/no-such-model")
    assert time.monotonic() - started < 30
    assert found.exit_code == 2, found.output
    assert "cannot be reached" in found.output
    assert "no-such-owner/no-such-model" in found.output
    assert found.output.count("\n") == 1
    assert unreachable == [("huggingface.co", 443)]


@pytest.mark.parametrize(
    "call",
    [
        SimCSEModel.from_backbone,
        InfoCSEForPreTraining.from_backbone,
        CSEModel.from_pretrained,
        lambda name: load_corpus(dataset_name=name),
    ],
    ids=["from_backbone", "pretraining", "from_pretrained", "load_corpus"],
)
def test_python_fails_at_once_as_well_without_the_hub(unreachable: list[Any], call: Callable[[str], Any]) -> None:
    """Transformers and datasets would try again for half a minute."""
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match="'no-owner/no-name' is no folder here and not in the cache"):
        call("no-owner/no-name")
    assert time.monotonic() - started < 15
    assert unreachable == [("huggingface.co", 443)]
    assert not constants.HF_HUB_OFFLINE


def test_a_model_in_the_cache_is_read_without_the_hub(
    unreachable: list[Any], tmp_path: Path, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DistilBERT's class does not know add_pooling_layer: the second attempt to load it was reported as a missing
    model."""
    snapshot = tmp_path / "hub" / "models--me--small" / "snapshots" / "0"
    DistilBertModel(
        DistilBertConfig(vocab_size=len(tiny_tokenizer), dim=8, hidden_dim=8, n_heads=2, n_layers=1)
    ).save_pretrained(snapshot)
    tiny_tokenizer.save_pretrained(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na man\ta dog\t1\na cat\tthe cat\t5\nx\ty\t2\n")
    found = csekit("eval", "--pairs", tmp_path / "pairs.tsv", "--pooling", "mean", "me/small", "--no_progress")
    assert found.exit_code == 0, found.output
    assert isinstance(SimCSEModel.from_backbone("me/small").backbone, DistilBertModel)


def test_every_extra_that_a_message_or_a_page_names_exists() -> None:
    setup = ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
    extras: Any = next(node.value for node in setup if isinstance(node, ast.keyword) and node.arg == "extras_require")
    known = {key.value for key in extras.keys}
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    files += [
        file for room in ("modeling", "encoding", "evaluation", "trainers") for file in (ROOT / room).rglob("*.py")
    ]
    named = {
        name for file in files for name in re.findall(r"(?:csekit|'\.)\[(\w+)\]", file.read_text(encoding="utf-8"))
    }
    assert {"faiss", "st", "onnx"} <= named
    assert named - known == set()


def test_characters_that_the_output_lacks_cost_no_result(tiny_folder: Path, tmp_path: Path) -> None:
    """As where Windows redirects to a file: the commands ended in a codec's error, neighbors without its file."""
    for name, value in (("a", 0.3), ("b", 0.1)):
        gold = np.array([0.0, 1.0, 2.0, 3.0])
        write_results(tmp_path / f"{name}.json", {"name": name}, {"own": (np.array([0.0, value, 0.2, 0.4]), gold)})
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a man sings\na dog runs ☃ 😀\n", encoding="utf-8")
    model = ("--model", tiny_folder, "--pooling", "mean", "--device", "cpu")
    encoded, nearest = tmp_path / "out.npy", tmp_path / "nearest.tsv"
    pooling = ("--pooling_a", "mean", "--pooling_b", "mean", "--device", "cpu")

    def narrow(*words: str | Path) -> str:
        made = CliRunner(charset="cp1252").invoke(main, [*map(str, words)], env={"COLUMNS": "120"})
        assert made.exit_code == 0, made.output
        return made.output

    assert "A \\u2212 B" in narrow("compare", tmp_path / "a.json", tmp_path / "b.json", "--resamples", "5")
    narrow("neighbors", tiny_folder, tiny_folder, "--corpus", corpus, "--query", "a man", "-o", nearest, *pooling)
    assert "☃ 😀" in nearest.read_text(encoding="utf-8")
    narrow("encode", corpus, "-o", encoded, *model)
    answers = narrow("search", encoded, "--query", "a man", "--format", "json", "--device", "cpu", "--no_progress")
    assert {json.loads(line)["text"] for line in answers.splitlines()} == set(corpus.read_text("utf-8").splitlines())
