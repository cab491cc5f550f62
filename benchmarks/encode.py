"""Compare csekit's `encode` with `SentenceTransformer.encode` and with onnxruntime, in sentences a second: same
weights, texts and machine.

    python benchmarks/encode.py --model_name_or_path bert-base-uncased --texts sentences.txt pairs.tsv:sentence1 \
        --output experiments/results/benchmarks/encode-bert-base-uncased-cpu.json

The sides take turns (A B A B …) over the same texts; a ratio is the median of the ratios within a turn. Texts are
distinct and in the order of the file, so that no side gains by skipping duplicates. Each side has its own settings:
sentence-transformers encodes 32 rows a batch (its default) or `--st_batch_size`, in bf16 by
`model_kwargs={"dtype": …}` as its documentation says; csekit uses its defaults; onnxruntime runs the graphs that
`csekit export --pooled --int8` writes, over csekit's own batches. Where it is not installed its rows are left out. CPU
time is measured beside wall time, because a busy machine disturbs it less. `python -m experiments.tables` makes the
table `benchmarks/NAME`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from csekit.encoding.fast_cpu import PRECISIONS
from csekit.encoding.files import text_column
from csekit.encoding.load import load_encoder
from csekit.encoding.onnx_export import export_onnx
from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results
from csekit.evaluation.sts import evaluate_pairs
from csekit.evaluation.sts_data import load_stsb_dev

POOLINGS = ("cls", "mean")
#: Whose side, precision.
SIDES = (
    ("sentence-transformers", "fp32"),
    ("csekit", "fp32"),
    ("sentence-transformers", "bf16"),
    ("csekit", "bf16"),
    ("csekit", "int8"),
    ("onnxruntime", "fp32"),
    ("onnxruntime", "int8"),
)

#: Texts to embeddings.
Encode = Callable[[list[str]], np.ndarray]


def csekit_side(path: str, pooling: str, precision: str, device: str, max_length: int) -> Encode:
    encoder = load_encoder(path, pooling=pooling, device=device, max_length=max_length)
    encoder.precision = precision
    return encoder.encode


def st_side(path: str, pooling: str, precision: str, device: str, max_length: int, batch_size: int) -> Encode:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    words = Transformer(path, max_seq_length=max_length, model_kwargs={"dtype": dtype})
    model = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension(), pooling)], device=device)
    return lambda texts: np.asarray(model.encode(texts, batch_size=batch_size, show_progress_bar=False), np.float32)


def onnx_side(folder: Path, precision: str, max_length: int) -> Encode:
    file = folder / "onnx" / ("model_int8.onnx" if precision == "int8" else "model.onnx")
    return load_encoder(file, max_length=max_length).encode


def make_sides(args: argparse.Namespace, pooling: str, work: Path) -> dict[tuple[str, str], Encode]:
    """Return the sides of one pooling. ``work`` is an empty folder for onnxruntime's graphs."""
    with_onnx = args.device == "cpu"
    if with_onnx:
        try:
            export_onnx(args.model_name_or_path, work / "export", pooled=True, int8=True, pooling=pooling)
        except ImportError as error:
            print(f"onnxruntime is left out: {error}", flush=True)
            with_onnx = False
    sides: dict[tuple[str, str], Encode] = {}
    for name, precision in SIDES:
        common = (args.model_name_or_path, pooling, precision, args.device, args.max_length)
        if name == "onnxruntime":
            if with_onnx:
                sides[name, precision] = onnx_side(work / "export", precision, args.max_length)
        elif name == "sentence-transformers":
            sides[name, precision] = st_side(*common, args.st_batch_size)
        elif precision != "int8" or args.device == "cpu":
            sides[name, precision] = csekit_side(*common)
    return sides


def read_texts(source: str, count: int) -> tuple[str, list[str]]:
    """Return the name and the first ``count`` distinct texts of FILE or FILE:COLUMN."""
    path, _, column = source.partition(":")
    texts: dict[str, None] = {}
    for batch in text_column(Path(path), column or None).batches():
        texts |= dict.fromkeys(text for text in batch if text.strip())
        if len(texts) >= count:
            break
    return Path(path).name, list(islice(texts, count))


def timed(encode: Encode, texts: list[str], device: str) -> tuple[float, float]:
    """Wall seconds and CPU seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    clock, processor = time.perf_counter(), time.process_time()
    encode(texts)  # ends with the embeddings in main memory
    return time.perf_counter() - clock, time.process_time() - processor


def in_turn(
    sides: dict[tuple[str, str], Encode], texts: list[str], repetitions: int, device: str
) -> list[dict[str, Any]]:
    """Run every side over the texts in turn; the others are compared with the first."""
    found = {side: encode(texts) for side, encode in sides.items()}  # and warm
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(repetitions):
        for side, encode in sides.items():
            seconds[side].append(timed(encode, texts, device))
    reference = found[next(iter(sides))]
    rows = []
    for (name, precision), values in seconds.items():
        base = seconds[
            ("sentence-transformers", precision if ("sentence-transformers", precision) in sides else "fp32")
        ]
        faster = [[b[k] / v[k] for b, v in zip(base, values, strict=True)] for k in (0, 1)]
        best = seconds[("sentence-transformers", "bf16" if ("sentence-transformers", "bf16") in sides else "fp32")]
        graph = seconds.get(("onnxruntime", precision))
        rows.append(
            {
                "side": name,
                "precision": precision,
                "sentences_per_second": len(texts) / statistics.median(v[0] for v in values),
                "cpu_seconds": statistics.median(v[1] for v in values),
                "speedup": statistics.median(faster[0]),
                "cpu_speedup": statistics.median(faster[1]),
                "speedup_over_peers_bf16": statistics.median(b[0] / v[0] for b, v in zip(best, values, strict=True)),
                "speedup_over_onnxruntime": graph
                and statistics.median(b[0] / v[0] for b, v in zip(graph, values, strict=True)),
                "least_cosine": float(_cosines(found[(name, precision)], reference).min()),
                "all_seconds": [list(v) for v in values],
            }
        )
    return rows


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def scores(path: str, data_dir: str, device: str) -> list[dict[str, Any]]:
    """Score an encoder on STS-B dev at each precision."""
    pairs, rows = load_stsb_dev(data_dir), []
    for precision in PRECISIONS if device == "cpu" else PRECISIONS[:-1]:
        encoder = load_encoder(path, device=device)
        encoder.precision = precision
        rows.append({"precision": precision, "spearman": evaluate_pairs(encoder, pairs)["spearman"]})
    return rows


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="a plain encoder")
    parser.add_argument("--texts", required=True, nargs="+", help="FILE, or FILE:COLUMN")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/benchmarks/NAME.json"
    )
    parser.add_argument("--poolings", nargs="+", choices=POOLINGS, default=list(POOLINGS))
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences from each file")
    parser.add_argument("--max_length", type=int, default=256, help="length limit in tokens")
    parser.add_argument("--st_batch_size", type=int, default=32, help="batch size of sentence-transformers")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--scored", help="sentence encoder to score on STS-B dev at each precision")
    parser.add_argument("--data_dir", help="folder with SentEval's layout, for --scored")
    args = parser.parse_args(argv)
    if (args.scored is None) != (args.data_dir is None):
        parser.error("--scored and --data_dir go together")
    for name in ("sentences", "repetitions", "threads", "st_batch_size"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = read_arguments(argv)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    try:
        sets = [read_texts(source, args.sentences) for source in args.texts]
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    rows = []
    for pooling in args.poolings:
        with tempfile.TemporaryDirectory() as work:
            sides = make_sides(args, pooling, Path(work))
        for corpus, texts in sets:
            found = in_turn(sides, texts, args.repetitions, args.device)
            rows += [{"texts": corpus, "sentences": len(texts), "pooling": pooling, **row} for row in found]
            for row in found:
                print(
                    f"{corpus:24}{pooling:6}{row['side']:24}{row['precision']:6}{row['sentences_per_second']:>9.0f}/s"
                    f"{row['speedup']:>7.2f}{row['cpu_speedup']:>7.2f}{row['least_cosine']:>10.5f}",
                    flush=True,
                )
    sts = scores(args.scored, args.data_dir, args.device) if args.scored else []
    run = {"benchmark": "encode", "backbone": Path(args.model_name_or_path).name, "cores": os.cpu_count()}
    run |= {name: getattr(args, name) for name in ("device", "threads", "repetitions", "max_length", "st_batch_size")}
    write_results(
        args.output, {"run": run, "rows": rows, "stsb_dev": sts, "environment": environment()}, overwrite=True
    )


if __name__ == "__main__":
    main()
