"""Run the commands of ``docs/quickstart.md`` in an empty folder, and record their outputs and times.

    python -m experiments.quickstart                                    # minutes: it pre-trains a small encoder
    python -m experiments.quickstart --keep_times                       # on a busy machine: outputs alone
    python -m experiments.tables docs/quickstart.md                     # puts the outputs into the page

Each bash block that a marker ``<!-- table:quickstart/NAME -->`` follows is a step.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import environment, write_json

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
RESULTS = ROOT / "experiments" / "results" / "quickstart" / "quickstart.json"

_STEP = re.compile(
    r"^```bash\n(?P<commands>.*?)^```\n+<!-- table:quickstart/(?P<name>\w+) -->", re.MULTILINE | re.DOTALL
)


def steps(page: str) -> dict[str, str]:
    """Return the commands of each step of a page, by name and in order."""
    return {match["name"]: match["commands"].strip() for match in _STEP.finditer(page)}


def run_steps(commands: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Run the steps in a folder, in which ``examples`` is the repository's. Every question is answered with ``q``.
    The output of a step is what it prints, and then its warnings.

    Raises:
        RuntimeError: a step failed; the message ends with its errors.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    variables = {
        **os.environ,
        "COLUMNS": "110",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    found: dict[str, Any] = {}
    for name, text in commands.items():
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=folder, env=variables, input="q\n", capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        told = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
        lines = [*done.stdout.strip("\n").splitlines(), *told]
        found[name] = {"commands": text, "output": lines, "seconds": round(seconds, 1)}
        print(f"{name}: {seconds:.1f} s", flush=True)
    return found


def with_times_of(earlier: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps of ``found`` with the seconds of an earlier record of the same steps."""
    return {name: {**step, "seconds": earlier[name]["seconds"]} for name, step in found.items()}


def must_be_recorded(earlier: Mapping[str, Any], commands: Mapping[str, str]) -> None:
    """Compare the page's steps with a record's, in whose times they are to stand.

    Raises:
        ValueError: a step has another name, place or commands.
    """
    if list(earlier) != list(commands):
        raise ValueError(f"--keep_times needs the recorded steps, {', '.join(earlier)}, got {', '.join(commands)}")
    if other := [name for name, text in commands.items() if earlier[name]["commands"] != text]:
        raise ValueError(f"--keep_times needs the recorded commands, those of {', '.join(other)} are other ones")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.quickstart", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="results file")
    parser.add_argument(
        "--keep_times", action="store_true", help="keep the times of the results file, with their machine and load"
    )
    args = parser.parse_args(argv)
    record: dict[str, Any] = {"schema": 1, "environment": environment(), "load": round(os.getloadavg()[0], 2)}
    commands = steps(PAGE.read_text(encoding="utf-8"))
    if args.keep_times:
        try:
            record = read_json(args.output)
            must_be_recorded(record["steps"], commands)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        found = run_steps(commands, Path(folder))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    found = with_times_of(record["steps"], found) if args.keep_times else found
    write_json(args.output, record | {"steps": found})
    print(f"written: {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
