"""Tables of retrieval scores and of the time of an evaluation.

They read the files that ``experiments/score_retrieval.py`` and ``benchmarks/evaluation.py`` write.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results

_MISSING = "–"


def retrieval_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: a row for each results file, the lowest recall@1 on STS-B's 194 queries first.

    Arguments:
        results_dir: holds ``evaluation/retrieval``.

    Raises:
        FileNotFoundError: nothing was measured.
    """
    folder = results_dir / "evaluation" / "retrieval"
    if not any(folder.glob("*.json")):
        raise FileNotFoundError(f"{folder}: holds no results of experiments/score_retrieval.py")
    files = [read_results(path) for path in sorted(folder.glob("*.json"))]
    names = list(dict.fromkeys(name for file in files for name in file["retrieval"]))
    stsb = sorted((name for name in names if name.startswith("STS-B")), key=len)  # 97 queries before 194
    others = [name for name in names if name not in stsb]
    head = ["", *(f"{name}: R@1 / 5 / 10" for name in stsb)]
    for name in others:
        head += [f"{name}: nDCG@10", "MRR@10", "R@10", "R@100"]
    intents = any("classification" in file for file in files)
    head += ["Banking77: accuracy"] if intents else []
    files.sort(key=lambda file: file["retrieval"][stsb[-1]]["metrics"]["recall@1"])
    body = []
    for file in files:
        cells = [file["title"]]
        cells += [" / ".join(_metric(file, name, f"recall@{k}") for k in (1, 5, 10)) for name in stsb]
        for name in others:
            cells += [_metric(file, name, metric) for metric in ("ndcg@10", "mrr@10", "recall@10", "recall@100")]
        body.append(cells + ([_accuracy(file)] if intents else []))
    return _caption(files, [*stsb, *others]), head, body


def _metric(file: Mapping[str, Any], name: str, metric: str) -> str:
    scores = file["retrieval"].get(name)
    return _MISSING if scores is None else f"{scores['metrics'][metric]:.2f}"


def _accuracy(file: Mapping[str, Any]) -> str:
    scores = file.get("classification", {}).get("banking77")
    return _MISSING if scores is None else f"{scores['accuracy']:.2f}"


def _caption(files: list[dict[str, Any]], names: list[str]) -> str:
    sizes = []
    for name in names:
        scores = next(file["retrieval"][name] for file in files if name in file["retrieval"])
        sizes.append(
            f"{name} among {scores['documents']:,} sentences"
            if name.startswith("STS-B")
            else f"{name}: {scores['queries']:,} queries, {scores['documents']:,} documents"
        )
    caption = f"× 100; R@k is recall among the first k. {'; '.join(sizes)}."
    rows = [file["classification"]["banking77"] for file in files if "classification" in file]
    if rows:
        caption += (
            f" Banking77: mean accuracy of {len(rows[0]['experiments'])} classifiers on {rows[0]['n']:,} questions."
        )
    return caption


def speed_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: seconds to evaluate the STS sets, relative to the first row.

    Arguments:
        results: content of ``experiments/results/speed/NAME.json``.
    """
    run, rows = results["run"], results["sides"]
    body = []
    for row in rows:
        cells = [row["title"], f"{row['seconds']:.1f}", f"{row['time_ratio']:.2f} ×"]
        body.append([*cells, f"{row['cpu_seconds']:.1f}", f"{row['cpu_ratio']:.2f} ×"])
    where = results["environment"]["device"] if run["device"] == "cuda" else f"CPU threads: {run['threads']}"
    sets, cut, rounds = len(run["tasks"]), results["largest_difference"], run["repetitions"]
    how = f"median of {rounds} runs, taken in turn; ratios: median within the turns" if rounds > 1 else "one run each"
    caption = (
        f"{sets} STS sets, {run['sentences']:,} sentences of which {run['distinct']:,} differ, encoder "
        f"{run['encoder']}, {run['precision']}, batches of {run['batch_size']}, {where}, mteb {results['mteb']}: "
        f"{how}. Scores (× 100) differ by {cut:.4f} at most."
    )
    return caption, ["", "seconds", "time", "CPU seconds", "CPU time"], body
