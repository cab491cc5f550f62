"""Two processes are one process with the joined batch."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, SqueezeBertConfig, SqueezeBertModel

SCRIPT = Path(__file__).with_name("small_runs.py")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.slow
def test_two_processes_train_like_one_with_the_joined_batch(
    small: ModuleType, small_backbone: Path, tmp_path: Path
) -> None:
    job = {
        "backbone": str(small_backbone),
        "texts": str(small.write_texts(tmp_path / "pairs.tsv", 48, 2)),
        "dev": str(small.write_pairs(tmp_path / "dev.tsv")),
        "output_dir": str(tmp_path / "two"),
        "fields": {"dropout": 0.0, "projector": "batchnorm", "mlm_weight": 0.1, "reconstruction_weight": 0.4},
        "max_steps": 6,
        "eval_steps": 2,
        "logging_steps": 2,
        "geometry": True,
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "optim": "sgd",  # Adam would blow up the rounding of gradients that are zero
        "learning_rate": 0.03,
    }
    (tmp_path / "jobs.json").write_text(json.dumps([job]), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(SCRIPT), str(tmp_path / "jobs.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ONE_THREAD) as two:
        try:
            joined = {"output_dir": str(tmp_path / "one"), "per_device_train_batch_size": 8}
            one = small.make_trainer(**(job | joined))
            one.train()
            output, _ = two.communicate(timeout=300)
        finally:
            two.kill()
    assert two.returncode == 0, output[-3000:]

    reports = [json.loads((tmp_path / "two" / f"report-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    weights = [torch.load(tmp_path / "two" / f"final-{rank}.pt") for rank in (0, 1)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    torch.testing.assert_close(weights[0], dict(one.model.state_dict()), atol=1e-5, rtol=1e-5)
    last = [load_file(tmp_path / run / "training" / "checkpoint-6" / "model.safetensors") for run in ("two", "one")]
    torch.testing.assert_close(*last, atol=1e-5, rtol=1e-5)

    first, second = ([e for e in report["log"] if "train_runtime" not in e] for report in reports)
    assert first == second
    assert "trainer_state.json" in reports[0]["written"]
    assert [name for name in reports[1]["written"] if not name.startswith(("checkpoint-", "rng_state_1"))] == []
    assert reports[0]["best_step"] == reports[1]["best_step"] == one.state.best_global_step
    single = [entry for entry in one.state.log_history if "train_runtime" not in entry]
    assert len(first) == len(single)
    for entry, expected in zip(first, single, strict=True):
        assert entry.keys() == expected.keys()
        for name, value in expected.items():
            # the mean over processes is not that of the joined batch: of counts half, of a logarithm not at all
            if name not in ("metrics/identical_texts", "metrics/uniformity"):
                assert entry[name] == pytest.approx(value, rel=1e-4, abs=1e-4), (entry["step"], name)


@pytest.mark.slow
def test_an_encoder_with_a_pooler_that_nothing_reads_trains_in_two_processes(
    small: ModuleType, small_backbone: Path, tmp_path: Path
) -> None:
    """The second step stopped: "Expected to have finished reduction in the prior iteration"."""
    backbone = tmp_path / "squeezebert"
    shutil.copytree(small_backbone, backbone)
    sizes = {"hidden_size": 32, "embedding_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    words = AutoConfig.from_pretrained(small_backbone).vocab_size
    config = SqueezeBertConfig(vocab_size=words, num_attention_heads=2, max_position_embeddings=40, **sizes)
    SqueezeBertModel(config).save_pretrained(backbone)
    texts = small.write_texts(tmp_path / "texts.txt", 48)
    job = {"backbone": str(backbone), "texts": str(texts), "output_dir": str(tmp_path / "two"), "max_steps": 3}
    (tmp_path / "jobs.json").write_text(json.dumps([job | {"fields": {"pooling": "mean"}}]), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    two = subprocess.run([*command, SCRIPT, tmp_path / "jobs.json"], capture_output=True, text=True, env=ONE_THREAD)
    assert two.returncode == 0, two.stderr[-3000:]
    reports = [json.loads((tmp_path / "two" / f"report-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert [report["step"] for report in reports] == [3, 3]


def test_one_process_under_a_launcher_that_meant_several_is_warned(
    small_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``accelerate launch --cpu --num_processes 2`` starts one process and sets MASTER_ADDR, but no WORLD_SIZE."""
    small_run(tmp_path / "alone")
    assert "torchrun" not in caplog.text
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    small_run(tmp_path / "launched")
    assert "torchrun --nproc_per_node" in caplog.text
