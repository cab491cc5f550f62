"""The tables of auxiliary networks that train before they teach: whether one needs the vector, how much of its term
then arrives in the encoder, and what that is worth after short and longer training."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from experiments.summary import spread as mean_and_deviation
from experiments.tables.cells import compact, spread
from experiments.tables.frontdoor import summary_of
from experiments.tables.grids import GAPS

PLAN = "auxiliary-networks"
#: What `benchmarks/term_gradients.py` measured of starts with ``objectives_from``, and of trainings from them.
GRADIENTS = "gradients/minilm-wiki-warm-up.json"
#: Methods of such models: whose network, and the name of its term.
NETWORKS = {"diffcse": ("DiffCSE's discriminator", "rtd"), "infocse": ("InfoCSE's head", "aux_mlm")}
#: The plan whose networks were taught before, and the steps of its joint training that are shown.
TAUGHT, JOINT_STEPS = "teachers", (200, 600)
#: The last steps of the warm-up over which a value is averaged.
STEPS = 100
#: The trials of the plan, in the order of the table: whose network, and what is changed.
ROWS = {
    "rtd-alone/as-published": ("DiffCSE's discriminator", "30 % of the tokens drawn anew"),
    "rtd-alone/masked-0.6": ("DiffCSE's discriminator", "60 %"),
    "rtd-alone/masked-0.9": ("DiffCSE's discriminator", "90 %"),
    "rtd-alone/two-layers": ("DiffCSE's discriminator", "30 %, two layers in place of six"),
    "rtd-alone/pooled-0.6": ("DiffCSE's discriminator", "60 %, reads h in place of z"),
    "mlm-alone/as-published": ("InfoCSE's head", "40 % of the tokens masked"),
    "mlm-alone/masked-0.8": ("InfoCSE's head", "80 %"),
}


def auxiliaries_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each network that was trained.

    Raises:
        FileNotFoundError: nothing has been measured yet.
    """
    found = {label: results_dir / PLAN / f"{label}.json" for label in ROWS}
    records = {label: json.loads(path.read_text(encoding="utf-8")) for label, path in found.items() if path.is_file()}
    if not records:
        raise FileNotFoundError(f"{results_dir / PLAN}: no network has been trained alone")
    head = ["network", "setting", "loss, first steps", "loss", "right", "gap", "gap / loss"]
    body = []
    for label, record in records.items():
        name, log = record["config"]["objectives"][0]["name"], record["objective_warmup"]["log"]
        weight = record["config"]["objectives"][0]["weight"]
        first, last = ([entry[f"loss/{name}"] / weight for entry in part] for part in (log[:10], log[-STEPS:]))
        loss, gap = statistics.fmean(last), [entry[f"metrics/{name}_gap"] for entry in log[-STEPS:]]
        cells = [*ROWS[label], f"{statistics.fmean(first):.3f}", f"{loss:.3f}", _right(name, log[-STEPS:])]
        cells += [f"{statistics.fmean(gap):.4f} ± {_error(gap):.4f}", f"{100 * statistics.fmean(gap) / loss:.1f} %"]
        body.append(cells)
    record = next(iter(records.values()))
    steps, rate = record["objective_warmup"]["steps"], record["objective_warmup"]["learning_rate"]
    caption = (
        f"Auxiliary networks trained alone for {steps} steps of 64 sentences at {rate:g}, on the vectors of the "
        f"unchanged encoder {record['backbone']}, stand-in Wikipedia corpus, seed {record['seed']}. Loss: nats a "
        f"scored token, mean of the last {STEPS} steps, and of the first 10; right: share of the tokens that are "
        "found, the replaced and the kept ones, or of the masked tokens that are predicted; gap: the loss with "
        f"another sentence's vector less that with its own, nats, mean of {STEPS} steps ± its standard error."
    )
    return caption, head, body


def warmup_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: one row for each network, warm-up and step of the training after it.

    Raises:
        ValueError: a row does not know the steps of its warm-up.
        OSError: the file is missing.
    """
    measured = read_results(results_dir / GRADIENTS)
    rows = sorted(measured["rows"], key=lambda row: (row["title"], row["step"], _warmup(row)))
    body = []
    for row in rows:
        network, name = NETWORKS[row["title"]]
        found, metrics = row["terms"][name], {f"metrics/{key}": value for key, value in row["metrics"].items()}
        cells = [network, f"{row['weights'][name]:g}", f"{_warmup(row)}", f"{row['step']}", _right(name, [metrics])]
        cells += [f"{round(metrics[f'metrics/{name}_gap'], 4) + 0.0:.4f}"]
        body.append([*cells, *(compact(found[key]) for key in ("share", "adam_share", "mean_cosine"))])
    run = measured["run"]
    caption = (
        "Gap and gradient against the warm-up of the objectives, backbone minilm-wiki, stand-in Wikipedia corpus, "
        f"seed {run['seed']}. Warm-up: steps in which the network alone trains; then: steps of the training after it. "
        f"All numbers are of {run['repetitions']} shuffled batches of {run['batch_size']} sentences, fp32. Right: "
        "share of the tokens that are found, the replaced and the kept ones, or of the masked tokens that are "
        "predicted; gap: the loss with another sentence's vector less that with its own, nats a token; share: norm of "
        "the weighted term's gradient in the encoder's weights relative to the contrast's, median; after Adam: of the "
        "mean gradient as Adam scales it; cosine: between the mean gradients of term and contrast."
    )
    return caption, ["network", "weight", "warm-up", "then", "right", "gap", "share", "after Adam", "cosine"], body


def steps_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: STS-B dev of the plan ``teachers`` at two steps of the joint training, less that
    of the baseline with the same seed, and the gap there.

    Raises:
        ValueError: a run has no dev score at one of the steps.
        OSError: the plan has not run.
    """
    summary = summary_of(results_dir, TAUGHT)
    base, body = summary["baseline"], []
    rows = {name: each for name, each in summary["experiments"].items() if each["kind"] == "selected"}
    runs = {name: _by_seed(results_dir / TAUGHT / name, each["finished_seeds"]) for name, each in rows.items()}
    for name, row in rows.items():
        cells, gaps = [], []
        for step in JOINT_STEPS:
            own = {seed: _dev_at(run, step) for seed, run in runs[name].items()}
            cells.append(spread(mean_and_deviation(list(own.values()))))
            less = [score - _dev_at(runs[base][seed], step) for seed, score in own.items()]
            cells.append("" if name == base else spread(mean_and_deviation(less), sign=True))
            found = [_gap_at(run, step) for run in runs[name].values()]
            gaps.append("" if None in found else f"{statistics.fmean(gap for gap in found if gap is not None):.2f}")
        body.append([row["title"], *cells, *gaps])
    caption = (
        f"STS-B dev (Spearman × 100) after {' and '.join(map(str, JOINT_STEPS))} steps of the joint training, "
        "backbone minilm-wiki, stand-in Wikipedia corpus; mean ± standard deviation over the seeds "
        f"{', '.join(map(str, runs[base]))}. Less: {rows[base]['title']}, with the same seed at the same step. Gap: "
        "the loss with another sentence's vector less that with its own, nats."
    )
    head = [f"{what} {step}" for step in JOINT_STEPS for what in ("dev at", "less, at")]
    return caption, ["", *head, *(f"gap at {step}" for step in JOINT_STEPS)], body


def _by_seed(folder: Path, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
    return {seed: json.loads((folder / f"seed={seed}.json").read_text(encoding="utf-8")) for seed in seeds}


def _dev_at(run: Mapping[str, Any], step: int) -> float:
    found = [row["stsb_spearman"] for row in run["dev"]["history"] if row["step"] == step]
    if not found:
        raise ValueError(f"{TAUGHT}: {run['name']} has no dev score at step {step}")
    return float(found[0])


def _gap_at(run: Mapping[str, Any], step: int) -> float | None:
    """Return the gap that was logged last up to a step, None where the run has no such network."""
    found = [entry[name] for entry in run["log"] for name in GAPS if entry["step"] <= step and name in entry]
    return found[-1] if found else None


def _warmup(row: Mapping[str, Any]) -> int:
    steps = row["settings"].get("objective_warmup_steps", 0)
    if steps is None:
        raise ValueError(f"{GRADIENTS}: a row of {row['title']} does not know the steps of its warm-up")
    return int(steps)


def _right(name: str, log: Sequence[Mapping[str, Any]]) -> str:
    kinds = [key for key in log[0] if key.startswith(f"metrics/{name}_accuracy")]
    shares = {key: statistics.fmean(entry[key] for entry in log) for key in sorted(kinds, reverse=True)}
    return ", ".join(f"{100 * share:.0f} %" for share in shares.values())


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
