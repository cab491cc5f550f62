"""The audit's gradient table: a measurement on batches of neighbouring sentences beside that on shuffled ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results

Table = tuple[str, list[str], list[list[str]]]

#: Weights of the terms in the earlier measurement, whose file does not name them.
EARLIER_WEIGHTS = {"aux_mlm": 1e-5, "rtd": 0.005, "reconstruction": 0.4, "dcm": 0.8, "icm": 0.2}


def gradients_before_and_after(results_dir: Path) -> Table:
    """Return caption, head and rows: the terms that both files have at the same step with the same weight.

    Arguments:
        results_dir: holds ``audit/gradients-neighbours.json`` and ``gradients/mini-wiki.json``.

    Raises:
        ValueError: the files share no term.
        OSError: a file is missing.
    """
    earlier = read_results(results_dir / "audit" / "gradients-neighbours.json")
    later = read_results(results_dir / "gradients" / "mini-wiki.json")
    before = {(row["title"], row["step"]): row["terms"] for row in earlier["rows"]}
    body = []
    for row in later["rows"]:
        terms = before.get((row["title"], row["step"]), {})
        same = [term for term in row["terms"] if term in terms and _same_weight(term, row["weights"])]
        if same == ["contrastive"] and len(row["terms"]) > 1:
            continue  # the row of another weight
        body += [_cells(row, term, terms[term]) for term in same]
    if not body:
        raise ValueError("the results before and after share no term at the same step with the same weight")
    run = later["run"]
    caption = (
        f"Gradient of each weighted term in the encoder's weights, median over {run['repetitions']} batches of "
        f"{run['batch_size']} sentences of {run['corpus']}, fp32, before and after the batches were shuffled; "
        "× contrast: relative to the contrastive term."
    )
    return caption, ["", "step", "term", "before", "× contrast", "after", "× contrast"], body


def _same_weight(term: str, weights: Mapping[str, float]) -> bool:
    return term == "contrastive" or weights.get(term) == EARLIER_WEIGHTS.get(term)


def _cells(row: Mapping[str, Any], term: str, earlier: Mapping[str, float]) -> list[str]:
    cells = [row["title"], f"{row['step']:,}", term]
    for found in (earlier, row["terms"][term]):
        cells += [f"{found['norm']:.2g}", "–" if term == "contrastive" else f"{found['share']:.2g}"]
    return cells
