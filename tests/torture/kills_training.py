"""Trainings killed at random moments: resumed, they end with the bytes of one that was not killed."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csekit.modeling import METHODS

pytestmark = pytest.mark.torture

OWN: dict[str, list[str]] = {
    "infocse": ["--aux_mlm_head_init", "top_layers"],
    "joint": ["--objectives", "mlm", "reconstruction"],
    "msse": ["--max_seq_length", "16"],
    "pairs": ["--temperature", "0.05"],
}
STEPS = ["--eval_steps", "4", "--logging_steps", "2", "--per_device_train_batch_size", "8", "--use_cpu", "True"]


def command(kind: str, data: Path, output: Path) -> list[str]:
    """The words of a training of 15 steps, or of 16 of pre-training."""
    common = ["--model_name_or_path", str(data / "tiny-bert"), "--output_dir", str(output), "--report_to", "none"]
    common += [*STEPS, "--learning_rate", "1e-3"]
    if kind == "pretraining":
        words = ["--train_file", str(data / "texts.txt"), "--block_length", "16", "--max_steps", "16"]
        return ["examples/run_pretrain.py", *common, *words]
    scored = ["--dev_file", str(data / "dev.tsv"), "--test_file", str(data / "test.tsv"), *OWN.get(kind, [])]
    if kind == "pairs":
        return ["examples/run_sup.py", *common, *scored, "--train_file", str(data / "pairs.tsv"), "--max_steps", "15"]
    return ["examples/run_unsup.py", *common, *scored, "--train_file", str(data / "texts.txt"), "--method", kind]


def kept(folder: Path) -> dict[str, Any]:
    """What must be the same: the bytes of all weights and the results, without times and places."""
    results = json.loads((folder / "results.json").read_text())
    for name in ("seconds", "environment", "name", "arguments"):
        results.pop(name, None)
    weights = {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("**/*.safetensors")}
    return {"results": results, **{n: b for n, b in weights.items() if "checkpoint-" not in n}}


def different(reference: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    names = [name for name, value in reference.items() if name != "results" and found.get(name) != value]
    fields = [name for name, value in reference["results"].items() if found["results"].get(name) != value]
    return names + fields


def whole_or_absent(folder: Path, reference: dict[str, Any]) -> str:
    """What is wrong with an export that a kill left; empty if nothing is."""
    if not (folder / "config.json").exists():
        return ""
    names = ["tokenizer.json", "tokenizer_config.json"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        return f"config.json is there, {missing} are not"
    same = (folder / "model.safetensors").read_bytes() == reference["model.safetensors"]
    return "" if same else "the weights are not those of the finished run"


@pytest.mark.parametrize("kind", [*METHODS, "pairs", "pretraining"])
def test_killed_trainings_end_like_others(
    kind: str, data: Path, start: Callable[..., Any], tmp_path: Path, rounds: Iterator[random.Random], tally: Any
) -> None:
    straight = start(*command(kind, data, tmp_path / "straight")).end()
    assert straight.code == 0, straight.text[-3000:]
    reference = kept(tmp_path / "straight")
    broken = []
    for number, rng in enumerate(rounds):
        output = tmp_path / f"killed-{number}"
        words = [*command(kind, data, output), "--resume_from_checkpoint", "True"]
        words += rng.choice([[], ["--dataloader_num_workers", "2"]])
        outcome, detail, kills = "held", "", []
        for _ in range(rng.randint(1, 4)):
            kills.append(
                (round(rng.uniform(0, straight.seconds), 2), rng.choice([signal.SIGKILL] * 3 + [signal.SIGTERM]))
            )
            ended = start(*words).end(*kills[-1])
            if ended.code not in (0, 143, -signal.SIGKILL, -signal.SIGTERM):
                outcome, detail = ended.outcome(), ended.text
                outcome = "lost" if outcome == "told in one line" else outcome  # nothing was wrong but the kill
                break
            if wrong := whole_or_absent(output, reference):
                outcome, detail = "silently wrong", wrong
                break
        if outcome == "held":
            ended = start(*words).end()
            if ended.code != 0:
                outcome = "lost" if ended.outcome() == "told in one line" else "traceback"
                detail = ended.text
            elif names := different(reference, kept(output)):
                outcome, detail = "silently wrong", f"different: {names}"
        if not tally(f"kill: train {kind}", outcome, f"kills {kills}: {detail}"):
            broken.append(tally.broken[-1]["detail"])
        shutil.rmtree(output, ignore_errors=True)
    assert not broken, "\n\n".join(broken)
