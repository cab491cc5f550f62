"""Measure resident memory while a file is encoded chunk by chunk: it must not grow with the file.

    python benchmarks/encode_memory.py --model_name_or_path bert-base-uncased --texts sentences.txt \
        --output experiments/results/encode-memory/bert-base-uncased.json

The encoder is the model's embeddings without its layers: the memory of texts and embeddings is measured, not that of
matrix products. The file holds the texts `--repeat` times, each line with a number in front.
`python -m experiments.tables` makes the table `encode-memory/NAME`.
"""

import argparse
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from csekit.encoding import encode_file
from csekit.encoding import files as encode_files
from csekit.encoding.encoder import TextEncoder
from csekit.encoding.pooled import PooledBackbone
from csekit.encoding.provenance import environment
from csekit.evaluation.results import write_results


def resident() -> int:
    """Resident bytes of this process now (on Linux; elsewhere its peak)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def make_file(source: Path, target: Path, repeat: int) -> int:
    """Write the lines of ``source`` ``repeat`` times, each with its own number. Returns the number of lines."""
    rows = 0
    with open(target, "w", encoding="utf-8") as out:
        for _ in range(repeat):
            with open(source, encoding="utf-8") as lines:
                for line in lines:
                    out.write(f"{rows} {line.rstrip()}\n")
                    rows += 1
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder checkpoint")
    parser.add_argument("--texts", type=Path, required=True, help="sentences, one a line")
    parser.add_argument(
        "--output", type=Path, required=True, help="results file, experiments/results/encode-memory/NAME.json"
    )
    parser.add_argument("--repeat", type=int, default=1, help="times that the texts are repeated")
    parser.add_argument("--chunk_rows", type=int, default=encode_files.CHUNK_ROWS, help="rows of a chunk")
    args = parser.parse_args(argv)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    backbone = AutoModel.from_pretrained(args.model_name_or_path, num_hidden_layers=0)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    encoder = TextEncoder(PooledBackbone(backbone, "mean"), tokenizer, name=Path(args.model_name_or_path).name)
    before, points = resident(), []
    write_record = encode_files.write_record

    def watch(path: Path, record: dict[str, Any]) -> None:
        write_record(path, record)
        points.append({"rows": record["done"], "resident": resident()})

    encode_files.write_record = watch
    with tempfile.TemporaryDirectory() as folder:
        rows = make_file(args.texts, Path(folder, "texts.txt"), args.repeat)
        encode_file(encoder, Path(folder, "texts.txt"), Path(folder, "out.npy"), chunk_rows=args.chunk_rows)
        sizes = {name: Path(folder, name).stat().st_size for name in ("texts.txt", "out.npy")}
    run = {"benchmark": "encode_memory", "backbone": encoder.name, "corpus": args.texts.name, "rows": rows}
    run |= {"chunk_rows": args.chunk_rows, "input_bytes": sizes["texts.txt"], "output_bytes": sizes["out.npy"]}
    results = {"run": run, "before": before, "points": points, "environment": environment()}
    write_results(args.output, results, overwrite=True)
    for point in points:
        print(f"{point['rows']:>12,} rows {point['resident'] / 2**20:>8.0f} MiB")


if __name__ == "__main__":
    main()
