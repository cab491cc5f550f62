"""The agreement of the label-free criteria with STS-B dev in our own runs."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from csekit.evaluation.correlation import spearman
from csekit.evaluation.results import read_results

#: Criterion to the sign with which "greater is better".
CRITERIA = {"alignment": -1.0, "uniformity": -1.0, "effective_rank": 1.0}
DEV = "stsb_spearman"


def histories(results_dir: str | Path) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Return corpus and evaluations of each run below ``results_dir`` with at least 4 of STS-B dev and of all
    criteria."""
    for path in sorted(Path(results_dir).rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        dev = content.get("dev") if isinstance(content, dict) else None
        history = dev.get("history", []) if isinstance(dev, dict) else []
        complete = [row for row in history if all(row.get(name) is not None for name in (DEV, *CRITERIA))]
        if len(complete) >= 4:
            yield (content.get("corpus") or {}).get("name", "unnamed text"), complete


def agreement(results_dir: str | Path) -> dict[str, Any]:
    """Return each criterion's rank correlation with STS-B dev, and the points lost by selecting with it.

    Returns:
        ``runs``; ``corpora``, name to the number of its runs; per criterion ``within`` (mean Spearman over the
        checkpoints of a run), ``across`` (Spearman over the last checkpoints of all runs), ``regret`` (mean points of
        STS-B dev between the best checkpoint of a run and the one that the criterion chooses); ``last_regret`` for
        keeping the last checkpoint.
    """
    found = list(histories(results_dir))
    runs = [run for _, run in found]
    columns = [{name: np.array([row[name] for row in run], dtype=float) for name in (DEV, *CRITERIA)} for run in runs]
    corpora = Counter(name for name, _ in found)
    result: dict[str, Any] = {"runs": len(runs), "corpora": dict(corpora.most_common()), "criteria": {}}
    if not runs:
        return result
    last_dev = np.array([run[DEV][-1] for run in columns])
    for name, sign in CRITERIA.items():
        within = [spearman(sign * run[name], run[DEV]) for run in columns if np.ptp(run[DEV]) and np.ptp(run[name])]
        chosen = [run[DEV].max() - run[DEV][int(np.argmax(sign * run[name]))] for run in columns]
        last = np.array([sign * run[name][-1] for run in columns])
        result["criteria"][name] = {
            "within": float(np.mean(within)) if within else None,
            "across": float(spearman(last, last_dev)) if np.ptp(last) and np.ptp(last_dev) else None,
            "regret": float(np.mean(chosen)),
        }
    result["last_regret"] = float(np.mean([run[DEV].max() - run[DEV][-1] for run in columns]))
    return result


def selection_table(results_dir: str | Path) -> str:
    """Return the agreement as a Markdown table. Correlations have the sign that makes +1 perfect agreement."""
    found = agreement(results_dir)
    if not found["runs"]:
        raise ValueError(f"{results_dir}: no run that logged STS-B dev and the label-free criteria")

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    corpora = ", ".join(f"{count} on {name}" for name, count in found["corpora"].items())
    lines = [
        f"Over {found['runs']} runs: {corpora}. Correlations are Spearman's with STS-B dev, signed "
        "so that +1 means that the criterion orders checkpoints as STS-B dev does.",
        "",
        "| select by | within a run | across runs | lost on STS-B dev, points |",
        "|---|---:|---:|---:|",
    ]
    for name, row in found["criteria"].items():
        lines.append(f"| `{name}` | {cell(row['within'])} | {cell(row['across'])} | {cell(row['regret'])} |")
    lines.append(f"| the last checkpoint | | | {cell(found['last_regret'])} |")
    return "\n".join(lines)


def dev_precision_table(results_dir: str | Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: what the dev score in float32 and in bf16 chooses, for each file of
    ``experiments.dev_precision``.

    Raises:
        ValueError: there is no such file.
    """
    body = []
    for path in sorted((Path(results_dir) / "dev-precision").glob("*.json")):
        content = read_results(path)
        run, rows = content["run"], content["checkpoints"]
        chosen = {side: max(rows, key=lambda row, side=side: row[side]) for side in ("fp32", "bf16")}  # type: ignore[misc]
        apart = max(abs(row["fp32"] - row["bf16"]) for row in rows)
        cells = [f"{chosen[side]['step']} ({chosen[side]['fp32']:.2f})" for side in ("fp32", "bf16")]
        body.append([f"{run['backbone']}, {run['max_steps']} steps", str(len(rows)), *cells, f"{apart:.3f}"])
    if not body:
        raise ValueError(f"{results_dir}: no results of experiments.dev_precision")
    caption = (
        "SimCSE in bf16: the step whose STS-B dev is best, and its score in float32 (Spearman × 100). Largest "
        "difference: of a checkpoint's two scores."
    )
    return caption, ["", "checkpoints", "by float32", "by bf16", "largest difference"], body


def half_states_table(results_dir: str | Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: STS-B dev during SimCSE's bf16 training, with float32 states between the layers
    (the field's record of the seed) and with 16-bit ones, for each file ``half-states/seed=N.json``.

    Raises:
        ValueError: there is no such file, or the two trainings of a seed differ in more than the code.
    """
    body, apart, backbone = [], 0.0, ""
    steps: list[int] = []
    for path in sorted((Path(results_dir) / "half-states").glob("seed=*.json")):
        after, before = read_results(path), read_results(Path(results_dir) / "field" / "simcse" / path.name)
        if any(after[key] != before[key] for key in ("arguments", "corpus", "config")):
            raise ValueError(f"{path}: other arguments, corpus or config than the field's record")
        curves = [[row["stsb_spearman"] for row in each["dev"]["history"]] for each in (before, after)]
        apart = max(apart, *(abs(one - other) for one, other in zip(*curves, strict=True)))
        steps, backbone = [row["step"] for row in after["dev"]["history"]], after["backbone"]
        for name, curve in zip(("float32", "16 bits"), curves, strict=True):
            body.append([str(after["seed"]), name, *(f"{value:.2f}" for value in curve)])
    if not body:
        raise ValueError(f"{results_dir}: no results of trainings with 16-bit states")
    caption = (
        f"STS-B dev (Spearman × 100) by step of SimCSE's training in bf16 on {backbone}, stand-in Wikipedia corpus, "
        f"by the states between the layers. Largest difference: {apart:.3f}."
    )
    return caption, ["seed", "states", *map(str, steps)], body
