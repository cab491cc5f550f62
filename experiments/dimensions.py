"""Scores by the number of dimensions, of encoders trained for it and of others that are only cut.

    python -m experiments.dimensions "Matryoshka=runs/nested" "cut=runs/plain" --sizes 32 64 128 256 384 \
        --data_dir data --collections scifact --output experiments/results/dimensions/minilm-wiki.json \
        --picture docs/pictures/dimensions.png

STS is the mean of the seven test sets, Spearman × 100, and with ``--tasks`` each set's score; retrieval is nDCG@10 ×
100 of each collection, a folder in ``--data_dir`` in BEIR's format. The table of the results file is printed as
Markdown.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from csekit.encoding import environment, load_encoder
from csekit.evaluation import evaluate_sts, load_sts
from csekit.evaluation.dimensions import cut_encoders
from csekit.evaluation.plotting import COLOURS, LINES, MARKERS, drawing, panels, save_figure
from csekit.evaluation.results import write_results
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import load_beir
from experiments.encoders import origin, sts_columns
from experiments.tables.render import markdown
from experiments.tables.students import dimensions_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "ndcg@10"


def score(
    path: str, sizes: Sequence[int], sts: Any, collections: Mapping[str, Any], device: str | None
) -> dict[str, dict[str, float | None]]:
    """Return the scores of one encoder by task and size."""
    encoder = load_encoder(path, device=device)
    encoder.truncate_dim = None
    found: dict[str, dict[str, float | None]] = {}
    cuts = cut_encoders(encoder, sizes)
    for cut in cuts if sts else ():
        for name, value in sts_columns(evaluate_sts(cut, sts)).items():
            found.setdefault(name, {})[str(cut.truncate_dim)] = value
    for name, collection in collections.items():
        cuts[0].kept.clear()
        for cut in cuts:
            metrics = evaluate_retrieval(cut, collection).metrics
            found.setdefault(f"{name}, nDCG@10", {})[str(cut.truncate_dim)] = round(float(metrics[METRIC]), 4)
    return found


@drawing
def by_size(record: Mapping[str, Any]) -> "Figure":
    """Plot each task's score over the number of dimensions, one line for each encoder."""
    tasks = list(next(iter(record["encoders"].values()))["scores"])
    figure, axes = panels(len(tasks), min(len(tasks), 2), 3.6, 2.8)
    for axis, task in zip(axes, tasks, strict=True):
        for place, (name, encoder) in enumerate(record["encoders"].items()):
            scores = encoder["scores"][task]
            look: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": LINES[place]}
            axis.plot([int(size) for size in scores], list(scores.values()), label=name, **look)
        axis.set_xscale("log", base=2)
        axis.set_xticks(record["sizes"], [str(size) for size in record["sizes"]])
        axis.set_xlabel("dimensions")
        axis.set_ylabel(task)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4))
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.dimensions", description=__doc__.split("\n")[0])
    parser.add_argument("encoders", nargs="+", metavar="NAME=PATH", help="an encoder and its name in the table")
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="numbers of dimensions, ascending")
    parser.add_argument("--data_dir", required=True, help="folder in SentEval's layout")
    parser.add_argument("--tasks", help="STS sets, separated by commas; default: the seven test sets; none: no STS")
    parser.add_argument("--collections", nargs="*", default=[], help="folders in data_dir, in BEIR's format")
    parser.add_argument("--output", type=Path, required=True, help="results file")
    parser.add_argument("--picture", type=Path, help="NAME.png")
    parser.add_argument("--device", help="cpu, cuda; the GPU where there is one")
    args = parser.parse_args(argv)
    named = dict(each.partition("=")[::2] for each in args.encoders)
    if not all(named.values()) or len(named) < len(args.encoders):
        parser.error(f"encoders must be different NAME=PATH, got {' '.join(args.encoders)}")
    if args.sizes != sorted(set(args.sizes)):
        parser.error(f"--sizes must ascend, got {' '.join(map(str, args.sizes))}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        sts = [] if args.tasks == "none" else load_sts(args.data_dir, *([args.tasks.split(",")] if args.tasks else []))
        collections = {name: load_beir(Path(args.data_dir) / name) for name in args.collections}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    encoders: dict[str, Any] = {}
    for name, path in named.items():
        encoders[name] = {"scores": score(path, args.sizes, sts, collections, args.device), **origin(path)}
        print(f"{name}: scored", flush=True)
    record = {"sizes": args.sizes, "encoders": encoders, "environment": environment()}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.output, record, overwrite=True)
    print("\n".join([f"written: {args.output}", *markdown(*dimensions_table(record)[1:])]))
    if args.picture is not None:
        print(f"written: {save_figure(by_size(record), args.picture)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
