"""Count the kernels that oneDNN makes in a long training on CPU, and the memory it holds, with rows filled up and not.

    python benchmarks/filled_rows.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --precision bf16 --steps 2000 --output experiments/results/benchmarks/kernels-bert-base-uncased-cpu-bf16.json

oneDNN makes a kernel for each number of rows that it multiplies, and keeps it. csekit fills batches and other rows up
to few numbers (`fast_packing.py`, `fast_rows.py`); the other side sets both to 1, and has all other fast paths. Each
side takes SimCSE's steps over the same shuffled batches in a process of its own, both at the same time, which no
number here minds. Kernels are the lines that oneDNN writes when it makes one (`ONEDNN_VERBOSE=profile_create`); memory
is resident. `python -m experiments.tables` makes a table of each file `benchmarks/kernels-NAME.json`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from encode_memory import resident
from train_step import SEED, Setting, csekit_step, parse_setting, read_batches

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import fast_packing, fast_rows

SIDES = {"filled": "rows filled up to few numbers", "exact": "rows of every number"}
EVERY = 50  # steps between two points
MADE, POINT = "primitive,create:cache_miss", "point "


def points(lines: list[str]) -> list[dict[str, int]]:
    """Return the points that a side has written: steps so far, kernels made so far, resident bytes."""
    found, kernels = [], 0
    for line in lines:
        kernels += MADE in line
        if line.startswith(POINT):
            step, memory = map(int, line.removeprefix(POINT).split())
            found.append({"step": step, "kernels": kernels, "resident": memory})
    return found


def summary(name: str, found: list[dict[str, int]]) -> dict[str, Any]:
    """Return a side's row. ``growth`` is the median memory of the last quarter over that of the second."""
    quarter, last = max(1, len(found) // 4), found[-1]
    late, early = found[-quarter:], found[quarter : 2 * quarter] or found
    before = found[-quarter - 1] if len(found) > quarter else {"step": 0, "kernels": 0}
    return {
        "name": name,
        "title": SIDES[name],
        "kernels": last["kernels"],
        "late_kernels_a_step": (last["kernels"] - before["kernels"]) / (last["step"] - before["step"]),
        "memory": max(each["resident"] for each in found),
        "growth": statistics.median(each["resident"] for each in late)
        / statistics.median(each["resident"] for each in early),
        "points": found,
    }


def train(args: argparse.Namespace) -> None:
    """Take one side's steps, and write a point after each ``EVERY``."""
    if args.side == "exact":
        fast_rows.ROWS = fast_packing.FILL = 1
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    setting = Setting(args.model_name_or_path, "cpu", args.precision, args.max_seq_length, args.threads)
    step = csekit_step(setting, "simcse", {"projector": "none"})
    _, batches = read_batches(args.train_file, args.batch_size, args.steps)
    for number, rows in enumerate(batches, 1):
        step(rows)
        if number % EVERY == 0 or number == args.steps:
            print(f"{POINT}{number} {resident()}", flush=True)


def run_sides(argv: list[str]) -> dict[str, list[str]]:
    """Run both sides at the same time, and return the lines that each has written.

    Raises:
        SystemExit: a side failed.
    """
    variables = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    with tempfile.TemporaryDirectory() as folder:
        logs, processes = {side: Path(folder) / side for side in SIDES}, {}
        for side, log in logs.items():
            with log.open("w") as file:
                command = [sys.executable, str(Path(__file__).resolve()), *argv, "--side", side]
                processes[side] = subprocess.Popen(command, stdout=file, env=variables)
        if failed := [side for side, process in processes.items() if process.wait()]:
            raise SystemExit(f"error: the side {failed[0]} failed, see above")
        return {side: log.read_text(errors="replace").splitlines() for side, log in logs.items()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", required=True, help="sentences, one a line")
    parser.add_argument("--output", type=Path, required=True, help="results file")
    parser.add_argument("--steps", type=int, default=2000, help="optimiser steps of each side")
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    args = parse_setting(parser, argv)
    if args.device != "cpu":
        parser.error(f"--device must be cpu, got {args.device}")
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, got {args.steps}")
    if args.side:
        train(args)
        return
    try:
        corpus, _ = read_batches(args.train_file, args.batch_size, 1)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    written = run_sides(list(sys.argv[1:] if argv is None else argv))
    rows = [summary(side, points(lines)) for side, lines in written.items()]
    for row in rows:
        print(
            f"{row['title']:32}{row['kernels']:>8,} kernels, {row['late_kernels_a_step']:.2f} a step at the end, "
            f"{row['memory'] / 2**20:,.0f} MiB, growth {row['growth']:.3f}"
        )
    names = ("precision", "threads", "batch_size", "max_seq_length", "steps")
    run = {"benchmark": "filled_rows", "backbone": Path(args.model_name_or_path).name, "corpus": corpus}
    run |= {name: getattr(args, name) for name in names} | {"cores": os.cpu_count(), "every": EVERY}
    write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
