"""The torture suite: kills, full disks and malformed inputs at random, from one seed, for a number of minutes.

    make torture MINUTES=20            # all of it, a third of the time fuzz; TORTURE_SEED=7 for other random numbers
    python -m pytest -m torture tests/torture/kills_*.py

A test asks ``rounds`` for random generators until its share of the minutes is over, and gives ``tally`` one outcome
for each trial. The table at the end counts them; it is written to ``experiments/results/torture/`` as JSON. Broken
trials are written to a log beside it as they come.
"""

import faulthandler
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: What a trial can end with. The last three must never occur.
OUTCOMES = ("held", "told in one line", "traceback", "silently wrong", "lost")
BROKEN = OUTCOMES[2:]
SEED = int(os.environ.get("TORTURE_SEED", "0"))
MINUTES = float(os.environ.get("TORTURE_MINUTES", "5"))
RESULTS = Path(os.environ.get("TORTURE_RESULTS", ROOT / "experiments/results/torture/kills.json"))


#: The fuzz tests write a line of JSON for each call to this file.
_FUZZ_LOG = Path(os.environ.setdefault("CSEKIT_TORTURE_LOG", f"{tempfile.gettempdir()}/torture-{os.getpid()}.jsonl"))
_WORDS = {"told": "told in one line", "wrong": "silently wrong"}


def ends(text: str, length: int = 1000) -> str:
    """The beginning and the end of a long text. Where a process hangs is at the top of faulthandler's list."""
    return text if len(text) <= 2 * length else f"{text[:length]}\n[…]\n{text[-length:]}"


class Tally:
    """Counts the outcomes of all trials."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[str]] = {}
        self.broken: list[dict[str, str]] = []
        self.kills = 0  # processes that a signal ended

    def __call__(self, row: str, outcome: str, detail: str = "") -> bool:
        """Count one trial; True if it ended well.

        Arguments:
            row: what was done: ``kill: train simcse``, ``fuzz: csv``, …
            outcome: one of ``OUTCOMES``.
            detail: how to repeat it and what was found, for the last three outcomes.
        """
        assert outcome in OUTCOMES
        self.rows.setdefault(row, Counter())[outcome] += 1
        if outcome in BROKEN:
            public = ends(re.sub(r"(/[\w.+-]+)+/", "", detail))  # no paths of this machine
            self.broken.append({"row": row, "outcome": outcome, "detail": public})
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            with RESULTS.with_suffix(".log").open("a") as log:
                log.write(f"{row}: {outcome}: {detail}\n\n")
        return outcome not in BROKEN

    def read(self, log: Path) -> None:
        """Count the trials in the log of the fuzz tests."""
        for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
            entry = json.loads(line)
            outcome = _WORDS.get(entry["outcome"], entry["outcome"])
            self(f"{entry['part']}: {entry['what']}", outcome, entry["detail"])

    def table(self) -> str:
        head = ["", "tried", *OUTCOMES]
        total: Counter[str] = sum(self.rows.values(), Counter())
        lines = [head]
        for name, counts in [*sorted(self.rows.items()), ("all", total)]:
            lines.append([name, str(counts.total()), *(str(counts[outcome]) for outcome in OUTCOMES)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        )

    def write(self, path: Path, minutes: float) -> None:
        from csekit.encoding.provenance import environment
        from csekit.evaluation.results import write_results

        rows = {name: {"tried": n.total(), **{o: n[o] for o in OUTCOMES}} for name, n in sorted(self.rows.items())}
        settings = {"seed": SEED, "minutes": round(minutes, 1), "kills": self.kills}
        found = {**settings, "rows": rows, "broken": self.broken, "environment": environment()}
        write_results(path, found, overwrite=True)


_tally = Tally()
_tests, _minutes = 1, MINUTES  # of the tests that ask for rounds
_started = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    global _tests, _minutes
    names = [getattr(item, "fixturenames", ()) for item in items if "torture" in item.keywords]
    _tests = sum("rounds" in each for each in names)
    fuzz = len(names) - _tests
    _minutes = MINUTES * 2 / 3 if fuzz else MINUTES
    if fuzz:
        os.environ.setdefault("CSEKIT_FUZZ_MINUTES", str(MINUTES / (3 if _tests else 1) / fuzz))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    _tally.read(_FUZZ_LOG)
    if _tally.rows:
        terminalreporter.write_line(_tally.table())
        _tally.write(RESULTS, (time.monotonic() - _started) / 60)


@pytest.fixture(scope="session")
def tally() -> Tally:
    return _tally


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """Random generators, one for each trial, until this test's share of the minutes is over; at least one."""

    def draw() -> Iterator[random.Random]:
        stop = time.monotonic() + 60 * _minutes / _tests
        for number in range(10**9):
            yield random.Random(f"{SEED} {request.node.name} {number}")
            if time.monotonic() > stop:
                return

    return draw()


# Processes


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    seconds: float
    text: str

    def outcome(self) -> str:
        """``held`` for exit code 0, ``told in one line``, else ``traceback``."""
        if "Traceback (most recent call last)" in self.text:
            return "traceback"
        if self.code == 0:
            return "held"
        return "told in one line" if sum("error: " in line for line in self.text.splitlines()) == 1 else "traceback"


class Started:
    """A command that runs in a forked process: csekit is imported once, so that a trial costs little."""

    def __init__(self, words: Sequence[str | Path], log: Path, clock: float | None = None) -> None:
        self.log, self.began = log, time.monotonic()
        log.touch()  # a signal may end the process before it opens its log
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.setsid()
                _one_thread()
                _own_progress_lock()
                handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                faulthandler.dump_traceback_later(240, file=2)  # where it hangs, if it does
                if clock is not None:
                    time.time = _jumping_clock(clock)
                code = _run([str(word) for word in words])
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self.pid = child

    def end(self, kill_after: float | None = None, number: int = signal.SIGKILL, timeout: float = 300) -> Ended:
        """Wait for the end. Send a signal ``kill_after`` seconds after the start."""
        killed = False
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            seconds = time.monotonic() - self.began
            if pid:
                _tally.kills += killed
                return Ended(os.waitstatus_to_exitcode(status), seconds, self.log.read_text(errors="replace"))
            if kill_after is not None and seconds >= kill_after:
                os.kill(self.pid, number)
                kill_after, killed = None, True
            if seconds > timeout:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)


def _one_thread() -> None:
    """Run PyTorch's operations in one thread: a forked process waits for ever for its parent's OpenMP threads."""
    import torch

    torch.set_num_threads(1)


def _own_progress_lock() -> None:
    """Give this process a lock of its own for progress bars.

    tqdm's lock is a semaphore that forked processes share with their parent. A process that is killed while it holds
    the semaphore never gives it back, and every process forked later would wait for it for ever.
    """
    import tqdm

    bars, lock = [tqdm.tqdm], threading.RLock()
    while bars:  # a subclass that made the first bar has the shared lock as an attribute of its own
        bars[-1].set_lock(lock)
        bars.extend(bars.pop().__subclasses__())


def _jumping_clock(seed: float) -> Callable[[], float]:
    """Return a ``time.time`` that jumps by up to ten days, forward or back, once in about twenty calls."""
    rng, real, off = random.Random(seed), time.time, 0.0

    def jumping() -> float:
        nonlocal off
        if rng.random() < 0.05:
            off = rng.uniform(-1, 1) * 864_000
        return real() + off

    return jumping


def _run(words: list[str]) -> int:
    import logging
    import runpy

    logging.getLogger().handlers.clear()  # pytest's
    logging.lastResort = logging.StreamHandler(sys.stderr)
    script, sys.argv = ROOT / words[0], words
    try:
        if words[0] == "csekit":
            from csekit.cli import main

            main(words[1:])
        elif words[0] == "run_seeds":
            from experiments.run_seeds import main as run_seeds

            return run_seeds(words[1:])
        else:
            return int(runpy.run_path(str(script))["main"]())
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny BERT, texts, pairs, and an STS-B dev set of random scores."""
    import runpy

    import csekit.trainers.scripts.pretraining_runs  # imported before any fork
    import csekit.trainers.scripts.runs  # noqa: F401

    _one_thread()  # what is computed here is compared with what a forked process computes
    folder = tmp_path_factory.mktemp("data")
    small = runpy.run_path(str(ROOT / "tests/trainers/small_runs.py"))
    small["write_backbone"](folder / "tiny-bert")
    small["write_texts"](folder / "texts.txt", 120)
    small["write_texts"](folder / "pairs.tsv", 120, 2)
    small["write_texts"](folder / "long.txt", 6000)
    small["write_pairs"](folder / "dev.tsv", rows=60)
    small["write_pairs"](folder / "test.tsv", rows=60, seed=2)
    (folder / "STS/STSBenchmark").mkdir(parents=True)
    for part, rows in (("dev", 1500), ("test", 1379)):
        lines = [f"main\tMSRvid\t2012\t{i}\t{i % 6}\ta man {i} plays\ta dog runs\n" for i in range(rows)]
        (folder / f"STS/STSBenchmark/sts-{part}.csv").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder


@pytest.fixture
def lost_progress_lock() -> Iterator[None]:
    """A process was killed while it held the lock for progress bars that this process and its children share."""
    import tqdm

    tqdm.tqdm.get_lock()
    if (child := os.fork()) == 0:
        tqdm.tqdm.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    yield
    _own_progress_lock()  # or this process would wait for it as well


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Started]:
    """``start("examples/run_unsup.py", "--method", …)`` or ``start("csekit", …)``; ``clock`` seeds its jumps."""
    logs = tmp_path / "logs"
    logs.mkdir()

    def call(*words: str | Path, clock: float | None = None) -> Started:
        return Started(words, logs / f"{len(list(logs.iterdir()))}.log", clock)

    return call
