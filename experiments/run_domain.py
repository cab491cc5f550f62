"""Follow several ways of adapting an encoder to the texts of a domain, and score it before and after each.

    export MINILM=$PWD/all-MiniLM-L6-v2 BACKBONE=$PWD/my-encoder CSEKIT_DATA=$PWD/data
    python -m experiments.run_domain experiments/domains/scifact.yaml --folder runs/scifact \
        --results_dir experiments/results/domains/scifact --ways none simcse --seeds 42 43 44
    python -m experiments.tables docs/documents.md

The YAML file has ``starts``, each with the environment variables that its commands read (``START``, ``POOLING``),
``ways``, each with ``commands`` for bash and the ``encoder`` that they make, and ``score``, the command that scores
``$ENCODER`` and writes ``$RESULTS``, with the ``metrics`` to take from that file. A run is one way from one start with
one seed. It gets a results file of its own: the commands, their wall time and processor time, the largest resident
memory of a process, and the scores. Runs that have one are left out, so that the same command continues after a kill;
a file of other commands, scoring or variables is refused. Each run has a folder of its own, in which its commands run:
paths in the environment must be absolute. SIGTERM, SIGHUP and Ctrl-C reach the running command as SIGTERM and end the
program with 143. A way that the seed does not change has ``seeds: false`` and runs once, and
one that needs the encoder of another way, ``$NAME_WAY``, runs after it.
``helpers`` are models that a way needs beside its encoder, such as one that writes questions. Each has ``commands``,
run once for all starts and seeds in a folder of its own, ``$NAME_HELPER``; a way names those it needs as ``helpers``,
and its record holds their costs beside its own. ``$REPOSITORY`` is the folder of this repository.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import environment, write_json
from csekit.encoding.yaml_files import read_yaml

REPOSITORY = Path(__file__).parents[1]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KEYS = ("title", "starts", "ways", "score", "metrics")


class Stopped(BaseException):
    """A signal asks this program to end."""


def stop(*_: Any) -> None:
    """End this program, once: further signals have no effect."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


@dataclass(frozen=True)
class Run:
    """One way from one start with one seed."""

    start: str
    way: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.start}-{self.way}-{self.seed}"


def read_domain(path: Path) -> dict[str, Any]:
    """Read the YAML file of a domain.

    Raises:
        ValueError: a field is missing; the message names it.
    """
    domain = read_yaml(path)
    missing = [key for key in KEYS if not domain.get(key)]
    if missing:
        raise ValueError(f"{path}: must have {', '.join(KEYS)}; {', '.join(missing)} is missing")
    helpers = domain.setdefault("helpers", {})
    for name, way in domain["ways"].items():
        if not {"title", "commands", "encoder"} <= way.keys():
            raise ValueError(f"{path}: ways.{name} must have title, commands and encoder, got {', '.join(way)}")
        if unknown := [helper for helper in way.get("helpers", ()) if helper not in helpers]:
            raise ValueError(f"{path}: ways.{name}.helpers: {', '.join(unknown)} must be among {', '.join(helpers)}")
    return domain


def runs_of(domain: Mapping[str, Any], starts: Sequence[str], ways: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Return the chosen runs, seed by seed, so that every way has one run before any has two."""
    for chosen, known in ((starts, domain["starts"]), (ways, domain["ways"])):
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(f"{', '.join(unknown)} must be among {', '.join(known)}")
    return [
        Run(start, way, seed)
        for number, seed in enumerate(seeds)
        for start in starts
        for way in ways
        if number == 0 or domain["ways"][way].get("seeds", True)
    ]


def folder_of(domain: Mapping[str, Any], run: Run, root: Path) -> Path:
    """Return the folder of a run's commands; a way that the seed does not change has one for all seeds."""
    seed = str(run.seed) if domain["ways"][run.way].get("seeds", True) else "once"
    return root / run.start / run.way / seed


def results_file(domain: Mapping[str, Any], run: Run, results: Path) -> Path:
    """Return the results file of a run; of a way that the seed does not change, the one that it has for any seed."""
    target = results / f"{run.name}.json"
    if domain["ways"][run.way].get("seeds", True) or target.exists():
        return target
    for path in sorted(results.glob(f"{run.start}-{run.way}-*.json")):
        record = read_json(path)
        if (record["start"], record["way"]) == (run.start, run.way):
            return path
    return target


def identity(domain: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return what makes a run: its commands, the scoring, and the variables as the YAML file has them."""
    variables = {**domain.get("variables", {}), **domain["starts"][run.start].get("variables", {})}
    way = domain["ways"][run.way]
    return {
        "commands": way["commands"].strip(),
        "helper_commands": {name: domain["helpers"][name]["commands"].strip() for name in way.get("helpers", ())},
        "encoder": way["encoder"],
        "score": domain["score"].strip(),
        "metrics": dict(domain["metrics"]),
        "variables": {name: str(value) for name, value in variables.items()},
    }


def must_match(path: Path, record: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare a record with what the YAML file says. Records of earlier versions lack some of the fields.

    Raises:
        ValueError: they differ.
    """
    other = [name for name, value in wanted.items() if name in record and record[name] != value]
    if other:
        raise ValueError(
            f"{path} is of a run with other {' and other '.join(other)}: move it away, or choose another --results_dir"
        )


def measure(text: str, folder: Path, variables: Mapping[str, str], log: Path) -> dict[str, Any]:
    """Run commands in bash, their output in a log; return seconds, processor seconds and memory.

    Raises:
        RuntimeError: a command failed; the message ends with the log's last lines.
        Stopped: a signal came; the commands have got SIGTERM.
    """
    started = time.perf_counter()
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {text}\n")
        file.flush()
        process = subprocess.Popen(
            ["bash", "-e", "-c", text],
            cwd=folder,
            env=dict(variables),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except Stopped:
            os.killpg(process.pid, signal.SIGTERM)  # bash and the command that it runs
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise RuntimeError(f"ended with {process.returncode}, see {log}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "memory": usage.ru_maxrss * unit,
    }


def picked(results: Mapping[str, Any], metrics: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the metrics of a results file, each found by its path of keys."""
    found = {}
    for name, path in metrics.items():
        value: Any = results
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                raise ValueError(f"metric {name!r}: the results have no {key!r}, only {_shown(value)}")
            value = value[key]
        if not isinstance(value, int | float):
            raise ValueError(f"metric {name!r}: must be a number, the results have {value!r}")
        found[name] = round(float(value), 4)
    return found


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, Mapping) else repr(value)


def common_variables(domain: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Return the environment that all commands of a domain have."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    helpers = {f"{as_variable(name)}_HELPER": str(root / "helpers" / name) for name in domain["helpers"]}
    return {**os.environ, **domain.get("variables", {}), **helpers, "PATH": path, "REPOSITORY": str(REPOSITORY)}


def as_variable(name: str) -> str:
    return name.upper().replace("-", "_")


def prepare(domain: Mapping[str, Any], helper: str, root: Path, results: Path) -> dict[str, Any]:
    """Make a helper, or find it made; return its costs."""
    folder, target = root / "helpers" / helper, results / "helpers" / f"{helper}.json"
    text = domain["helpers"][helper]["commands"].strip()
    variables = {name: str(value) for name, value in domain.get("variables", {}).items()}
    made = read_json(target) if folder.exists() and target.exists() else {}
    if made and made["commands"] == text and made.get("variables", variables) == variables:
        return dict(made["costs"])
    print(f"helper {helper}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    costs = measure(text, folder, common_variables(domain, root), folder / "log.txt")
    record = {"schema": 1, "title": domain["helpers"][helper]["title"], "commands": text, "costs": costs}
    write_json(target, record | {"variables": variables, "environment": environment()})
    return costs


def follow(domain: Mapping[str, Any], run: Run, root: Path, target: Path) -> dict[str, Any]:
    """Run the commands of a way and score its encoder; return the record."""
    way, start = domain["ways"][run.way], domain["starts"][run.start]
    folder = folder_of(domain, run, root)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    helpers = {name: prepare(domain, name, root, target) for name in way.get("helpers", ())}
    given = {name: os.path.expandvars(str(value)) for name, value in start.get("variables", {}).items()}
    others = {
        f"{as_variable(name)}_WAY": str(folder_of(domain, replace(run, way=name), root)) for name in domain["ways"]
    }
    variables = {**common_variables(domain, root), **given, **others, "SEED": str(run.seed)}
    own = identity(domain, run)
    text = own["commands"]
    load = os.getloadavg()[0]
    costs = measure(text, folder, variables, folder / "log.txt") if text else None
    variables |= {"ENCODER": Template(way["encoder"]).substitute(variables), "RESULTS": "scores.json"}
    measure(own["score"], folder, variables, folder / "log.txt")
    if not (folder / "scores.json").is_file():
        raise ValueError(f"score wrote no $RESULTS, see {folder / 'log.txt'}")
    results = read_json(folder / "scores.json")
    return {
        "schema": 1,
        "start": run.start,
        "start_title": start["title"],
        "way": run.way,
        "way_title": way["title"],
        "seed": run.seed if way.get("seeds", True) else None,
        **own,
        "costs": costs,
        "helpers": helpers,
        "load": round(load, 2),
        "scores": picked(results, domain["metrics"]),
        "checksums": checksums(results),
        "environment": environment(),
    }


def checksums(value: Any, path: tuple[str, ...] = ()) -> dict[str, str]:
    """Return every checksum of a results file, by the path of its keys."""
    if not isinstance(value, Mapping):
        return {}
    found = {}
    for key, member in value.items():
        if key in ("checksum", "sha256") and isinstance(member, str):
            found["/".join(path)] = member
        else:
            found |= checksums(member, (*path, key))
    return found


def follow_all(domain: Mapping[str, Any], runs: Sequence[Run], root: Path, results: Path) -> int:
    """Follow the runs that have no results file; the commands work in folders of ``root``. Return the exit code."""
    results.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, run in enumerate(runs, 1):
        try:
            target = results_file(domain, run, results)
            if target.exists():
                must_match(target, read_json(target), identity(domain, run))
                print(f"[{number}/{len(runs)}] {run.name}: left out, {target} is there", flush=True)
                continue
            print(f"[{number}/{len(runs)}] {run.name}", flush=True)
            record = follow(domain, run, root, results)
        except (RuntimeError, ValueError, OSError) as error:
            print(f"error: {run.name}: {error}", file=sys.stderr, flush=True)
            failed += 1
            continue
        write_json(target, record)
        print(" ".join(f"{name} {value:.2f}" for name, value in record["scores"].items()), flush=True)
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.run_domain", description=__doc__.split("\n\n")[0])
    parser.add_argument("domain", type=Path, help="YAML file of experiments/domains")
    parser.add_argument("--folder", type=Path, required=True, help="for the encoders, a folder for each run")
    parser.add_argument("--results_dir", type=Path, required=True, help="for the results files")
    parser.add_argument("--starts", nargs="+", help="names of starts; default: all")
    parser.add_argument("--ways", nargs="+", help="names of ways; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    args = parser.parse_args(argv)
    try:
        domain = read_domain(args.domain)
        runs = runs_of(domain, args.starts or list(domain["starts"]), args.ways or list(domain["ways"]), args.seeds)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for number in SIGNALS:
        signal.signal(number, stop)
    try:
        return follow_all(domain, runs, args.folder.resolve(), args.results_dir)
    except Stopped:
        print("stopped: the same command goes on", file=sys.stderr)
        return 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
