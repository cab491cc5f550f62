"""Measure peak memory and time of an optimiser step over large batches, with and without cached gradients.

    python benchmarks/memory.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --batch_sizes 512 1024 --chunk_sizes 0 256 64 --output experiments/results/memory/bert-base-uncased-cpu.json

A step is that of `train_step.py`. Every pair of batch size and chunk size (0: no cache) runs in its own process, one
after the other, so that there is room for the largest. The fastest of its steps counts, on CPU in CPU seconds, so that
other programs do not count. A process that the system kills, or a device without memory left, is recorded as "does not
fit". `python -m experiments.tables` makes the table `memory/NAME` of the file `experiments/results/memory/NAME.json`.
"""

import argparse
import multiprocessing
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from train_step import METHODS_FILE, SEED, Setting, csekit_step, now, peak_memory, read_batches
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results


def chosen(name: str) -> tuple[str, dict[str, Any]]:
    """Return a method's title and its arguments for ``csekit_step``.

    Raises:
        ValueError: an unknown name.
    """
    known = yaml.safe_load(METHODS_FILE.read_text(encoding="utf-8"))
    if name not in known:
        raise ValueError(f"methods must be among {', '.join(known)}, got {name!r}")
    fields = dict(known[name])
    return fields.pop("title"), {"method": fields.pop("method"), "fields": fields}


def measure(setting: Setting, method: str, batches: list[list[dict[str, Any]]], chunk_size: int) -> dict[str, Any]:
    """Measure seconds of the fastest step and peak memory in bytes; both are None where the process died."""
    title, wanted = chosen(method)
    row: dict[str, Any] = {"method": method, "title": title, "chunk_size": chunk_size, "batch_size": len(batches[0])}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, setting, wanted, batches, chunk_size))
    process.start()
    theirs.close()
    try:
        row |= ours.recv()
    except EOFError:
        row |= {"seconds": None, "memory": None}
    process.join()
    return row


def serve(pipe: Any, setting: Setting, wanted: dict[str, Any], batches: list[Any], chunk_size: int) -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(setting.threads)
    torch.manual_seed(SEED)
    before = peak_memory(setting.device)
    step, seconds = csekit_step(setting, **wanted, cache_chunk_size=chunk_size), []
    for rows in batches:
        started = clock(setting.device)
        step(rows)
        seconds.append(clock(setting.device) - started)
    pipe.send({"seconds": min(seconds), "memory": peak_memory(setting.device) - before})


def clock(device: str) -> float:
    return time.process_time() if device == "cpu" else now(device)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint, a masked LM")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/memory/NAME.json"
    )
    parser.add_argument("--methods", nargs="+", default=["simcse-tanh"], help="rows of methods.yaml")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[512, 1024], help="sentences a step")
    parser.add_argument(
        "--chunk_sizes", nargs="+", type=int, default=[0, 256, 64], help="texts a chunk; 0: without cache"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2, help="steps of each process")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    args = parser.parse_args(argv)
    for name in ("batch_sizes", "steps", "threads"):
        if min(values := getattr(args, name) if name == "batch_sizes" else [getattr(args, name)]) < 1:
            parser.error(f"--{name} must be at least 1, got {min(values)}")
    if min(args.chunk_sizes) < 0:
        parser.error(f"--chunk_sizes must be 0 (no cache) or a number of texts, got {min(args.chunk_sizes)}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    setting = Setting(args.model_name_or_path, args.device, args.precision, args.max_seq_length, args.threads)
    rows = []
    try:
        for name in args.methods:
            chosen(name)
        for size in args.batch_sizes:
            corpus, batches = read_batches(args.train_file, size, args.steps)
            for name in args.methods:
                for chunk_size in args.chunk_sizes:
                    rows.append(row := measure(setting, name, batches, chunk_size))
                    told = "-" if row["memory"] is None else f"{row['memory'] / 2**20:.0f}"
                    print(f"{row['title']:32}{size:>7}{chunk_size:>7}{told:>9} MiB", flush=True)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    run = {"benchmark": "memory", **asdict(setting), "backbone": Path(setting.backbone).name, "corpus": corpus}
    run |= {"steps": args.steps, "cores": os.cpu_count()}
    write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
