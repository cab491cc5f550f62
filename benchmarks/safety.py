"""Measure what the checks of a run cost: the manifest of a checkpoint, its verification, the check of an export.

    python benchmarks/safety.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --output experiments/results/safety/bert-base-uncased-cpu.json

It trains two steps of SimCSE with a checkpoint and a dev score after each, resumes the run and saves it. Each part is
given in seconds by the clock and of the processors; the fastest repetition counts.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import AutoTokenizer, set_seed

from csekit.encoding.provenance import checksum, environment
from csekit.evaluation.results import write_results
from csekit.evaluation.sts_data import load_stsb_dev
from csekit.modeling import SimCSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, base_trainer, checkpoints, load_corpus

STEPS = 2


class Times:
    """The fastest repetition of each part."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, float]] = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a clock around it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                best = self.parts.setdefault(name, found)
                self.parts[name] = {kind: min(best[kind], found[kind]) for kind in found}

        return timed


def make_trainer(model: str, train_file: str, data_dir: str, folder: Path) -> CSETrainer:
    args = CSETrainingArguments(
        str(folder),
        max_steps=STEPS,
        eval_steps=1,
        label_free_samples=0,
        disable_tqdm=True,
        report_to="none",
        save_total_limit=None,
    )
    set_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    corpus = load_corpus(train_file, max_samples=args.train_batch_size * STEPS)
    return CSETrainer(SimCSEModel.from_backbone(model), args, corpus, tokenizer, load_stsb_dev(data_dir))


def measure(model: str, train_file: str, data_dir: str, repetitions: int) -> dict[str, Any]:
    """Return seconds of each part and the size of a checkpoint in bytes."""
    times = Times()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "run"
        trainer = make_trainer(model, train_file, data_dir, folder)
        checkpoint = folder / "training" / f"checkpoint-{STEPS}"
        with (
            patch.object(base_trainer, "finish_checkpoint", times.of("manifest", base_trainer.finish_checkpoint)),
            patch.object(CSETrainer, "_save_checkpoint", times.of("checkpoint", CSETrainer._save_checkpoint)),
            patch.object(CSETrainer, "_check_saved", times.of("check of the export", CSETrainer._check_saved)),
            patch.object(CSETrainer, "dev_scores", times.of("dev score", CSETrainer.dev_scores)),
        ):
            trainer.train()
            times.of("export with its check", trainer.save_run)()
        digests = {
            "sha256": lambda: checksum(checkpoint),
            "verification": checkpoints.as_checkpoint(checkpoint).damage,
        }
        for name, function in digests.items():
            for _ in range(repetitions):
                times.of(name, function)()
        size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    parts = {name: {kind: round(value, 3) for kind, value in part.items()} for name, part in times.parts.items()}
    return {"seconds": parts, "checkpoint_bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    found = measure(args.model_name_or_path, args.train_file, args.data_dir, args.repetitions)
    run = {"backbone": Path(args.model_name_or_path).name, "repetitions": args.repetitions}
    write_results(args.output, {"run": run, **found, "environment": environment()}, overwrite=True)
    for name, part in found["seconds"].items():
        print(f"{name:24}{part['wall']:8.2f} s{part['cpu']:8.2f} s of the processors")


if __name__ == "__main__":
    main()
