"""The audit's gradient table: a measurement on batches of neighbouring sentences beside that on shuffled ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results

Table = tuple[str, list[str], list[list[str]]]

#: Weights of the terms in the earlier measurement, whose file does not name them.
EARLIER_WEIGHTS = {"aux_mlm": 1e-5, "rtd": 0.005, "reconstruction": 0.4, "dcm": 0.8, "icm": 0.2}


def gradients_before_and_after(results_dir: Path) -> Table:
    """Return caption, head and rows: the terms that both files have with the same weight.

    A row before training stands beside one before training, a row of a training beside one of another training: the
    two files have no trained step in common.

    Arguments:
        results_dir: holds ``audit/gradients-neighbours.json`` and ``gradients/mini-wiki.json``.

    Raises:
        ValueError: the files share no term.
        OSError: a file is missing.
    """
    earlier = read_results(results_dir / "audit" / "gradients-neighbours.json")
    later = read_results(results_dir / "gradients" / "mini-wiki.json")
    before = {(row["title"], row["step"] > 0): row for row in earlier["rows"]}
    body = []
    for row in sorted(later["rows"], key=lambda row: row["step"]):
        found = before.get((row["title"], row["step"] > 0))
        if found is None or not all(_same_weight(term, row["weights"]) for term in row["terms"]):
            continue
        body += [_cells(term, found, row) for term in row["terms"] if term in found["terms"]]
    if not body:
        raise ValueError("the results before and after share no term with the same weight")
    run = later["run"]
    caption = (
        f"Gradient of each weighted term in the encoder's weights, median over {run['repetitions']} batches of "
        f"{run['batch_size']} sentences of {run['corpus']}, fp32, before and after the batches were shuffled; "
        "× contrast: relative to the contrastive term."
    )
    return caption, ["", "term", "step", "before", "× contrast", "step", "after", "× contrast"], body


def _same_weight(term: str, weights: Mapping[str, float]) -> bool:
    return term == "contrastive" or weights.get(term) == EARLIER_WEIGHTS.get(term)


def _cells(term: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    cells = [after["title"], term]
    for row in (before, after):
        found = row["terms"][term]
        share = "–" if term == "contrastive" else f"{found['share']:.2g}"
        cells += [f"{row['step']:,}", f"{found['norm']:.2g}", share]
    return cells
