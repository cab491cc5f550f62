"""The training commands tell a corpus's columns, name its bad rows, and warn of a tokenizer that does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast
from typer.testing import CliRunner

from csekit.cli import main

FEW = ("--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--max_steps", "2",
       "--per_device_train_batch_size", "8", "--label_free_samples", "0", "--max_seq_length", "16")  # fmt: skip


def start(command: str, *words: object) -> Any:
    return CliRunner().invoke(main, [command, *map(str, words)])


def error_of(found: Any, code: int = 2) -> str:
    assert found.exit_code == code, found.output
    (line,) = [line for line in found.output.splitlines() if "error: " in line]
    return line


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A corpus in BEIR's format."""
    path = tmp_path / "corpus.jsonl"
    rows = [{"_id": f"d{i}", "title": "the man", "text": f"a dog runs in the house {i}"} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_columns_of_pairs_and_triplets_are_told(beir: Path, small: Any, small_backbone: Path) -> None:
    """Ids were the sentences and titles their positives, and nothing said so."""
    told = "corpus.jsonl: column '_id' is the sentence, 'title' is the positive, 'text' is the hard negative (--colu"
    words = ("--model_name_or_path", small_backbone, "--train_file", beir, "--output_dir")
    for command in ("train", "train-pairs"):
        found = start(command, *words, beir.with_name(command), *FEW)
        assert found.exit_code == 0, found.output
        assert told in found.output
    assert told in start("check", beir, "--model", small_backbone).output
    found = start("train", *words, beir.with_name("one"), *FEW, "--columns", "text")
    assert "is the sentence" not in found.output
    found = start(
        "train", *words, beir.with_name("next"), *FEW, "--columns", "title", "text", "--method", "diffcse",
        "--condition_sentence", "next",
    )  # fmt: skip
    assert "column 'title' is the sentence, 'text' is the text of the objectives" in found.output
    found = start(
        "train", *words, beir.with_name("further"), *FEW, "--columns", "title", "text", "--further_positives", "column"
    )
    assert "column 'title' is the sentence, 'text' is the further positive" in found.output
    found = start(
        "pretrain",
        *words,
        beir.with_name("mlm"),
        "--objective",
        "mlm",
        "--max_steps",
        "1",
        "--use_cpu",
        "--block_length",
        "16",
    )
    assert "corpus.jsonl: columns '_id', 'title', 'text' are texts" in found.output


@pytest.mark.parametrize("workers", [0, 2])
def test_a_late_bad_row_of_a_stream_is_one_line(workers: int, small_backbone: Path, tmp_path: Path) -> None:
    """It was a TypeError of the tokenizer; from a worker of the data loader it was a traceback in one line. The exit
    code was that of a command that was refused before it did any work."""
    path = tmp_path / "late.jsonl"
    path.write_text('{"text": "a dog runs"}\n' * 10_000 + '{"text": "half \\ud83d a pair"}\n' * 9)
    words = ["--model_name_or_path", small_backbone, "--train_file", path, "--output_dir", tmp_path / "run", *FEW]
    words += ["--streaming", "--max_steps", "12", "--per_device_train_batch_size", "1000", "--max_seq_length", "5"]
    words += ["--save_strategy", "no", "--eval_strategy", "no", "--dataloader_num_workers", workers]
    line = error_of(start("train", *words), code=1)
    assert line == f"csekit train: error: {path}, line 10001: column 'text' holds half a surrogate pair, not text"


def test_a_stream_without_max_steps_is_refused(small_backbone: Path, tmp_path: Path) -> None:
    """It was the Trainer's message, of a train_dataset without __len__."""
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"a dog runs {i}\n" for i in range(40)))
    words = ("--model_name_or_path", small_backbone, "--train_file", path, "--output_dir", tmp_path / "run")
    line = error_of(start("train", *words, "--streaming", "--use_cpu"))
    assert line == "csekit train: error: max_steps must be at least 1 with streaming: a stream has no length, got -1"


def test_a_csv_with_semicolons_is_refused(small_backbone: Path, tmp_path: Path) -> None:
    """The raw lines were the sentences."""
    path = tmp_path / "texts.csv"
    path.write_text("id;text\n" + "".join(f"{i};a dog runs {i}\n" for i in range(20)))
    words = ("--model_name_or_path", small_backbone, "--train_file", path, "--output_dir", tmp_path / "run", *FEW)
    told = f"{path}, line 1: the header has semicolons and no comma, got 'id;text': save the file with commas"
    assert told in error_of(start("train", *words))
    assert told in " ".join(start("check", path, "--model", small_backbone).output.split())


def test_pretraining_warns_of_a_tokenizer_that_does_not_fit(small_backbone: Path, tmp_path: Path) -> None:
    """Training warned of it, pre-training on the same text did not."""
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"Москва столица России {i}\n" for i in range(40)), encoding="utf-8")
    words = ("--model_name_or_path", small_backbone, "--train_file", path, "--output_dir", tmp_path / "run")
    few = ("--objective", "mlm", "--max_steps", "1", "--block_length", "16", "--use_cpu", "--disable_tqdm", "True")
    found = start("pretrain", *words, *few)
    assert found.exit_code == 0, found.output
    assert "of the tokens of texts.txt are unknown to the tokenizer" in found.stderr


@pytest.fixture
def bare(small_backbone: Path, tmp_path: Path) -> Path:
    """An encoder whose tokenizer adds no special tokens and makes no token of a zero-width space."""
    vocabulary = AutoTokenizer.from_pretrained(small_backbone).get_vocab()
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(tmp_path / "bare")
    AutoModel.from_pretrained(small_backbone).save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_text_without_tokens_for_the_teacher_is_named(bare: Path, small_backbone: Path, tmp_path: Path) -> None:
    """The message named neither file nor row, and came when the teacher encoded."""
    path = tmp_path / "pairs.tsv"
    path.write_text("s0\ts1\n" + "the dog\ta man\n" * 12 + "\u200b\ta man\n" + "the dog\t\u200b\n", encoding="utf-8")
    words = ("--model_name_or_path", small_backbone, "--train_file", path, "--teachers", f"{bare}:mean", *FEW)
    line = error_of(start("distill", *words, "--output_dir", tmp_path / "run"))
    assert f"{path}, line 14: column 's0' holds '\\u200b', of which the tokenizer of the teacher {bare}:mean" in line
    path.write_text("s0\ts1\n" + "the dog\ta man\n" * 12 + "the dog\t\u200b\n", encoding="utf-8")
    found = start("distill", *words, "--output_dir", tmp_path / "run")  # the teacher reads the first column alone
    assert found.exit_code == 0, found.output


def test_a_further_positive_without_tokens_is_named(bare: Path, tmp_path: Path) -> None:
    """A half of the text had no token, which ended in an error of a tensor."""
    path = tmp_path / "texts.txt"
    path.write_text("the dog runs\n" * 12 + "\u200b dog\n" * 4, encoding="utf-8")
    words = ("--model_name_or_path", bare, "--train_file", path, "--output_dir", tmp_path / "run", *FEW)
    words += ("--further_positives", "halves", "--further_positives_weight", "1", "--pooling", "last")
    found = start("train", *words)
    line = error_of(found)
    assert f"{path}, line 13: the tokenizer makes no token of '\\u200b': leave the row out" in line
