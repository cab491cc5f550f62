"""The targets of speed and memory beside what was measured, from the results files of the benchmarks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from experiments.tables.cells import processor

BACKBONES = ("mini-wiki", "minilm-wiki")
PEER = "sentence-transformers"
#: Steps of training between two evaluations, in the target of selection.
EVERY = 125
_SPACE = "\N{NO-BREAK SPACE}"

#: Returns a measured value, and the precision where the row does not say it; None: the file has none.
Reader = Callable[[Mapping[str, Any]], tuple[float, str] | None]


@dataclass(frozen=True)
class Target:
    """A row: what is measured, in which files (``{}`` is the backbone), and the value to reach.

    Arguments:
        most: the value must not be above ``value``; else not below.
        unit: what follows the number; ``%`` shows a share.
    """

    title: str
    files: str
    read: Reader
    value: float
    unit: str = "×"
    most: bool = False

    def met(self, measured: float) -> bool:
        """Tell whether a value as the table shows it reaches the target."""
        shown = round(measured, 3 if self.unit == "%" else 2)
        return shown <= self.value if self.most else shown >= self.value

    def shown(self, value: float, digits: int = 2) -> str:
        return f"{100 * value:.{max(0, digits - 1)}f}{_SPACE}%" if self.unit == "%" else f"{value:.{digits}f}{_SPACE}×"


def _step(peer: str) -> Reader:
    """Read a step's ratio of ``train_step.py --rows benchmarks/peers.yaml``."""

    def read(results: Mapping[str, Any]) -> tuple[float, str] | None:
        found = [row["time_ratio"] for row in results.get("methods", []) if row["name"] == peer]
        return (found[0], "") if found else None

    return read


def _products(results: Mapping[str, Any]) -> tuple[float, str] | None:
    return results["rows"][0]["share"], results["run"]["precision"]


def _run(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a file's run, if it is of SimCSE with the backbone's own vocabulary and no further settings."""
    run: Mapping[str, Any] = results["run"]
    plain = run.get("task", "simcse") == "simcse" and not run.get("vocabulary") and not run.get("also_with")
    return run if plain else None


def _memory(results: Mapping[str, Any]) -> tuple[float, str] | None:
    run, peers = _run(results), [row for row in results["rows"] if row["name"] == PEER]
    return (1 / peers[0]["memory_ratio"], run["precision"]) if run and peers else None


def _growth(results: Mapping[str, Any]) -> tuple[float, str] | None:
    run = _run(results)
    long = run is not None and run["max_steps"] >= 2000
    return (results["rows"][0]["growth"], results["run"]["precision"]) if long else None


def _selection(results: Mapping[str, Any]) -> tuple[float, str] | None:
    steps = results["rows"]["dev_bf16"]["steps"]
    return steps / (EVERY + steps), ""


def _encoding(precision: str, over: str) -> Reader:
    def read(results: Mapping[str, Any]) -> tuple[float, str] | None:
        first = results["rows"][0]["texts"]
        for row in results["rows"]:
            if (row["side"], row["texts"], row["pooling"], row["precision"]) == ("csekit", first, "cls", precision):
                return row[over], ""
        return None

    return read


_PEERS, _RUNS, _ENCODE = "peers/{}-cpu*.json", "benchmarks/runs-{}-*cpu*.json", "benchmarks/encode-{}-cpu*.json"
TARGETS = (
    Target("training step, bf16, × sentence-transformers", _PEERS, _step("st-bf16"), 2.0),
    Target("training step, fp32, × sentence-transformers", _PEERS, _step("st-fp32"), 1.7),
    Target("InfoCSE's step, × its naive form", _PEERS, _step("infocse-naive"), 2.0),
    Target("DiffCSE's step, × its naive form", _PEERS, _step("diffcse-naive"), 2.0),
    Target("encoder forward and backward: share of matrix products", "roofline/{}-cpu*.json", _products, 0.7, "%"),
    Target("peak memory of a run, beside sentence-transformers'", _RUNS, _memory, 0.8, most=True),
    Target("memory of a 2,000-step run, last quarter beside second", _RUNS, _growth, 1.03, most=True),
    Target(
        "STS-B dev every 125 steps in bf16, share of the run",
        "benchmarks/selection-{}-cpu-bf16.json",
        _selection,
        0.04,
        "%",
        most=True,
    ),
    Target("encoding, fp32, × sentence-transformers", _ENCODE, _encoding("fp32", "speedup"), 2.5),
    Target("encoding, bf16, × sentence-transformers", _ENCODE, _encoding("bf16", "speedup"), 2.0),
    Target("encoding, int8, × onnxruntime's int8", _ENCODE, _encoding("int8", "speedup_over_onnxruntime"), 1.2),
)


def targets_table(results_dir: Path, targets: Sequence[Target] = TARGETS) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: each target, and what was measured on each backbone and processor."""
    caption = (
        "Ratios of one run each, CPU; bold: the target is met. AMX, AVX-512 (with bfloat16 instructions, without "
        "matrix units), the same of AMD (bfloat16 products twice as fast as float32's) and AVX2 are kinds of "
        "processors. The tables of each benchmark have the settings."
    )
    body = []
    for target in targets:
        sign = "at most" if target.most else "at least"
        digits = 1 if target.unit == "%" else 2
        cells = [target.title, f"{sign} {target.shown(target.value, digits)}"]
        body.append([*cells, *("; ".join(_cells(target, results_dir, each)) or "–" for each in BACKBONES)])
    return caption, ["", "target", *BACKBONES], body


def _cells(target: Target, results_dir: Path, backbone: str) -> Iterator[str]:
    for path in sorted(results_dir.glob(target.files.format(backbone))):
        results = read_results(path)
        found = target.read(results) if results["run"].get("backbone", backbone) == backbone else None
        if found is None:
            continue
        value, precision = found
        mark = "**" if target.met(value) else ""
        where = ", ".join(filter(None, (precision, processor(results["environment"]))))
        yield f"{mark}{target.shown(value)}{mark}" + (f" ({where})" if where else "")
