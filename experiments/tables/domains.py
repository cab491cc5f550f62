"""Tables of what ways of adapting an encoder do in a domain, from the files of ``experiments.run_domain``."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from experiments.run_domain import read_domain
from experiments.tables.cells import processor

#: The fields of a record in which the runs of a row agree; earlier records lack some.
IDENTITY = ("commands", "helper_commands", "encoder", "score", "metrics", "variables")
DOMAINS = Path(__file__).parents[1] / "domains"


def domain_table(results_dir: Path, name: str) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: a row for each start and way that was run.

    Arguments:
        results_dir: holds ``domains/NAME``, with a file for each run.
        name: a YAML file of ``experiments/domains``, without its ending; its order is that of the rows.

    Raises:
        FileNotFoundError: no such domain, or nothing was run.
        ValueError: the runs of a row differ in more than the seed.
    """
    domain = read_domain(DOMAINS / f"{name}.yaml")
    files = [read_json(path) for path in sorted((results_dir / "domains" / name).glob("*.json"))]
    if not files:
        raise FileNotFoundError(f"{results_dir / 'domains' / name}: holds no results of experiments.run_domain")
    metrics = list(domain["metrics"])
    head = ["start", "way", *metrics, f"{metrics[0]}, less the start's", "processor minutes", "seeds"]
    body = []
    for start in domain["starts"]:
        rows = {way: [f for f in files if (f["start"], f["way"]) == (start, way)] for way in domain["ways"]}
        base = next((runs for way, runs in rows.items() if runs and not domain["ways"][way]["commands"].strip()), [])
        for way, runs in rows.items():
            if not runs:
                continue
            _must_be_alike(runs)
            changed = runs != base and bool(base)
            less = [run["scores"][metrics[0]] - base[0]["scores"][metrics[0]] for run in runs] if changed else []
            body.append(
                [
                    domain["starts"][start]["title"],
                    domain["ways"][way]["title"],
                    *(_spread([run["scores"][metric] for run in runs]) for metric in metrics),
                    _spread(less, "+.2f") if less else "–",
                    _minutes(runs),
                    str(len(runs)),
                ]
            )
    return _caption(domain, files), head, body


def _spread(values: Sequence[float], form: str = ".2f") -> str:
    mean = f"{statistics.fmean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _must_be_alike(runs: Sequence[Mapping[str, Any]]) -> None:
    """Compare the runs of a row with the first one.

    Raises:
        ValueError: they differ in more than the seed, or are several of a way that the seed does not change.
    """
    where = f"{runs[0]['start']}-{runs[0]['way']}"
    for run in runs[1:]:
        other = [name for name in IDENTITY if name in run and name in runs[0] and run[name] != runs[0][name]]
        if other:
            raise ValueError(f"{where}: the runs of a row must have the same {' and '.join(other)}")
        if run["seed"] == runs[0]["seed"]:
            raise ValueError(f"{where}: must have one results file for each seed, got two of seed {run['seed']}")


def _minutes(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean processor minutes on each kind of processor: they differ by half and more."""
    by_kind: dict[str, list[float]] = {}
    for run in runs:
        if run["costs"] is not None:
            minutes = sum(each["cpu_seconds"] for each in _costs(run)) / 60
            by_kind.setdefault(processor(run["environment"]), []).append(minutes)
    found = [f"{statistics.fmean(costs):.1f}" + (f" ({kind})" if kind else "") for kind, costs in by_kind.items()]
    return "; ".join(found) or "–"


def _costs(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the costs of a way's commands and of its helpers."""
    return [each for each in (run["costs"], *run.get("helpers", {}).values()) if each is not None]


def _caption(domain: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> str:
    peak = max((costs["memory"] for file in files for costs in _costs(file)), default=0)
    memory = f" No process took more than {peak / 1e9:.1f} GB." if peak else ""
    kinds = {processor(file["environment"]) for file in files if file["costs"] is not None}
    kind = ""
    if kinds != {""}:
        unnamed = ", without a name if unrecorded" if "" in kinds else ""
        kind = f"; those of each kind of processor have a mean of their own{unnamed}"
    needed = " and of the models that it needs beside the encoder" if domain["helpers"] else ""
    return (
        f"{domain['title']}: scores × 100, mean ± standard deviation where there are several seeds. Processor minutes "
        f"are those of all commands of a way{needed}, on CPU, without the scoring{kind}.{memory}"
    )
