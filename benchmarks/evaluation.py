"""Time the seven STS sets with csekit and with mteb: same encoder, data, precision, device and threads, in one run.

    python benchmarks/evaluation.py runs/my-encoder --data_dir data --output experiments/results/speed/my-encoder.json

The encoder is a csekit export or another SentenceTransformer folder. `csekit` loads it with `load_encoder` and calls
`evaluate_sts`; `mteb` is `mteb.evaluate` of a `SentenceTransformer` of the same folder; `adapter` is `mteb.evaluate`
of our encoder. Loading and reading are not counted. The sides take turns (A B C A B C …), so that a busy moment of the
machine slows all of them; a ratio is the median of the ratios within a turn. CPU time of all threads is given as well:
compare it on a machine that runs other programs. The scores must agree. `python -m experiments.tables` makes the table
`speed/NAME` of the file `experiments/results/speed/NAME.json`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mteb
import torch
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from csekit.encoding import environment, load_encoder
from csekit.evaluation import evaluate_sts, load_sts, write_results
from csekit.evaluation.mteb_adapter import MTEBEncoder, mteb_sts_tasks
from csekit.evaluation.sts_data import STSTask

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: Task to Spearman, all pairs of a set together, ×100.
Scores = dict[str, float]
TITLES = {
    "csekit": "`evaluate_sts`",
    "mteb": "`mteb.evaluate`, SentenceTransformer",
    "adapter": "`mteb.evaluate`, `MTEBEncoder`",
}


def builders(
    path: str, sets: Sequence[STSTask], device: str, precision: str, batch_size: int
) -> dict[str, Callable[[Sequence[str]], Scores]]:
    """Return, for each side, a function that scores the sets of these names."""
    encoder = load_encoder(path, device=device, batch_size=batch_size)
    encoder.model.to(PRECISIONS[precision])
    peer = SentenceTransformer(path, device=device).to(PRECISIONS[precision])
    tasks = dict(zip([task.name for task in sets], mteb_sts_tasks(sets), strict=True))

    def ours(names: Sequence[str]) -> Scores:
        result = evaluate_sts(encoder, [task for task in sets if task.name in names])
        return {name: scores.all for name, scores in result.tasks.items()}

    def theirs(model: Any, names: Sequence[str]) -> Scores:
        encode = {"batch_size": batch_size, "show_progress_bar": False}
        chosen = [tasks[name] for name in names]
        done = mteb.evaluate(model, chosen, cache=None, encode_kwargs=encode, show_progress_bar=False).task_results
        found = {result.task_name: 100 * result.scores["test"][0]["cosine_spearman"] for result in done}
        return {name: found[tasks[name].metadata.name] for name in names}

    return {
        "csekit": ours,
        "mteb": lambda names: theirs(peer, names),
        "adapter": lambda names: theirs(MTEBEncoder(encoder), names),
    }


def timed(side: Callable[[Sequence[str]], Scores], names: Sequence[str], device: str) -> tuple[float, float, Scores]:
    """Wall seconds, CPU seconds and scores."""
    if device == "cuda":
        torch.cuda.synchronize()
    started, used = time.perf_counter(), time.process_time()
    scores = side(names)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, time.process_time() - used, scores


def measure(
    sides: dict[str, Callable[[Sequence[str]], Scores]], sets: Sequence[STSTask], repetitions: int, device: str
) -> tuple[list[dict[str, Any]], float]:
    """Measure every side in turn, after an uncounted turn over the smallest set.

    Returns:
        a row for each side, and the largest difference of a score to the first side's.
    """
    names = [task.name for task in sets]
    smallest = min(sets, key=len).name
    for side in sides.values():
        side([smallest])
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    scores: dict[str, Scores] = {}
    for _ in range(repetitions):
        for name, side in sides.items():
            taken, used, scores[name] = timed(side, names, device)
            seconds[name].append(taken)
            cpu[name].append(used)
    first = next(iter(sides))
    rows = [
        {
            "name": name,
            "title": TITLES[name],
            "seconds": statistics.median(own),
            "time_ratio": statistics.median(a / b for a, b in zip(own, seconds[first], strict=True)),
            "cpu_seconds": statistics.median(cpu[name]),
            "cpu_ratio": statistics.median(a / b for a, b in zip(cpu[name], cpu[first], strict=True)),
            "all_seconds": own,
            "scores": scores[name],
        }
        for name, own in seconds.items()
    ]
    apart = [abs(scores[name][task] - scores[first][task]) for name in sides for task in names]
    return rows, max(apart)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a SentenceTransformer folder")
    parser.add_argument("--data_dir", required=True, help="folder with SentEval's layout")
    parser.add_argument("--output", type=Path, required=True, help="results file, experiments/results/speed/NAME.json")
    parser.add_argument("--tasks", default="sts", help="'sts', or names with commas")
    parser.add_argument("--title", help="name of the encoder in the table; default: its folder's name")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=tuple(TITLES),
        default=list(TITLES),
        help="sides to measure; ratios are relative to the first",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="fp32")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    args = parser.parse_args(argv)
    for name in ("batch_size", "repetitions", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if not (Path(args.model) / "modules.json").is_file():
        parser.error(f"model must be a SentenceTransformer folder (with modules.json), got {args.model!r}")
    return args


def main(argv: list[str] | None = None) -> None:
    args = read_arguments(argv)
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        sets = load_sts(args.data_dir, args.tasks)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    sides = builders(args.model, sets, args.device, args.precision, args.batch_size)
    rows, apart = measure({name: sides[name] for name in args.sides}, sets, args.repetitions, args.device)
    print(f"{'':40}{'seconds':>10}{'ratio':>8}{'CPU':>10}{'ratio':>8}")
    for row in rows:
        ours = f"{row['title']:40}{row['seconds']:>10.2f}{row['time_ratio']:>8.2f}"
        print(f"{ours}{row['cpu_seconds']:>10.2f}{row['cpu_ratio']:>8.2f}")
    print(f"scores differ by {apart:.6f} at most")
    texts = [text for task in sets for pairs in task.subsets for text in (*pairs.sentences1, *pairs.sentences2)]
    run = {
        "benchmark": "evaluation",
        "encoder": args.title or Path(args.model).resolve().name,
        "cores": os.cpu_count(),
    }
    run |= {name: getattr(args, name) for name in ("device", "precision", "batch_size", "repetitions", "threads")}
    run |= {"tasks": [task.name for task in sets], "sentences": len(texts), "distinct": len(set(texts))}
    results = {"run": run, "sides": rows, "largest_difference": apart, "mteb": mteb.__version__}
    write_results(args.output, results | {"environment": environment()}, overwrite=True)


if __name__ == "__main__":
    main()
