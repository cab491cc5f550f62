"""Teachers and their students in one table: parameters, size on disk, dimensions, speed and scores.

    python -m experiments.students "teacher=runs/teacher" "two layers=runs/student" "static=runs/static" \
        --texts sentences.txt --data_dir data --collections scifact --output experiments/results/students/minilm.json

STS is the mean of the seven test sets, Spearman × 100, and with ``--tasks`` each set's score; retrieval is nDCG@10 ×
100 of each collection, a folder in ``--data_dir`` in BEIR's format. The speed is that of ``encode`` on the texts of
``--texts``, the median of three passes. The table of the results file is printed as Markdown.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from csekit.encoding import environment, load_encoder
from csekit.evaluation import evaluate_sts, load_sts, read_sentences
from csekit.evaluation.results import write_results
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import load_beir
from experiments.encoders import origin, sts_columns, weights_of
from experiments.tables.render import markdown
from experiments.tables.students import students_table

PASSES = 3


def measure(
    path: str, texts: Sequence[str], sts: Any, collections: Mapping[str, Any], device: str | None
) -> dict[str, Any]:
    """Return size, speed and scores of one encoder."""
    encoder = load_encoder(path, device=device)
    seconds = []
    for _ in range(PASSES):
        started = time.perf_counter()
        rows = encoder.encode(texts)
        seconds.append(time.perf_counter() - started)
    found: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in encoder.model.parameters()),
        "megabytes": round(sum(file.stat().st_size for file in weights_of(Path(path))) / 1e6, 2),
        "dimensions": int(rows.shape[1]),
        "texts_per_second": round(len(texts) / statistics.median(seconds), 1),
        "scores": {},
    }
    if sts:
        found["scores"] |= sts_columns(evaluate_sts(encoder, sts))
    for name, collection in collections.items():
        metrics = evaluate_retrieval(encoder, collection).metrics
        found["scores"][f"{name}, nDCG@10"] = round(float(metrics["ndcg@10"]), 4)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.students", description=__doc__.split("\n")[0])
    parser.add_argument("encoders", nargs="+", metavar="NAME=FOLDER", help="an encoder and its name in the table")
    parser.add_argument("--texts", required=True, help="a sentence a line, for the speed")
    parser.add_argument("--data_dir", required=True, help="folder in SentEval's layout")
    parser.add_argument("--tasks", help="STS sets, separated by commas; default: the seven test sets; none: no STS")
    parser.add_argument("--collections", nargs="*", default=[], help="folders in data_dir, in BEIR's format")
    parser.add_argument("--output", type=Path, required=True, help="results file")
    parser.add_argument("--device", default="cpu", help="cpu, cuda")
    args = parser.parse_args(argv)
    named = dict(each.partition("=")[::2] for each in args.encoders)
    for name, path in named.items():
        if not Path(path).is_dir():
            parser.error(f"encoders must be NAME=FOLDER, got {name}={path}: no such folder")
    if len(named) < len(args.encoders):
        parser.error(f"encoders must have different names, got {' '.join(args.encoders)}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        texts = read_sentences(args.texts)
        sts = [] if args.tasks == "none" else load_sts(args.data_dir, *([args.tasks.split(",")] if args.tasks else []))
        collections = {name: load_beir(Path(args.data_dir) / name) for name in args.collections}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    encoders: dict[str, Any] = {}
    for name, path in named.items():
        encoders[name] = {**measure(path, texts, sts, collections, args.device), **origin(path)}
        print(f"{name}: measured", flush=True)
    record = {"texts": len(texts), "device": args.device, "encoders": encoders}
    record["environment"] = environment()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.output, record, overwrite=True)
    print("\n".join([f"written: {args.output}", *markdown(*students_table(record)[1:])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
