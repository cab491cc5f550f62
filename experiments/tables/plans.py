"""The table of plans: each plan, the papers' tables that it makes, and how much of it has been run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

Table = tuple[str, list[str], list[list[str]]]


def plans_table(results_dir: Path, plans_dir: Path | None = None) -> Table:
    """Return caption, head and rows; the plans below ``papers/`` come last.

    Arguments:
        results_dir: holds ``PLAN/summary.json``.
        plans_dir: holds the plans, ``experiments/plans`` by default.

    Raises:
        ValueError: a plan has no line ``makes``.
    """
    plans_dir = plans_dir or Path(__file__).parents[1] / "plans"
    body = []
    for path in [*sorted(plans_dir.glob("*.yaml")), *sorted(plans_dir.glob("papers/*.yaml"))]:
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not plan.get("makes"):
            raise ValueError(f"{path}: makes must say which tables the plan makes, got nothing")
        name = path.relative_to(plans_dir).with_suffix("").as_posix()
        folder = str(plan.get("name", path.stem))
        summary = _json(results_dir / folder / "summary.json")
        link = f"[{name}](../experiments/plans/{name}.yaml)"
        device = "GPU" if plan.get("device") == "gpu" else "CPU"
        body.append([link, plan["makes"], device, _state(plan, summary)])
    caption = (
        "The plans in `experiments/plans/`. Those in `papers/` have the papers' own encoders, text, grids and epochs; "
        "the others are small: our own encoder and corpus. Run: experiments of the plan that have results."
    )
    return caption, ["plan", "makes", "device", "run"], body


def _state(plan: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """Say how many of a plan's experiments have results."""
    names = list(plan["experiments"])
    known = (summary or {}).get("experiments", {})
    run = [name for name in names if _has_results(known.get(name) or {})]
    return "no" if not run else "yes" if len(run) == len(names) else f"{len(run)} of {len(names)}"


def _has_results(experiment: Mapping[str, Any]) -> bool:
    if experiment.get("kind") == "scored":
        return len(experiment["finished"]) == len(experiment["transfer"])
    if "trials" in experiment:
        return all(score is not None for score in experiment["trials"].values())
    return bool(experiment.get("finished_seeds"))


def _json(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
