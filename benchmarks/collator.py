"""Measure the share of an optimiser step that goes into making its batch: reading rows, tokenising, masking.

    python benchmarks/collator.py --model_name_or_path bert-base-uncased --train_file sentences.txt --precision bf16 \
        --output experiments/results/collator/bert-base-uncased-cpu-bf16.json

Each part is timed alone in CPU seconds; the median counts. The step is that of `train_step.py`, which makes its batch
itself. In a training, a DataLoader worker makes the batches in parallel. `python -m experiments.tables` makes the
table `collator/NAME` of the file `experiments/results/collator/NAME.json`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from train_step import METHODS_FILE, SEED, Setting, csekit_step, read_rows
from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import METHODS
from csekit.modeling.tokenization import tokenize, training_length
from csekit.trainers import CSECollator, load_corpus


def cpu_seconds(function: Callable[[Any], Any], inputs: list[Any], warmup: int = 1) -> float:
    """Median over the inputs without the first ``warmup``."""
    seconds = []
    for given in inputs:
        started = time.process_time()
        function(given)
        seconds.append(time.process_time() - started)
    return statistics.median(seconds[warmup:])


def measure(setting: Setting, name: str, dataset: Any, places: list[list[int]], steps: int) -> dict[str, Any]:
    """CPU seconds of each part of a method's step."""
    row = read_rows(METHODS_FILE, [name])[name]
    title, wanted = row.title, row.build.keywords  # type: ignore[attr-defined]
    model = METHODS[wanted["method"]].from_backbone(setting.backbone, **wanted["fields"])
    tokenizer = AutoTokenizer.from_pretrained(setting.backbone)
    template = model.config.prompt_template
    length = training_length(tokenizer, setting.max_seq_length, template)
    collator = CSECollator(tokenizer, setting.max_seq_length, model.batch_specs, SEED, template)
    batches = [dataset.__getitems__(each) for each in places]
    texts = [[row["texts"][0] for row in rows] for rows in batches]
    return {
        "name": name,
        "title": title,
        "read": cpu_seconds(dataset.__getitems__, places),
        "tokenise": cpu_seconds(lambda each: tokenize(tokenizer, each, length, template), texts),
        "collate": cpu_seconds(collator, batches),
        "step": cpu_seconds(csekit_step(setting, **wanted), batches[: steps + 1]),
    }


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint, a masked LM")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/collator/NAME.json"
    )
    parser.add_argument(
        "--methods", nargs="+", default=["simcse-tanh", "infocse", "diffcse"], help="rows of methods.yaml"
    )
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--batches", type=int, default=50, help="number of batches to make")
    parser.add_argument("--steps", type=int, default=3, help="number of these batches to train on")
    args = parser.parse_args(argv)
    if not 1 <= args.steps < args.batches:
        parser.error(f"--steps must lie between 1 and --batches less one, {args.batches - 1}, got {args.steps}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    setting = Setting(args.model_name_or_path, "cpu", args.precision, args.max_seq_length, 1)
    try:
        read_rows(METHODS_FILE, args.methods)
        corpus = load_corpus(args.train_file)
        rows = len(corpus.dataset)  # type: ignore[arg-type]
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(SEED))[: args.batches * args.batch_size]
        if len(order) < args.batches * args.batch_size:
            raise ValueError(f"{corpus.name} must hold {args.batches} batches of {args.batch_size}, got {rows} rows")
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    places = order.view(args.batches, -1).tolist()
    found = [measure(setting, name, corpus.dataset, places, args.steps) for name in args.methods]
    for row in found:
        parts = ", ".join(f"{part} {1000 * row[part]:.2f}" for part in ("read", "tokenise", "collate", "step"))
        print(f"{row['title']:32} ms: {parts}")
    run = {"benchmark": "collator", **asdict(setting), "backbone": Path(setting.backbone).name, "corpus": corpus.name}
    run |= {name: getattr(args, name) for name in ("batch_size", "batches", "steps")} | {"cores": os.cpu_count()}
    write_results(args.output, {"run": run, "rows": found, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
