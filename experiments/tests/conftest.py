"""A folder with a plan and a stand-in for the training script that it runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from csekit.evaluation.results import write_results
from experiments.run_seeds import main

ROOT = Path(__file__).parents[2]
TASKS = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]

# Dev falls, test rises with the learning rate: a choice on test scores would differ. Steps are saved one by one.
FAKE = """
import contextlib, json, os, pathlib, signal, sys, tempfile, time
words = dict(zip([w[2:] for w in sys.argv[1::2]], sys.argv[2::2]))
out = pathlib.Path(words["output_dir"])
(out / "training").mkdir(parents=True, exist_ok=True)
log = open(pathlib.Path(words["calls"]), "a")
def note(what):
    log.write(out.parent.name + "/" + out.name + " " + what + "\\n"); log.flush()
step_file, held = out / "training" / "step", pathlib.Path(words["calls"]).with_name("held")
first = int(step_file.read_text()) if words.get("resume_from_checkpoint") and step_file.exists() else 0
note("start")
(out / "pid").write_text(str(os.getpid()))
def stop(*_):
    note("terminated"); sys.exit(143)
signal.signal(signal.SIGTERM, stop)
rate, seed = float(words["learning_rate"]), int(words["seed"])
def holds(step):
    try:
        return held.read_text() == str(step)
    except FileNotFoundError:  # asking first would leave a moment for it to go
        return False
def fail():
    if float(words.get("fail_at", -1)) == rate and not os.environ.get("FAKE_HEALED"):
        print("step 3: loss is nan"); sys.exit(3)
"fail_late" in words or fail()
for step in range(first, int(words["max_steps"])):
    while holds(step):
        time.sleep(0.01)
    step_file.with_name("part").write_text(str(step + 1))
    os.replace(step_file.with_name("part"), step_file)  # whole or not at all, whenever it is killed
    note(f"step {step}")  # what the tests wait for is saved
fail()
dev = float("nan") if float(words.get("nan_at", -1)) == rate else 80 - 1e4 * rate + 0.01 * (seed - 42)
scored = words["do_predict"] == "True" or words.get("leak")
tasks = {t: {"all": 50 + 1e4 * rate + i + (seed - 42) ** 2, "mean": 0, "wmean": 0} for i, t in enumerate(TASKS)}
test = {"tasks": tasks, "avg": sum(t["all"] for t in tasks.values()) / 7} if scored else None
result = {"name": out.name, "method": "simcse", "backbone": words["backbone"],
          "corpus": {"name": "wiki_tiny", "checksum": "0", "rows": 1000,
                     "used": round(1000 * float(words.get("share", 1)))},
          "config": {}, "arguments": dict(words),
          "seed": seed, "dev": {"metric": "stsb_spearman", "best": dev, "step": 1, "history": []}, "test": test,
          "environment": {},
          "seconds": {"train": 2.0 * int(words["max_steps"]), "total": 2.0 * int(words["max_steps"]) + 5}}
known = pathlib.Path(os.environ["FAKE_SCORES"]) / f"{rate}-{seed}"  # the imports take longer than all the rest
if scored and known.is_dir():
    for path in known.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
elif scored:
    import numpy as np
    from csekit.evaluation.results import write_results
    gold = np.arange(20.0)
    noise = np.random.default_rng(seed).normal(size=20)
    similarities = {t: (gold + noise / (1e4 * rate + 1), gold) for t in TASKS}
    write_results(out / "results.json", {}, similarities, overwrite=True)
    draft = pathlib.Path(tempfile.mkdtemp(dir=known.parent))
    for path in out.glob("results.*"):
        (draft / path.name).write_bytes(path.read_bytes())
    with contextlib.suppress(OSError):  # another trial was first
        draft.rename(known)
if scored:
    result |= json.loads((out / "results.json").read_text())
else:
    result |= json.loads(pathlib.Path(words["calls"]).with_name("empty.json").read_text())
(out / "results.json").write_text(json.dumps(result))
note("end")
""".replace("TASKS", repr(TASKS))


#: A command's code that makes a folder with results.
MAKE = (
    "import json, os, pathlib, sys; out = pathlib.Path(sys.argv[1]); out.mkdir(parents=True, exist_ok=True); "
    "json.dump({'backbone': 'mini', 'seed': 42}, open(out / 'results.json', 'w'))"
)


def environment() -> dict[str, str]:
    """Return an environment in which ``-m experiments.run_seeds`` finds the package, whatever the folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Bench:
    """A folder with the stand-in script and a plan."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file = folder, folder / "calls.txt"
        (folder / "fake.py").write_text(FAKE)
        write_results(folder / "empty.json", {})
        self.plan: dict[str, Any] = {
            "name": "small",
            "script": str(folder / "fake.py"),
            "baseline": "one",
            "seeds": [42, 43, 44],
            "grid": {"learning_rate": [1e-4, 1e-5, 3e-5]},
            "grid_steps": 2,
            "arguments": {"backbone": str(folder / "mini"), "calls": str(self.calls_file), "max_steps": 3},
            "experiments": {"one": {"title": "One"}, "two": {"arguments": {"dropout": 0.2}}},
        }

    def depend(self) -> None:
        """Make a plan in which one row reads a made folder, and another one the folder of a command that fails."""
        self.plan |= {"grid": {}, "seeds": [42, 43]}
        self.plan["arguments"]["learning_rate"] = 1e-4
        self.plan["experiments"] = {
            "made": {"command": ["-c", MAKE, "{output_dir}"]},
            "one": {"arguments": {"backbone": "{folder:made/run}"}},
            "broken": {"command": ["-c", "raise SystemExit('no such text')"]},
            "later": {"arguments": {"backbone": "{folder:broken/run}"}},
        }

    def command(self, *more: str) -> list[str]:
        path = self.folder / "plan.yaml"
        path.write_text(yaml.safe_dump(self.plan))
        return [str(path), "--output_dir", str(self.folder / "runs"), "--results_dir", str(self.results), *more]

    def run(self, *more: str) -> int:
        handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            return int(main(self.command(*more)))
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)

    def start(self, *more: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "experiments.run_seeds", *self.command(*more)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env or environment())

    @contextmanager
    def held(self, step: int) -> Iterator[None]:
        """Inside, no trial goes beyond the end of the step before ``step``."""
        file = self.folder / "held"
        file.write_text(str(step))
        try:
            yield
        finally:
            file.unlink()

    def wait_for(self, line: str) -> None:
        limit = time.monotonic() + 120
        while line not in self.calls():
            assert time.monotonic() < limit, f"{line} is not among {self.calls()}"
            time.sleep(0.01)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def starts(self) -> Counter[str]:
        return Counter(line.split()[0] for line in self.calls() if line.endswith("start"))

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.results / "small" / "summary.json").read_text()))

    def record(self, label: str) -> dict[str, Any]:
        return dict(json.loads((self.results / "small" / f"{label}.json").read_text()))


@pytest.fixture(scope="session", autouse=True)
def scores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder in which the stand-in keeps what it has scored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_SCORES", str(tmp_path_factory.mktemp("scores")))
        yield


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The plan after its run, to read."""
    bench = Bench(tmp_path_factory.mktemp("finished"))
    assert bench.run() == 0
    return bench


@pytest.fixture(scope="session")
def new_bench() -> type[Bench]:
    """The class, for fixtures that several tests share."""
    return Bench
