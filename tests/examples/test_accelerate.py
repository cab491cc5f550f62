"""The configurations for ``accelerate launch``, read by accelerate itself; the one for CPU is used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.utils import DistributedType
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "configs" / "accelerate"


@pytest.mark.parametrize(
    ("name", "kind", "processes", "precision", "cpu"),
    [
        ("single", DistributedType.NO, 1, "bf16", False),
        ("multi_gpu", DistributedType.MULTI_GPU, 4, "bf16", False),
        ("multi_node", DistributedType.MULTI_GPU, 16, "bf16", False),
        ("cpu", DistributedType.NO, 1, "no", True),
    ],
)
def test_accelerate_reads_them(name: str, kind: DistributedType, processes: int, precision: str, cpu: bool) -> None:
    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type, config.num_processes, config.use_cpu) == (kind, processes, cpu)
    assert str(config.mixed_precision) == precision


def test_there_is_no_other() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {"single", "multi_gpu", "multi_node", "cpu"}


@pytest.mark.slow
def test_the_one_for_cpu_starts_a_run(tmp_path: Path) -> None:
    """The launcher sets OMP_NUM_THREADS=1; the run takes as many threads as one without a launcher."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "man", "dog", "cat", "runs", "plays", "red", "fast"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    BertForMaskedLM(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path / "tiny")
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=32)
    tokenizer.save_pretrained(tmp_path / "tiny")
    lines = [f"the {a} {b} {c}" for a in ("man", "dog", "cat") for b in ("runs", "plays") for c in ("red", "fast")]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "cpu.yaml")]
    command += ["-m", "csekit", "train", "--model_name_or_path", str(tmp_path / "tiny")]
    command += ["--train_file", str(tmp_path / "texts.txt"), "--output_dir", str(tmp_path / "run"), "--max_steps", "3"]
    command += ["--per_device_train_batch_size", "4", "--eval_steps", "3", "--logging_steps", "1"]
    command += ["--label_free_samples", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "run/training/trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == 3
    assert (tmp_path / "run/modules.json").is_file()
    results = json.loads((tmp_path / "run/results.json").read_text(encoding="utf-8"))
    assert results["environment"]["threads"] == min(psutil.cpu_count(logical=False), len(os.sched_getaffinity(0)))
