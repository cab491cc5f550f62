"""Tables of the torture suite's outcomes and of what the checks of a run cost."""

from collections.abc import Mapping
from typing import Any

_OUTCOMES = ("held", "told in one line", "traceback", "silently wrong", "lost")
_PARTS = {
    "checkpoint": "write a checkpoint, its manifest included",
    "manifest": "of this, the manifest",
    "verification": "verify a checkpoint on resume",
    "export with its check": "save the run and export, the check included",
    "check of the export": "of this, the check: load the encoder and score the dev set",
    "dev score": "a dev score in training, for comparison",
}


def torture_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: how often each trial was made, and how it ended.

    Arguments:
        results: content of ``experiments/results/torture/NAME.json``.
    """
    rows = dict(results["rows"])
    rows["all"] = {name: sum(row[name] for row in rows.values()) for name in ("tried", *_OUTCOMES)}
    body = [[name, *(f"{row[outcome]:,}" for outcome in ("tried", *_OUTCOMES))] for name, row in rows.items()]
    tried = sum(row["tried"] for name, row in results["rows"].items() if name.startswith("fuzz"))
    what = f"{results['kills']:,} processes were killed, {tried:,} inputs and options tried"
    caption = f"Outcomes of {results['minutes']:.0f} minutes of the torture suite with seed {results['seed']}: {what}."
    return caption, ["", "tried", *_OUTCOMES], body


def safety_table(results: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: processor seconds of each check; those by the clock depend on other programs.

    Arguments:
        results: content of ``experiments/results/safety/NAME.json``.
    """
    seconds = results["seconds"]
    body = [[title, f"{seconds[name]['cpu']:.2f}"] for name, title in _PARTS.items()]
    what = f"backbone {results['run']['backbone']}, a checkpoint of {results['checkpoint_bytes'] / 1e6:.0f} MB"
    caption = f"Seconds of the processor, {what}; the fastest repetition."
    return caption, ["", "seconds"], body
