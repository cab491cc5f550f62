"""What a training, an evaluation and an encoding leave on the terminal: their own lines, each once."""

import gzip
import itertools
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, BertForMaskedLM
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding.load import load_encoder
from csekit.evaluation.pairs import read_pairs
from csekit.evaluation.sts import evaluate_pairs
from csekit.modeling import CSEModel
from csekit.modeling.fast_half import computes_bf16, tell_float32, tell_no_tiles
from csekit.trainers.export_check import ExportMismatchError, check_score

ROOT = Path(__file__).parents[3]
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))
#: What Transformers prints about work that takes no time, and about the file system.
NOISE = ("Writing model shards", "Loading weights", "mtime", "it/s", "newly initialized")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a backbone, texts, and pairs that are not of the texts."""
    small.write_backbone(tmp_path / "tiny-bert")
    small.write_texts(tmp_path / "texts.txt", 60)
    small.write_pairs(tmp_path / "dev.tsv")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(**changes: Any) -> list[str]:
    arguments = {
        "model_name_or_path": "tiny-bert", "train_file": "texts.txt", "dev_file": "dev.tsv", "output_dir": "run",
        "per_device_train_batch_size": 8, "max_steps": 4, "eval_steps": 2, "logging_steps": 2, "use_cpu": True,
    } | changes  # fmt: skip
    return [str(word) for name, value in arguments.items() for word in (f"--{name}", value)]


@pytest.fixture
def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def call(**changes: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["run_unsup.py", *words(**changes)])
        return int(runpy.run_path(str(ROOT / "examples" / "run_unsup.py"))["main"]())

    return call


def test_a_run_prints_no_bars_of_weights_and_ends_with_commands_that_work(
    train: Callable[..., int], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    texts = Path("texts.txt")
    texts.write_text(texts.read_text() * 2)
    capfd.readouterr()
    assert train(method="joint", objectives="mlm") == 0
    printed = capfd.readouterr()
    assert (printed.out + printed.err + caplog.text).count("60 exact duplicates kept") == 1
    assert [noise for noise in NOISE if noise in printed.out + printed.err] == []
    lines = printed.out.splitlines()
    table = next(i for i, line in enumerate(lines) if line.split() == ["before", "after"])
    end = next(i for i, line in enumerate(lines) if line.startswith("The encoder is in run"))
    assert table < end
    for line in lines[table + 1 : end - 1]:  # each score says which direction is better
        assert re.search(r"\d  (× 100; higher|lower|higher)\b", line), line
    following = [line.removeprefix("Next:").split() for line in lines[end + 1 :]]
    assert [command[:3] for command in following] == [["csekit", "report", "run"], ["csekit", "encode", "texts.txt"]]
    for command in following:
        done = CliRunner().invoke(main, [*command[1:], "--no_progress", "--device", "cpu"])
        assert done.exit_code == 0, done.output
        assert "written: " in done.output
    scored = CliRunner().invoke(main, ["eval", "run", "--pairs", "dev.tsv", "--device", "cpu", "--no_progress"])
    assert scored.exit_code == 0, scored.output
    printed = capfd.readouterr()
    assert [noise for noise in NOISE if noise in printed.out + printed.err] == []


def test_packed_text_needs_no_column(train: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    """``--column COLUMN`` stood in the command, which ``csekit encode`` refuses for plain text."""
    with gzip.open("texts.txt.gz", "wb") as file:
        file.write(Path("texts.txt").read_bytes())
    assert train(train_file="texts.txt.gz") == 0
    (line,) = (line for line in capfd.readouterr().out.splitlines() if "csekit encode" in line)
    assert line.split()[:5] == ["csekit", "encode", "texts.txt.gz", "--model", "run"]
    done = CliRunner().invoke(main, [*line.split()[1:], "--no_progress", "--device", "cpu"])
    assert done.exit_code == 0, done.output


def test_the_command_for_a_file_of_pairs_names_its_first_column(
    train: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """``--column COLUMN`` stood in it, a column that no file has."""
    texts = Path("texts.txt").read_text().splitlines()
    rows = [json.dumps({"anchor": first, "positive": second}) for first, second in itertools.pairwise(texts)]
    Path("pairs.jsonl").write_text("\n".join(rows) + "\n")
    assert train(train_file="pairs.jsonl") == 0
    (line,) = (line for line in capfd.readouterr().out.splitlines() if "csekit encode" in line)
    done = CliRunner().invoke(main, [*line.split()[1:], "--no_progress", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "--column anchor" in line


@pytest.mark.parametrize("select", [{}, {"metric_for_best_model": "effective_rank"}])
def test_without_a_dev_set_the_run_says_that_the_last_checkpoint_is_kept_only_if_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, select: dict[str, str]
) -> None:
    """A criterion without labels chose the checkpoint, and the run said that the last one is kept."""
    arguments = words(**select)
    at = arguments.index("--dev_file")
    del arguments[at : at + 2]
    monkeypatch.setattr(sys, "argv", ["run_unsup.py", *arguments])
    assert runpy.run_path(str(ROOT / "examples" / "run_unsup.py"))["main"]() == 0
    assert ("the last checkpoint is kept" in caplog.text) is not bool(select)


@pytest.mark.slow
def test_of_two_processes_only_the_first_speaks(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(ROOT / "examples" / "run_unsup.py"), *words(max_seq_length=4)]  # long texts: a warning of ours
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["HF_DATASETS_CACHE"] = str(folder / "cache")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert [noise for noise in NOISE if noise in done.stdout + done.stderr] == []
    assert sum(line.startswith("texts.txt: 60 of 60 rows used") for line in lines) == 1
    assert sorted({line for line in lines if lines.count(line) > 1}) == []


@pytest.mark.parametrize("steps", [[], [2, 4]])
def test_the_folder_of_an_interrupted_run_says_how_to_go_on(
    train: Callable[..., int], folder: Path, capfd: pytest.CaptureFixture[str], steps: list[int]
) -> None:
    """SIGTERM leaves ``training/`` with checkpoints, and nothing in the folder's root."""
    (folder / "run" / "training").mkdir(parents=True)
    for step in steps:
        small.write_backbone(folder / "run" / "training" / f"checkpoint-{step}")
    wanted = "--resume_from_checkpoint True" if steps else "--overwrite"
    commands = [
        ["eval", "run", "--pairs", "dev.tsv"],
        ["encode", "texts.txt", "--model", "run", "-o", "out.npy"],
        ["check", "texts.txt", "--model", "run"],
    ]
    for command in commands:
        told = CliRunner().invoke(main, command)
        assert told.exit_code == 2, command
        assert wanted in told.output
        assert told.output.count("\n") == 1
        assert not steps or str(Path("run/training/checkpoint-4")) in told.output
    with pytest.raises(SystemExit):
        train(model_name_or_path="run", output_dir="other")
    assert wanted in capfd.readouterr().err


def test_bf16_on_a_processor_without_its_products_is_told_and_trains_in_float32(
    train: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """Regression: torch multiplied bfloat16 matrices by its own loops there, a step took ten times as long, and
    nothing said so."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    tell_float32.cache_clear()
    types: set[torch.dtype] = set()
    product = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda x, w, *b: types.add(x.dtype) or product(x, w, *b))
    assert train(bf16=True) == 0
    assert types == {torch.float32}
    printed = capfd.readouterr()
    lines = [line for line in (printed.out + printed.err + caplog.text).splitlines() if "has no bfloat16" in line]
    assert len(lines) == 1
    assert re.search(r"bf16: this processor \(\w+\) has no bfloat16 products, so float32 takes their place", lines[0])
    assert json.loads(Path("run/training/settings.json").read_text())["settings"]["bf16"] is False


@pytest.mark.skipif(not computes_bf16("cpu"), reason="this processor has no bfloat16 products")
@pytest.mark.parametrize(("tiles", "speedup"), [(False, 1.1), (False, 1.9), (True, 1.1)])
def test_bf16_that_is_hardly_faster_than_float32_is_told(
    tiles: bool,
    speedup: float,
    train: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: Any,
) -> None:
    """Without matrix units a step in bf16 took 1.4 to 1.6 times as long as in float32 on one processor, and 0.6 times
    as long on another with the same instructions, whose users were told to try float32."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr("csekit.modeling.fast_half.products_speedup", lambda: speedup)
    tell_no_tiles.cache_clear()
    assert train(bf16=True, max_steps=1) == 0
    printed = capfd.readouterr()
    lines = [line for line in (printed.out + printed.err + caplog.text).splitlines() if "no matrix units" in line]
    assert len(lines) == (0 if tiles or speedup > 1.5 else 1)
    assert all("bf16: this processor (AVX512)" in line and "float32 may be faster" in line for line in lines)
    assert json.loads(Path("run/training/settings.json").read_text())["settings"]["bf16"] is True


@pytest.mark.skipif(not computes_bf16("cpu"), reason="this processor has no bfloat16 products")
def test_nearly_equal_cosines_of_a_small_dev_set_are_no_other_encoder(
    train: Callable[..., int], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Regression: bf16 ranked such pairs anew at each evaluation, and the run ended with "it is not the selected
    encoder"."""
    model = BertForMaskedLM.from_pretrained(folder / "tiny-bert")
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(0.001)
    model.save_pretrained(folder / "tiny-bert")
    assert train(bf16=True, learning_rate=1e-7) == 0, capfd.readouterr().err


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_score_of_other_weights_is_seen(folder: Path, precision: str) -> None:
    """Another score is refused where cosines differ by more than rounding."""
    CSEModel.from_backbone("tiny-bert", pooling="mean").export("run", AutoTokenizer.from_pretrained("tiny-bert"))
    dev, device = read_pairs(small.write_pairs(folder / "many.tsv", 300)), torch.device("cpu")
    encoder = load_encoder("run", device="cpu")
    encoder.precision = precision
    recorded = evaluate_pairs(encoder, dev)["spearman"]
    assert check_score(Path("run"), dev, recorded, device, precision) == recorded
    for wrong in (recorded - 10, recorded + 10, math.nan):
        with pytest.raises(ExportMismatchError, match="it is not the selected encoder; nothing was deleted"):
            check_score(Path("run"), dev, wrong, device, precision)
