"""Retrieval and Banking77 scores of one encoder, printed and written as a results file.

    python -m experiments.score_retrieval runs/my-encoder --data_dir data --collections scifact --banking77 \
        --title "my encoder" --output experiments/results/evaluation/retrieval/my-encoder.json

STS-B retrieval needs SentEval's folders below `--data_dir`; `--collections` names folders in it in BEIR's format;
`--banking77` reads its folder `banking77/` and needs mteb. `python -m experiments.tables` makes the table
`evaluation/retrieval` of all files in `experiments/results/evaluation/retrieval/`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from transformers.utils import logging

from csekit.encoding import checksum, environment, load_encoder
from csekit.evaluation import write_results
from csekit.evaluation.mteb_adapter import banking77
from csekit.evaluation.retrieval import load_retrieval, retrieval_suite


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or a name on the Hub")
    parser.add_argument("--pooling", help="for plain encoders: cls, mean, first_last_mean, top2_mean")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--collections", nargs="*", default=[], help="folders in data_dir, in BEIR's format")
    parser.add_argument("--banking77", action="store_true", help="Banking77 by mteb's classification protocol, too")
    parser.add_argument("--title", help="of the table's row; the encoder's name by default")
    parser.add_argument("--output", type=Path, required=True, help="NAME.json")
    parser.add_argument("--device", help="cpu, cuda; the GPU where there is one")
    args = parser.parse_args(argv)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        encoder = load_encoder(args.model, pooling=args.pooling, device=args.device)
        started = time.perf_counter()
        scores = retrieval_suite(encoder, load_retrieval(args.data_dir, collections=args.collections))
        intents = banking77(encoder, args.data_dir) if args.banking77 else None
        seconds = time.perf_counter() - started
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(f"error: {error}") from None
    head, rows = scores.table()
    for cells in [head, *rows]:
        print("".join(cell.rjust(24 if i == 0 else 11) for i, cell in enumerate(cells)))
    weights = sorted(Path(args.model).glob("*.safetensors"))
    results: dict[str, Any] = {
        "run": {"encoder": encoder.describe(), "weights": {file.name: checksum(file) for file in weights}},
        "name": encoder.name,
        "title": args.title or encoder.name,
        "retrieval": scores.to_dict(),
        "environment": environment(),
        "seconds": {"total": round(seconds, 1)},
    }
    if intents is not None:
        print(f"Banking77, accuracy x100: {intents.accuracy:.2f}")
        results["classification"] = {"banking77": intents.to_dict()}
    print(f"written: {write_results(args.output, results, overwrite=True)}")


if __name__ == "__main__":
    main()
