"""The starts of ``backbone`` and ``backbone-gpu``: a masked LM, trained on, and what each method makes of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLANS = ("backbone", "backbone-gpu")
#: The rows of the plan that stand for a method, to the method's name.
METHODS = {
    "simcse": "SimCSE",
    "simcse-batchnorm": "SimCSE, batchnorm projector",
    "infocse": "InfoCSE",
    "diffcse": "DiffCSE",
}
#: The poolings that an untrained start is scored by.
POOLINGS = {"cls": "[CLS]", "mean": "mean pooling"}


@dataclass(frozen=True)
class Start:
    """One start.

    Arguments:
        backbone: the first start.
        steps: steps of the masked LM since then.
        loss: nats a masked token of held-out text.
        accuracy: share of the masked tokens that are predicted.
        untrained: STS-B dev before training, by pooling; what was not scored is left out.
        untrained_test: Avg of the seven test sets before training, in the same form.
        dev: STS-B dev of each trained row, as ``summary.spread`` gives it, by the names in ``METHODS``.
        test: Avg of the seven test sets of each row, in the same form.
    """

    backbone: str
    steps: int
    loss: float
    accuracy: float
    untrained: dict[str, float]
    untrained_test: dict[str, float]
    dev: dict[str, Mapping[str, Any]]
    test: dict[str, Mapping[str, Any]]


def read_starts(results_dir: Path, plan: str = PLANS[0]) -> list[Start]:
    """Return the starts that have been trained, the first one before any further step.

    Raises:
        FileNotFoundError: the plan has no summary yet, or no start was trained on.
    """
    folder = results_dir / plan
    experiments = _json(folder / "summary.json")["experiments"]
    records: list[dict[str, Any]] = []
    while (path := folder / f"continued-{len(records) + 1}" / f"mlm-{len(records) + 1}.json").is_file():
        records.append(_json(path))
    if not records:
        raise FileNotFoundError(f"{folder / 'continued-1' / 'mlm-1.json'}: no such record")
    scores = [records[0]["heldout"]["before"], *(record["heldout"]["after"] for record in records)]
    starts, steps = [], 0
    for place, heldout in enumerate(scores):
        steps += records[place - 1]["steps"] if place else 0
        rows = {name: experiments.get(f"{name}-{place}" if place else name, {}) for name in METHODS}
        dev = {name: row["dev"] for name, row in rows.items() if row.get("dev")}
        test = {name: row["test"]["Avg"] for name, row in rows.items() if row.get("test")}
        found = _untrained(folder, place)
        first = {pooling: float(each["dev"]["tasks"]["STS-B-dev"]["all"]) for pooling, each in found.items()}
        tests = {pooling: float(each["test"]["avg"]) for pooling, each in found.items() if each.get("test")}
        scored = heldout["mlm"], heldout["mlm_accuracy"], first, tests
        starts.append(Start(Path(str(records[0]["backbone"])).name, steps, *scored, dev, test))
    return starts


def _untrained(folder: Path, place: int) -> dict[str, dict[str, Any]]:
    """Return the records of an untrained start, by pooling."""
    found = {}
    for pooling in POOLINGS:
        path = folder / (
            f"untrained-{pooling}/continued-{place}.mlm-{place}.json" if place else f"as-is-{pooling}/start.json"
        )
        if path.is_file():
            found[pooling] = _json(path)
    return found


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
