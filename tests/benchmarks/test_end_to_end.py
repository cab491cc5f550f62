"""Benchmark of whole runs: both sides train, take turns, are measured, and the table is made of the file."""

import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from csekit.evaluation.results import read_results
from experiments.tables.costs import end_to_end_table
from experiments.tables.render import update

TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]


@pytest.fixture
def argv(masked_lm: Path, tmp_path: Path) -> list[str]:
    texts, dev = tmp_path / "texts.txt", tmp_path / "dev.tsv"
    texts.write_text("\n".join(TEXTS) + "\n")
    pairs = [f"{a}\t{b}\t{score}" for a, b, score in zip(TEXTS, TEXTS[1:], (1, 3, 2, 5, 4), strict=False)]
    dev.write_text("sentence1\tsentence2\tscore\n" + "\n".join(pairs) + "\n")
    argv = ["--model_name_or_path", str(masked_lm), "--train_file", str(texts), "--dev_file", str(dev)]
    argv += ["--output", str(tmp_path / "benchmarks" / "runs-tiny.json"), "--rounds", "1", "--max_steps", "2"]
    return [*argv, "--eval_steps", "1", "--batch_size", "2", "--threads", "1"]


@pytest.fixture
def end_to_end(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("end_to_end")


@pytest.mark.slow
def test_both_sides_run_and_make_a_table(end_to_end: ModuleType, argv: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    end_to_end.main(argv)
    results = read_results(tmp_path / "benchmarks" / "runs-tiny.json")
    ours, peer = results["rows"]
    assert (ours["name"], peer["name"]) == ("csekit", "sentence-transformers")
    assert ours["seconds_ratio"] == ours["memory_ratio"] == 1 and peer["memory"] > 100 * 2**20
    assert peer["cpu_seconds_ratio"] == pytest.approx(peer["cpu_seconds"] / ours["cpu_seconds"])
    assert results["run"]["train_file"] == "texts.txt" and str(tmp_path) not in str(results["run"])
    table = update("<!-- table:benchmarks/runs-tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| sentence-transformers |" in table and "median of 1 runs" in table


@pytest.mark.slow
def test_the_masked_lm_beside_transformers(end_to_end: ModuleType, argv: list[str], tmp_path: Path) -> None:
    words = ["--task", "mlm", "--max_seq_length", "8", "--dev_file", argv[argv.index("--train_file") + 1]]
    end_to_end.main([*argv, *words])
    results = read_results(tmp_path / "benchmarks" / "runs-tiny.json")
    assert [row["name"] for row in results["rows"]] == ["csekit", "Transformers"]
    caption, _, body = end_to_end_table(results)
    assert caption.startswith("Continuing the masked LM from") and "2 blocks of 8 tokens" in caption
    assert len(body) == 2


def test_rows_that_no_text_reads(end_to_end: ModuleType, masked_lm: Path, tmp_path: Path) -> None:
    given = Namespace(model_name_or_path=str(masked_lm), vocabulary=500, rounds=1)
    folder = Path(end_to_end.widened(given, tmp_path / "wide").model_name_or_path)
    assert len(AutoModel.from_pretrained(folder).get_input_embeddings().weight) == 500
    wide, own = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(masked_lm)
    assert len(wide) == 500 and wide.get_vocab().items() > own.get_vocab().items()
    assert wide("a man plays the guitar")["input_ids"] == own("a man plays the guitar")["input_ids"]
    given.vocabulary = 2
    with pytest.raises(SystemExit, match=r"error: --vocabulary must be at least \d+, got 2"):
        end_to_end.widened(given, tmp_path / "narrow")
    run = {"device": "cpu", "max_steps": 2, "batch_size": 4, "max_seq_length": 16, "train_file": "a", "dev_file": "b"}
    run |= {
        "eval_steps": 1,
        "model_name_or_path": "c",
        "precision": "fp32",
        "rounds": 1,
        "threads": 1,
        "vocabulary": 500,
    }
    caption, _, _ = end_to_end_table({"run": run, "rows": [], "environment": {"device": "x"}})
    assert "backbone c with 500 rows of word embeddings" in caption


def test_a_run_is_measured_with_its_children(end_to_end: ModuleType, tmp_path: Path) -> None:
    child = "data = b'x' * (80 << 20)\nimport time\ntime.sleep(1.5)"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nsum(range(10**7))"
    started = time.perf_counter()
    found = end_to_end.run([sys.executable, "-c", parent], tmp_path / "log", 1)
    assert 1.5 < found["seconds"] <= time.perf_counter() - started
    assert found["memory"] > 80 << 20
    assert found["cpu_seconds"] > 0.05


def test_on_a_gpu_memory_is_that_of_its_allocator(end_to_end: ModuleType, tmp_path: Path) -> None:
    """The program runs as it would alone, and its peak is read: here a stand-in for torch's."""
    lines = ["class cuda:", "  is_available = lambda: True", "  max_memory_allocated = lambda: 7", ""]
    (tmp_path / "torch.py").write_text("\n".join(lines))
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:])\n")
    command = [sys.executable, str(tmp_path / "program.py"), "--a", "b"]
    found = end_to_end.run(command, tmp_path / "log", 1, f"PYTHONPATH={tmp_path}", gpu=True)
    assert found["memory"] == 7 and (tmp_path / "log").read_text() == "['--a', 'b']\n"
    rows = [{"name": "csekit", "seconds": 1.0, "cpu_seconds": 2.0, "memory": 7 << 20, "growth": 1.0}]
    rows[0] |= {f"{name}_ratio": 1.0 for name in ("seconds", "cpu_seconds", "memory")}
    run = {"device": "cuda", "max_steps": 2, "batch_size": 4, "max_seq_length": 16, "train_file": "a", "dev_file": "b"}
    run |= {"eval_steps": 1, "model_name_or_path": "c", "precision": "bf16", "rounds": 1}
    caption, _, body = end_to_end_table({"run": run, "rows": rows, "environment": {"device": "NVIDIA X"}})
    assert "NVIDIA X" in caption and "Memory: the peak of the device's allocator; growth: of resident" in caption
    assert "7" in body[0]


def test_memory_that_grows_is_seen(end_to_end: ModuleType) -> None:
    assert end_to_end.of_samples([9, 100, 100, 100, 100, 100, 120, 120]) == {"memory": 120, "growth": 1.2}
    assert end_to_end.of_samples([7]) == {"memory": 7, "growth": 1.0}


def test_ratios_are_taken_within_a_round(end_to_end: ModuleType) -> None:
    def side(seconds: float, memory: int) -> dict[str, float]:
        return {"seconds": seconds, "cpu_seconds": 2 * seconds, "memory": memory, "growth": 1.0}

    rounds = [{"csekit": side(1, 10), "sentence-transformers": side(2, 20)}]
    rounds += [{"csekit": side(4, 10), "sentence-transformers": side(12, 5)}] * 2
    ours, peer = end_to_end.summary(rounds)
    assert (ours["seconds"], peer["seconds"], peer["seconds_ratio"], peer["memory_ratio"]) == (4, 12, 3.0, 0.5)


def test_a_side_that_fails_is_told(end_to_end: ModuleType, argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('dev.tsv, line 1: no score')"]
    monkeypatch.setattr(end_to_end, "words", lambda *_: command)
    with pytest.raises(SystemExit, match=r"error: .* ended with 1: dev.tsv, line 1: no score"):
        end_to_end.main(argv)


def test_what_cannot_be_is_refused(argv: list[str]) -> None:
    words = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "end_to_end.py"), *argv]
    found = subprocess.run([*words, "--rounds", "0"], capture_output=True, text=True)
    assert found.returncode == 2 and "--rounds must be at least 1, got 0" in found.stderr
    found = subprocess.run([*words, "--also_with", "A"], capture_output=True, text=True)
    assert found.returncode == 2 and "--also_with must be NAME=VALUE, got A" in found.stderr


def test_both_sides_run_again_with_a_variable(end_to_end: ModuleType, argv: list[str], tmp_path: Path) -> None:
    args = end_to_end.read_arguments([*argv, "--also_with", "LIMIT=1,5"])
    assert end_to_end.sides(args) == [
        "csekit",
        "sentence-transformers",
        "csekit, LIMIT=1,5",
        "sentence-transformers, LIMIT=1,5",
    ]
    assert end_to_end.words("sentence-transformers, LIMIT=1,5", args, tmp_path)[1].endswith("st_training.py")
    assert end_to_end.words("csekit, LIMIT=1,5", args, tmp_path)[1:3] == ["-m", "csekit"]
    code = "import os; raise SystemExit(os.environ['LIMIT'] != '1,5')"
    assert end_to_end.run([sys.executable, "-c", code], tmp_path / "log", 1, "LIMIT=1,5")["seconds"] > 0


def test_csekit_alone(end_to_end: ModuleType, argv: list[str]) -> None:
    assert end_to_end.sides(end_to_end.read_arguments([*argv, "--alone"])) == ["csekit"]
    alone = end_to_end.read_arguments([*argv, "--alone", "--also_with", "LIMIT=1"])
    assert end_to_end.sides(alone) == ["csekit", "csekit, LIMIT=1"]


def test_a_tokenizer_whose_vocabulary_is_a_list_cannot_be_widened(
    end_to_end: ModuleType, masked_lm: Path, tmp_path: Path
) -> None:
    """XLM-R's own vocabulary is such a list."""
    encoder = tmp_path / "unigram"
    shutil.copytree(masked_lm, encoder)
    words = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "▁a", "▁b"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(Unigram([(word, -float(place)) for place, word in enumerate(words)], unk_id=0)),
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    )
    for path in encoder.glob("*token*"):
        path.unlink()
    tokenizer.save_pretrained(encoder)
    given = Namespace(model_name_or_path=str(encoder), vocabulary=500, rounds=1)
    with pytest.raises(SystemExit, match="needs a tokenizer whose vocabulary is a dictionary, got Unigram"):
        end_to_end.widened(given, tmp_path / "wide")
