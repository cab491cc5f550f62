"""Measure the share of a training's time that selection takes: STS-B dev and label-free criteria at each evaluation.

    python benchmarks/selection.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --data_dir SentEval/data --precision bf16 \
        --output experiments/results/benchmarks/selection-bert-base-uncased-cpu.json

The script times the work of `CSETrainer`: steps of SimCSE, the dev set in float32 and in bf16 (`bf16_full_eval`), and
the criteria. They take turns; on CPU the time is CPU seconds, so that other programs do not count.
`python -m experiments.tables` makes the table `benchmarks/selection-NAME` of the file.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from memory import clock
from train_step import SEED, Setting, csekit_step, parse_setting, read_batches
from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import write_results
from csekit.evaluation.sts_data import load_stsb_dev
from csekit.modeling import SimCSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus

STEPS = 4  # of each turn


def scoring(
    setting: Setting, corpus: Any, folder: str, dev: Pairs | None = None, samples: int = 0, bf16: bool = False
) -> Callable[[], Any]:
    """Return a function that computes the scores of an evaluation: dev set, or label-free criteria."""
    args = CSETrainingArguments(
        output_dir=folder,
        max_seq_length=setting.max_seq_length,
        label_free_samples=samples,
        use_cpu=setting.device == "cpu",
        bf16=setting.precision == "bf16",
        bf16_full_eval=bf16,
        report_to="none",
    )
    model = SimCSEModel.from_backbone(setting.backbone).to(setting.device)
    return CSETrainer(model, args, corpus, AutoTokenizer.from_pretrained(setting.backbone), dev=dev).dev_scores


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument("--data_dir", required=True, help="folder with SentEval's layout, for STS-B dev")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/benchmarks/selection-NAME.json"
    )
    parser.add_argument("--eval_steps", type=int, default=125, help="steps between two evaluations")
    parser.add_argument("--samples", type=int, default=256, help="number of sentences for the label-free criteria")
    return parse_setting(parser, argv, repetitions=5, warmup=1)


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    setting = Setting(args.model_name_or_path, args.device, args.precision, args.max_seq_length, args.threads)
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    turns = args.warmup + args.repetitions
    try:
        dev = load_stsb_dev(args.data_dir)
        name, batches = read_batches(args.train_file, args.batch_size, turns * STEPS)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    step, corpus = csekit_step(setting, "simcse", {}), load_corpus(args.train_file, max_samples=10_000)
    found: dict[str, list[float]] = {"step": [], "dev": [], "dev_bf16": [], "label_free": []}
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Any]] = {
            "dev": scoring(setting, corpus, folder, dev),
            "dev_bf16": scoring(setting, corpus, folder, dev, bf16=True),
            "label_free": scoring(setting, corpus, folder, samples=args.samples),
        }
        for turn in range(turns):
            begun = clock(setting.device)
            for rows in batches[turn * STEPS : (turn + 1) * STEPS]:
                step(rows)
            found["step"].append((clock(setting.device) - begun) / STEPS)
            for side, score in sides.items():
                begun = clock(setting.device)
                score()
                found[side].append(clock(setting.device) - begun)
    rows = {side: {"seconds": statistics.median(values[args.warmup :])} for side, values in found.items()}
    for side in sides:
        other = [own / step for own, step in zip(found[side], found["step"], strict=True)][args.warmup :]
        rows[side]["steps"] = statistics.median(other)
        print(f"{side:12}{rows[side]['seconds']:>8.2f} s{rows[side]['steps']:>8.1f} steps")
    run = {"benchmark": "selection", **asdict(setting), "backbone": Path(setting.backbone).name, "corpus": name}
    run |= {key: getattr(args, key) for key in ("batch_size", "repetitions", "warmup", "eval_steps", "samples")}
    run |= {"pairs": len(dev.scores), "cores": os.cpu_count()}
    write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
