"""Measure memory and time of reading a large corpus, from the file to the batches of the trainer.

    python benchmarks/corpus.py --model_name_or_path bert-base-uncased --train_file sentences.txt \
        --lines 1000000 10000000 --output experiments/results/corpus/sentences.json

The sentences of the file are repeated, each with a running number, until there are enough lines. One process reads
them with an empty cache (first start). Another process reads them with a filled cache (later start) and takes shuffled
batches of the trainer. Memory is counted above that of a process that holds only the model: `private` is memory that
the process allocated, `mapped` are pages of files, which the system takes back when it needs room. Time is CPU
seconds, so that other programs do not count. Linux only. `python -m experiments.tables` makes the table `corpus/NAME`
of the file `experiments/results/corpus/NAME.json`.
"""

import argparse
import multiprocessing
import re
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from transformers.utils import logging

from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.modeling import SimCSEModel
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus

_STATUS = re.compile(r"Rss(Anon|File):\s+(\d+) kB")


def resident() -> dict[str, int]:
    """Resident bytes of this process: ``private`` and ``mapped``."""
    found = dict(_STATUS.findall(Path("/proc/self/status").read_text(encoding="ascii")))
    return {"private": 1024 * int(found["Anon"]), "mapped": 1024 * int(found["File"])}


class Peak:
    """Record the peak of resident memory above ``base`` while the block runs, sampled every 20 ms."""

    def __init__(self, base: dict[str, int]) -> None:
        self.base, self.most, self.done = base, {"private": 0, "mapped": 0}, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _look(self) -> None:
        now = resident()
        self.most = {name: max(self.most[name], now[name] - self.base[name]) for name in now}

    def _watch(self) -> None:
        while not self.done.wait(0.02):
            self._look()

    def __enter__(self) -> "Peak":
        self.start = time.process_time()
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.seconds = time.process_time() - self.start
        self.done.set()
        self.thread.join()
        self._look()

    def row(self) -> dict[str, Any]:
        return {"cpu_seconds": self.seconds, **self.most}


def write_corpus(source: Path, target: Path, lines: int) -> None:
    sentences = [line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
    with target.open("w", encoding="utf-8") as file:
        file.writelines(f"{text} {i}\n" for text, i in islice(zip(cycle(sentences), count(), strict=False), lines))


def measure(stage: str, model_name: str, path: Path, batches: int, batch_size: int) -> dict[str, Any]:
    """Measure the ``first_start``, or a ``later_start`` and taking batches."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model, tokenizer = SimCSEModel.from_backbone(model_name), AutoTokenizer.from_pretrained(model_name)
    base = resident()
    with Peak(base) as start:
        corpus = load_corpus(path, cache_dir=path.parent / "cache")
    if stage == "first_start":
        return {stage: start.row()}
    args = CSETrainingArguments(
        output_dir=str(path.parent / "run"), per_device_train_batch_size=batch_size, use_cpu=True, report_to="none"
    )
    with Peak(base) as taking:
        loader = CSETrainer(model, args, corpus, tokenizer).get_train_dataloader()
        seen = sum(len(batch["index"]) for batch in islice(loader, batches))
    assert seen == batches * batch_size
    return {stage: start.row(), "batches": taking.row()}


def serve(pipe: Any, function: Callable[..., Any], *arguments: Any) -> None:
    pipe.send(function(*arguments))


def in_own_process(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise SystemExit("error: the measured process failed, see above") from None


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--train_file", type=Path, required=True, help="sentences to repeat, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/corpus/NAME.json"
    )
    parser.add_argument("--lines", nargs="+", type=int, default=[1_000_000, 3_000_000], help="sizes of the corpus")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument(
        "--folder", help="folder of the repeated corpus while it is measured; default: the system's temporary folder"
    )
    args = parser.parse_args(argv)
    needed = args.batches * args.batch_size
    if args.batches < 1 or args.batch_size < 2 or min(args.lines) < needed:
        parser.error(f"--lines must hold --batches of --batch_size, {needed}, got {min(args.lines)}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    rows: list[dict[str, Any]] = []
    for lines in args.lines:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = Path(folder) / "corpus.txt"
            write_corpus(args.train_file, path, lines)
            found = {}
            for stage in ("first_start", "later_start"):
                found |= in_own_process(measure, stage, args.model_name_or_path, path, args.batches, args.batch_size)
            rows.append({"lines": lines, "bytes": path.stat().st_size, **found})
        print(f"{lines:>12,} lines: " + ", ".join(f"{k} {v['private'] / 2**20:.0f} MiB" for k, v in found.items()))
        run = {"benchmark": "corpus", "backbone": Path(args.model_name_or_path).name, "corpus": args.train_file.name}
        run |= {"batches": args.batches, "batch_size": args.batch_size}
        write_results(args.output, {"run": run, "rows": rows, "environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
