"""Measure how the time of training grows with the corpus, the batch, the length of sentences, and over processes.

    python benchmarks/scaling.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --output experiments/results/benchmarks/scaling-bert-base-uncased-cpu.json

Steps are SimCSE's, from `train_step.py`. The rows of a part take turns (A B C A B C …); a ratio is the median of the
ratios within a turn. The parts:

- corpus: seconds from opening the file to the end of the first step, in a process of its own with the model loaded,
  with an empty cache and then with a filled one; and the steps after it. The file's lines are repeated and numbered.
- batch: steps over each number of sentences.
- cached: the same with cached gradients (`--cache_chunk_size` texts a chunk), for batches of any size.
- length: steps over `--batch_size` texts of each length in tokens, made of joined sentences.
- processes: a batch of `--batch_size` in one process with all `--threads`, and shared by several processes (gloo, DDP,
  joined keys) with the same number of threads in total.

Each part but the last gets the exponent of its growth: the slope of the least-squares line through the logarithms of
size and time. A step that takes time in proportion has 1.

On a GPU the last part is left out, since gloo joins CPUs. The defaults take ten minutes with a small encoder on two
cores. `python -m experiments.tables` makes the table `benchmarks/scaling-NAME` of the file
`experiments/results/benchmarks/scaling-NAME.json`.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from corpus import in_own_process, write_corpus
from torch.nn.parallel import DistributedDataParallel
from train_step import SEED, Setting, Step, csekit_step, now, parse_setting, read_batches, serve
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.trainers import load_corpus
from csekit.trainers.data.datasets import ShuffledRows

#: Takes one step over a batch of sentences and returns its seconds.
Side = Callable[[list[dict[str, Any]]], float]
STEPS_AFTER = 3  # of the corpus part


def start(stage: str, setting: Setting, path: Path, batch_size: int) -> dict[str, float]:
    """Measure seconds from opening the file to the end of the first step (key ``stage``), and of a later step."""
    logging.disable_progress_bar()
    torch.set_num_threads(setting.threads)
    torch.manual_seed(SEED)
    step = csekit_step(setting, "simcse", {})
    begun = now(setting.device)
    dataset: Any = load_corpus(path, cache_dir=path.parent / "cache").dataset
    order = iter(ShuffledRows(len(dataset), SEED))
    step(dataset.__getitems__(list(islice(order, batch_size))))
    seconds = {stage: now(setting.device) - begun}
    side = timed(step, setting)
    later = [side(dataset.__getitems__(list(islice(order, batch_size)))) for _ in range(STEPS_AFTER)]
    return {**seconds, "seconds": statistics.median(later)}


def timed(step: Step, setting: Setting) -> Side:
    def take(rows: list[dict[str, Any]]) -> float:
        begun = now(setting.device)
        step(rows)
        return now(setting.device) - begun

    return take


def in_group(setting: Setting, rank: int, processes: int, meeting: str) -> Step:
    """Build the step of one of several processes, or of a single process."""
    if processes == 1:
        return csekit_step(setting, "simcse", {})
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    return csekit_step(setting, "simcse", {}, wrap=DistributedDataParallel)


class Group:
    """Processes that share a batch: each takes an equal part of the rows.

    Arguments:
        meeting: path of a file that does not exist yet; the processes connect through it.
    """

    def __init__(self, setting: Setting, processes: int, meeting: str) -> None:
        context, self.members = multiprocessing.get_context("spawn"), []
        for rank in range(processes):
            ours, theirs = context.Pipe()
            build = partial(in_group, rank=rank, processes=processes, meeting=meeting)
            context.Process(target=serve, args=(theirs, setting, build), daemon=True).start()
            theirs.close()
            self.members.append(ours)
        self._receive()

    def __call__(self, rows: list[dict[str, Any]]) -> float:
        """Take a step; returns the seconds of the slowest process."""
        share = len(rows) // len(self.members)
        for number, pipe in enumerate(self.members):
            pipe.send(rows[number * share : (number + 1) * share])
        return max(self._receive())

    def close(self) -> None:
        for pipe in self.members:
            pipe.send(None)
        self._receive()

    def _receive(self) -> list[Any]:
        try:
            return [pipe.recv() for pipe in self.members]
        except EOFError:
            raise SystemExit("error: a process of the group failed, see above") from None


def in_turn(
    sides: Mapping[str, tuple[Side, Sequence[list[dict[str, Any]]]]], part: str, warmup: int
) -> list[dict[str, Any]]:
    """Measure one part: every side over its batches in turn, with ratios to the first side."""
    seconds: dict[str, list[float]] = {title: [] for title in sides}
    rounds = len(next(iter(sides.values()))[1])
    for number in range(rounds):
        for title, (take, batches) in sides.items():
            value = take(batches[number])
            if number >= warmup:
                seconds[title].append(value)
    first = next(iter(seconds.values()))
    return [
        {
            "part": part,
            "title": title,
            "seconds": statistics.median(found),
            "ratio": statistics.median(own / base for own, base in zip(found, first, strict=True)),
            "sentences": len(sides[title][1][0]),
        }
        for title, found in seconds.items()
    ]


def corpus_rows(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for lines in args.lines:
        with tempfile.TemporaryDirectory() as folder:
            path, found = Path(folder) / "corpus.txt", {}
            write_corpus(args.train_file, path, lines)
            for stage in ("first_start", "later_start"):
                found |= in_own_process(start, stage, setting, path, args.batch_size)
        ratio = found["seconds"] / rows[0]["seconds"] if rows else 1.0
        title = f"corpus of {lines:,} lines"
        row = {"part": "corpus", "title": title, **found, "ratio": ratio, "sentences": args.batch_size}
        rows.append({**row, "size": lines})
    return rows


def batch_rows(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    return steps_of_sizes(args, setting, "batch", args.batch_sizes, 0)


def cached_rows(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    return steps_of_sizes(args, setting, "cached", args.cached_batch_sizes, args.cache_chunk_size)


def steps_of_sizes(
    args: argparse.Namespace, setting: Setting, part: str, sizes: Sequence[int], chunk: int
) -> list[dict[str, Any]]:
    step, rounds = csekit_step(setting, "simcse", {}, cache_chunk_size=chunk), args.warmup + args.repetitions
    side, end = timed(step, setting), f" in chunks of {chunk} texts" if chunk else ""
    batches = {f"batch of {size}{end}": (side, read_batches(str(args.train_file), size, rounds)[1]) for size in sizes}
    return with_sizes(in_turn(batches, part, args.warmup), sizes)


def with_sizes(rows: list[dict[str, Any]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    return [{**row, "size": size} for row, size in zip(rows, sizes, strict=True)]


def exponent(rows: Sequence[Mapping[str, Any]], field: str = "seconds") -> float:
    """Return the slope of the least-squares line through the logarithms of ``size`` and of a field."""
    sizes, values = (np.log([row[name] for row in rows]) for name in ("size", field))
    return float(np.polyfit(sizes, values, 1)[0])


def exponents(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the exponent of the step of each part that has sizes, and of the first and later start of the corpus."""
    found = {}
    for part in dict.fromkeys(row["part"] for row in rows):
        of_part = [row for row in rows if row["part"] == part]
        for field in ("seconds", "first_start", "later_start"):
            if len({row.get("size") for row in of_part}) > 1 and field in of_part[0]:
                found[part if field == "seconds" else f"{part}, {field}"] = exponent(of_part, field)
    return found


def length_rows(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    texts = [line for line in args.train_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    random.Random(SEED).shuffle(texts)
    sides = {}
    for length in args.lengths:
        side = timed(csekit_step(replace(setting, max_seq_length=length), "simcse", {}), setting)
        batches = long_batches(texts, length, args.batch_size, args.warmup + args.repetitions)
        sides[f"{length} tokens a text"] = (side, batches)
    return with_sizes(in_turn(sides, "length", args.warmup), args.lengths)


def long_batches(texts: Sequence[str], words: int, size: int, count: int) -> list[list[dict[str, Any]]]:
    """Make batches of texts of at least ``words`` words, by joining the sentences in turn."""
    batches, place = [], 0
    for _ in range(count):
        rows = []
        for index in range(size):
            joined: list[str] = []
            while len(joined) < words:
                joined += texts[place % len(texts)].split()
                place += 1
            rows.append({"texts": [" ".join(joined)], "index": index, "epoch": 0})
        batches.append(rows)
    return batches


def process_rows(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    batches = read_batches(str(args.train_file), args.batch_size, args.warmup + args.repetitions)[1]
    each = max(1, setting.threads // args.processes)
    with tempfile.TemporaryDirectory() as folder:
        alone = Group(setting, 1, f"{folder}/one")
        shared = Group(replace(setting, threads=each), args.processes, f"{folder}/several")
        sides: dict[str, tuple[Side, Any]] = {
            f"1 process, {setting.threads} threads": (alone, batches),
            f"{args.processes} processes, {each} threads each": (shared, batches),
        }
        rows = in_turn(sides, "processes", args.warmup)
        alone.close()
        shared.close()
    return rows


PARTS = {
    "corpus": corpus_rows,
    "batch": batch_rows,
    "cached": cached_rows,
    "length": length_rows,
    "processes": process_rows,
}


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", type=Path, required=True, help="sentences, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/benchmarks/scaling-NAME.json"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), help="parts to measure; default: all, on a GPU without processes"
    )
    parser.add_argument(
        "--lines", nargs="+", type=int, default=[10_000, 100_000, 1_000_000, 10_000_000], help="sizes of the corpus"
    )
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[32, 64, 128, 256], help="sentences a step")
    parser.add_argument(
        "--cached_batch_sizes", nargs="+", type=int, default=[64, 256, 1024], help="sentences a step, in chunks"
    )
    parser.add_argument("--cache_chunk_size", type=int, default=64, help="texts a chunk")
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 32, 64, 128, 256, 512], help="tokens a text")
    parser.add_argument("--processes", type=int, default=2, help="processes that share a batch")
    args = parse_setting(parser, argv, repetitions=5, warmup=1)
    possible = [part for part in PARTS if args.device == "cpu" or part != "processes"]
    args.parts = args.parts or possible
    if not set(args.parts) <= set(possible):
        parser.error(f"--parts must be among {', '.join(possible)} with --device {args.device}, got processes")
    for name, least in (
        ("lines", args.batch_size * (1 + STEPS_AFTER)),
        ("batch_sizes", 2),
        ("cached_batch_sizes", 2),
        ("lengths", 3),
    ):
        if min(getattr(args, name)) < least:
            parser.error(f"--{name} must be at least {least}, got {min(getattr(args, name))}")
    if args.cache_chunk_size < 1:
        parser.error(f"--cache_chunk_size must be at least 1, got {args.cache_chunk_size}")
    if args.processes < 2 or args.batch_size % args.processes or args.batch_size < 2 * args.processes:
        parser.error(f"--processes must be at least 2 and share --batch_size, {args.batch_size}, got {args.processes}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    setting = Setting(args.model_name_or_path, args.device, args.precision, args.max_seq_length, args.threads)
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []
    try:
        for part in args.parts:
            begun = time.perf_counter()
            rows += (found := PARTS[part](args, setting))
            for row in found:
                starts = [f"{row[name]:.1f} s" for name in ("first_start", "later_start") if name in row]
                print(f"{row['title']:34}{1000 * row['seconds']:>9.1f} ms{row['ratio']:>7.2f}  {' '.join(starts)}")
            print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    run = {"benchmark": "scaling", **asdict(setting), "backbone": Path(setting.backbone).name}
    run |= {"corpus": args.train_file.name, "cores": os.cpu_count()}
    run |= {name: getattr(args, name) for name in ("batch_size", "repetitions", "warmup")}
    found = {"run": run, "rows": rows, "exponents": exponents(rows), "environment": environment()}
    write_results(args.output, found, overwrite=True)


if __name__ == "__main__":
    main()
