"""Tables of pre-training runs by step: each run has a column of training loss and one of held-out accuracy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def curves_table(spec: Mapping[str, Any], folder: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each step at which all runs were evaluated, step 0 first.

    Arguments:
        spec: a plan's table, with ``title`` and ``curves``, a list of ``label`` and ``trial``.
        folder: the plan's results.

    Raises:
        FileNotFoundError: a run has no record.
    """
    curves = [(row["label"], _points(_read(folder, row["trial"]))) for row in spec["curves"]]
    steps = sorted(set.intersection(*(set(points) for _, points in curves)))
    head = ["step"]
    for label, _ in curves:
        head += [f"{label}: training loss", "held-out accuracy"]
    body = []
    for step in steps:
        cells = [str(step)]
        for _, points in curves:
            loss, accuracy = points[step]
            cells += ["–" if loss is None else f"{loss:.2f}", f"{100 * accuracy:.1f} %"]
        body.append(cells)
    records = [_read(folder, row["trial"]) for row in spec["curves"]]
    corpora = sorted({f"{r['corpus']['name']} ({r['tokens'] / 1e6:.1f} M tokens)" for r in records})
    caption = (
        f"{spec['title']}, trained on {' and '.join(corpora)}, stand-in Wikipedia corpus, one seed. Training loss: "
        "nats a masked token, mean since the log entry before; held-out accuracy: share of the masked tokens of other "
        "sentences that are predicted."
    )
    return caption, head, body


def _read(folder: Path, trial: str) -> dict[str, Any]:
    path = folder / f"{trial}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such record")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _points(record: Mapping[str, Any]) -> dict[int, tuple[float | None, float]]:
    """Return training loss and held-out accuracy by step. Step 0 has no training loss."""
    losses = {entry["step"]: entry["loss/mlm"] for entry in record["log"]}
    accuracies = {entry["step"]: entry["mlm_accuracy"] for entry in record["heldout"]["history"]}
    accuracies[0] = record["heldout"]["before"]["mlm_accuracy"]
    return {step: (losses.get(step), value) for step, value in accuracies.items()}
