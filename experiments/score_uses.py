"""Score encoders on several uses: the STS sets by length, transfer tasks, search, intents, and their geometry.

    python -m experiments.score_uses simcse=runs/simcse untrained=my-encoder --pooling cls --data_dir data \
        --results_dir experiments/results/uses

Every encoder gets a results file of its own, ``NAME.json``; one that has a file is left out, so that the same command
continues after a kill. A file of another encoder, or of other settings, is refused. ``--data_dir`` has SentEval's
folders in ``senteval/``, SciFact in BEIR's format in ``scifact/``, and ``banking77/``.
``python -m experiments.tables`` makes the table ``uses`` of the files.

Lengths: the pairs of each STS set are cut into thirds by the mean number of words of a pair, and into thirds by the
difference between its two numbers of words. A third's score is Spearman × 100, averaged over the seven sets.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers.utils import logging

from csekit.encoding import TextEncoder, environment, load_encoder
from csekit.evaluation import evaluate_sts, load_sts
from csekit.evaluation.correlation import spearman
from csekit.evaluation.geometry_scores import GeometryOptions, measure_geometry
from csekit.evaluation.mteb_adapter import banking77
from csekit.evaluation.results import read_results, write_results
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import Collection, CollectionGroup, load_beir
from csekit.evaluation.sts_data import STS_TASKS, STSTask
from csekit.evaluation.transfer import evaluate_transfer
from csekit.evaluation.transfer_data import TransferTask, load_transfer
from experiments.encoders import origin

PARTS = 3


def words_of(task: STSTask) -> np.ndarray:
    """Return the numbers of words of the two texts of all pairs of a set, (P, 2)."""
    texts = [(a, b) for pairs in task.subsets for a, b in zip(pairs.sentences1, pairs.sentences2, strict=True)]
    return np.array([[len(text.split()) for text in pair] for pair in texts])


def parts_by(values: np.ndarray, cosines: np.ndarray, gold: np.ndarray) -> list[float]:
    """Return Spearman × 100 of the pairs in each third by ``values``, ascending; equal values in the file's order."""
    order = np.argsort(values, kind="stable")
    return [100 * spearman(cosines[part], gold[part]) for part in np.array_split(order, PARTS)]


def by_length(
    tasks: Sequence[STSTask], similarities: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, list[float]]:
    """Return the mean over the sets of each third's score, by ``length`` and by ``difference``."""
    found: dict[str, list[list[float]]] = {"length": [], "difference": []}
    for task in tasks:
        words, (cosines, gold) = words_of(task), similarities[task.name]
        found["length"].append(parts_by(words.sum(1), cosines, gold))
        found["difference"].append(parts_by(np.abs(words[:, 0] - words[:, 1]), cosines, gold))
    return {name: np.mean(rows, axis=0).tolist() for name, rows in found.items()}


class Data(NamedTuple):
    """The sets that every encoder is scored on."""

    sts: list[STSTask]
    transfer: list[TransferTask]
    search: Collection | CollectionGroup
    folder: Path


def read_data(folder: Path) -> Data:
    """Read all sets.

    Raises:
        FileNotFoundError, ValueError: as ``load_sts``, ``load_transfer`` and ``load_beir``.
    """
    senteval = folder / "senteval"
    return Data(load_sts(senteval), load_transfer(senteval), load_beir(folder / "scifact"), folder)


def score(encoder: TextEncoder, data: Data) -> dict[str, Any]:
    """Return the scores of an encoder and the seconds of each part."""
    seconds, begun = {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal begun
        seconds[name], begun = round(time.perf_counter() - begun, 1), time.perf_counter()

    sts = evaluate_sts(encoder, data.sts)
    found: dict[str, Any] = {"sts": sts.to_dict(), "lengths": by_length(data.sts, sts.similarities())}
    found["geometry"] = measure_geometry(
        encoder, data.sts[list(STS_TASKS).index("STS-B")], GeometryOptions()
    ).to_dict()
    lap("sts")
    found["banking77"] = banking77(encoder, data.folder).to_dict()
    lap("banking77")
    found["transfer"] = evaluate_transfer(encoder, data.transfer).to_dict()
    lap("transfer")
    found["scifact"] = evaluate_retrieval(encoder, data.search).to_dict()
    lap("scifact")
    return {**found, "seconds": seconds}


def must_match(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare the encoder of a results file with the one to score; its folder may have moved.

    Raises:
        ValueError: other weights or settings.
    """
    settings = [each["encoder"] for each in (found, wanted)]
    changes = [
        f"{name}: {settings[0][name]!r} there, {value!r} now"
        for name, value in settings[1].items()
        if name != "name" and name in settings[0] and settings[0][name] != value
    ]
    changes += ["other weights"] if found["weights"] != wanted["weights"] else []
    if changes:
        raise ValueError(f"{path} is of another encoder ({'; '.join(changes)}): move it away, or choose another name")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.score_uses", description=__doc__.split("\n")[0])
    parser.add_argument("encoders", nargs="+", metavar="NAME=PATH", help="an encoder and the name of its file")
    parser.add_argument("--pooling", help="of encoders whose folder names none")
    parser.add_argument("--max_length", type=int, default=256, help="tokens of a text")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the encoding")
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with senteval/, scifact/, banking77/")
    parser.add_argument("--results_dir", type=Path, required=True, help="folder of the results files")
    parser.add_argument("--device", help="cpu, cuda; the GPU where there is one")
    args = parser.parse_args(argv)
    named = dict(each.partition("=")[::2] for each in args.encoders)
    if not all(named.values()) or len(named) < len(args.encoders):
        parser.error(f"encoders must be different NAME=PATH, got {' '.join(args.encoders)}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        data = read_data(args.data_dir)
        for name, path in named.items():
            target = args.results_dir / f"{name}.json"
            own = None if (Path(path) / "modules.json").is_file() else args.pooling
            encoder = load_encoder(path, pooling=own, max_length=args.max_length, device=args.device)
            encoder.precision = args.precision
            run = {"encoder": encoder.describe(), **origin(path)}
            if target.exists():
                must_match(target, read_results(target)["run"], run)
                print(f"{name}: left out, {target} is there", flush=True)
                continue
            found = score(encoder, data)
            write_results(target, {"run": run, "scores": found, "environment": environment()})
            print(f"{name}: {found['seconds']}", flush=True)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(f"error: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
