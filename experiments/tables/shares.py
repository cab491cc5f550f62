"""How much of each auxiliary term arrives in the encoder, beside what it brought: gradient shares, gap and margin."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from experiments.records import load
from experiments.tables.cells import compact, spread
from experiments.tables.frontdoor import summary_of
from experiments.tables.grids import late

_PLAN, _GRADIENTS = "equal-terms-minilm", "gradients/minilm-wiki.json"


def shares_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one for each term beside the contrast and step that was measured.

    Arguments:
        results_dir: holds ``gradients/minilm-wiki.json`` and the plan ``equal-terms-minilm``, whose row of the same
            method, or of SimCSE with the same term, gives gap and margin.

    Raises:
        ValueError: the plan has no such row.
        OSError: a file is missing.
    """
    measured, summary = read_results(results_dir / _GRADIENTS), summary_of(results_dir, _PLAN)
    experiments, margins = summary["experiments"], summary["margins"]["rows"]
    body = []
    for row in sorted(measured["rows"], key=lambda row: (_row_name(row), row["step"])):
        name = _row_name(row)
        if name not in experiments or not margins.get(name):
            raise ValueError(f"plan {_PLAN} must have a margin of {name!r}")
        base, margin = next(iter(margins[name].items()))
        for term, found in row["terms"].items():
            if term != "contrastive":
                gap = _gap(results_dir / _PLAN / name, experiments[name], term)
                shares = [compact(found["share"]), compact(found["adam_share"]), compact(found["mean_cosine"])]
                head = [experiments[name]["title"], term, f"{row['weights'][term]:g}", f"{row['step']:,}", *shares]
                body.append([*head, "" if gap is None else f"{gap:.2f}", _over(margin, experiments[base]["title"])])
    run = measured["run"]
    caption = (
        "Terms beside the contrast, backbone minilm-wiki, stand-in Wikipedia corpus. Share: norm of the weighted "
        f"term's gradient in the encoder's weights relative to the contrast's, median over {run['repetitions']} "
        f"shuffled batches of {run['batch_size']} sentences, fp32; after Adam: of the mean gradient as Adam scales "
        "it; cosine: between the mean gradients of term and contrast. Step 0 is before training. Gap: the loss "
        "of the term's network with another sentence's vector less that with its own at the end of the long runs, "
        "nats a token. Margin: of Avg of the seven STS test sets in the long runs, Spearman × 100."
    )
    return caption, ["", "term", "weight", "step", "share", "after Adam", "cosine", "gap", "margin"], body


def _row_name(row: Mapping[str, Any]) -> str:
    """Return the plan's row of a measured model: its method, or SimCSE with its term."""
    added = [term for term in row["terms"] if term != "contrastive"]
    return f"simcse-{added[0]}" if row["title"] == "simcse" and added else str(row["title"])


def _gap(folder: Path, entry: Mapping[str, Any], term: str) -> float | None:
    """Return the mean of a term's last gaps in a row's long runs; None for a term without a network."""
    records = [load(folder / f"seed={seed}.json") or {} for seed in entry.get("finished_seeds", [])]
    found = [gap for record in records if (gap := late(record.get("log") or [], [f"metrics/{term}_gap"])) is not None]
    return sum(found) / len(found) if found else None


def _over(margin: Mapping[str, Any], base: str) -> str:
    return f"{spread(margin, sign=True)} over {base}"
