import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation import ScoreFile, read_pairs, read_sentences
from csekit.evaluation.score_file import corpus_digest

CORPUS = [f"{a} {b}" for a in ("the man", "the dog", "a red ball", "a woman") for b in ("runs", "sings", "is slow")]


def run(*arguments: str | Path, keys: str = "") -> Any:
    return CliRunner().invoke(main, ["label", *map(str, arguments)], input=keys)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS) + "\n")
    return path


def command(corpus: Path, tiny_folder: Path) -> list[str]:
    words = [corpus, "--model", tiny_folder, "--pooling", "mean", "--pairs", "6", "-o", corpus.parent / "dev.tsv"]
    return [str(word) for word in [*words, "--device", "cpu", "--no_progress"]]


def test_score_skip_back_quit_and_go_on(corpus: Path, tiny_folder: Path) -> None:
    words, path = command(corpus, tiny_folder), corpus.parent / "dev.tsv"
    found = run(*words, keys="5\n6\nx\n\n3,5\nb\n4.25\ns\nq\n")
    assert found.exit_code == 0, found.output
    assert found.output.count("a number from 0 to 5, or s, b, q; got") == 3 and "got '6'" in found.output
    assert "[2/6] (scored 3.5)" in found.output and "2 of 6 pairs scored" in found.output
    assert "4 are left" in found.output and "at least 3 pairs with different scores" in found.output
    assert "cosine" not in found.output and not re.search(r"0\.\d\d", found.output), "the cosine is shown"
    assert [line.split("\t")[2] for line in path.read_text().splitlines()] == ["score", "5.0", "4.25"]
    found = run(*words, keys="s\nb\n1\n")  # the input ends: as if the terminal were closed
    assert found.exit_code == 0 and "2 of 6 pairs are scored already" in found.output
    assert "3 of 6 pairs scored" in found.output and "--dev_file" in found.output
    found = run(*words, keys="b\n0\n2\n2\n2\n")  # back to a pair of an earlier session
    assert found.exit_code == 0
    assert "[3/6] (scored 1)" in found.output
    assert "6 of 6 pairs scored" in found.output
    pairs = read_pairs(path)
    assert pairs.scores.tolist() == [5, 4.25, 0, 2, 2, 2]
    assert len({frozenset(pair) for pair in zip(pairs.sentences1, pairs.sentences2, strict=True)}) == 6
    assert run(*words).output.count(" > ") == 0  # all done: nothing is asked


@pytest.mark.parametrize(("option", "value"), [("--pooling", "cls"), ("--max_length", "4")])
def test_a_begun_file_has_the_encoder_that_it_was_begun_with(
    corpus: Path, tiny_folder: Path, option: str, value: str
) -> None:
    """The options were not read: the pairs of the first encoder went on as those of the second."""
    words = command(corpus, tiny_folder)
    assert run(*words, keys="1\nq\n").exit_code == 0
    found = run(*words, option, value, keys="2\n")
    assert found.exit_code == 2 and f"begun with {option[2:]} " in found.output, found.output
    beside = corpus.parent / "dev.pairs.json"
    begun = json.loads(beside.read_text())
    begun["origin"] = {name: word for name, word in begun["origin"].items() if name not in ("pooling", "max_length")}
    beside.write_text(json.dumps(begun))  # as earlier versions wrote it
    assert "1 of 6 pairs are scored already" in run(*words, keys="q\n").output


def test_back_at_the_first_pair(corpus: Path, tiny_folder: Path) -> None:
    found = run(*command(corpus, tiny_folder), keys="back\nquit\n")
    assert found.exit_code == 0
    assert "this is the first pair" in found.output
    assert "0 of 6" in found.output


@pytest.mark.slow
def test_at_a_real_terminal(corpus: Path) -> None:
    """A pseudo-terminal: the prompt comes, the answer is on disk before the next, Ctrl-C loses nothing. Going on
    needs no model, so there is none."""
    import pty

    path, model = corpus.parent / "dev.tsv", "runs/begun=1"
    sentences = read_sentences(corpus)
    pairs = [(sentences[i], sentences[i + 1]) for i in range(3)]
    origin = {"corpus": corpus.name, "corpus_sha256": corpus_digest(sentences), "model": model}
    ScoreFile.begin(path, pairs, {**origin, "pairs": 3, "seed": 0, "pool": 5000})
    words = ["label", str(corpus), "--model", model, "--pairs", "3", "-o", str(path)]
    ours, theirs = pty.openpty()
    code = "from csekit.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdin=theirs, stdout=theirs, stderr=theirs,
                               start_new_session=True, preexec_fn=lambda: _own_terminal(theirs))  # fmt: skip
    os.close(theirs)
    try:
        assert "[1/3]" in _until(ours, " > ")
        os.write(ours, b"4.5\r")
        assert "[2/3]" in _until(ours, " > ")
        assert path.read_text().endswith("\t4.5\n")
        assert "1 of 3 pairs scored" in _until(ours, "different scores", press=b"\x03")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _own_terminal(terminal: int) -> None:
    """Make it the process's controlling terminal, so that Ctrl-C arrives, even where the tests' shell ignores it."""
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def _until(terminal: int, text: str, seconds: float = 120, press: bytes = b"") -> str:
    """What comes up to a text. ``press`` is pressed again after a quiet while, as people do: a Ctrl-C that arrives
    between the prompt and the read of its answer is seen by Python at the next key."""
    found, end = "", time.monotonic() + seconds
    os.write(terminal, press)
    while text not in found:
        if select.select([terminal], [], [], 10)[0]:
            found += os.read(terminal, 4096).decode()
            continue
        assert time.monotonic() < end, f"waited for {text!r}, got {found!r}"
        os.write(terminal, press)
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"-o": "dev.txt"}, "--output must end in .tsv"),
        ({"--pairs": "2"}, "n must be at least 3"),
        ({"--pairs": "500"}, "500 pairs need more than 12"),
        ({"--pooling": "middle"}, "pooling must be one of"),
    ],
)
def test_errors_are_one_line(corpus: Path, tiny_folder: Path, change: dict[str, str], message: str) -> None:
    words = command(corpus, tiny_folder)
    for option, value in change.items():
        words[words.index(option) + 1] = value
    found = run(*words)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1
    assert not (corpus.parent / "dev.pairs.json").exists()
