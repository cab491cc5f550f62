"""Engines that run trials: one at a time in this process, or several at once and on several machines with Ray."""

import importlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from experiments import tether
from experiments.processes import note_process, remove_note
from experiments.records import TrialRecords
from experiments.trial import PlanError, Trial


@dataclass(frozen=True)
class Ended:
    """The end of a trial.

    Arguments:
        returncode: the exit code of its process, None if it was stopped before the process started.
        seconds: the process's wall time.
        lost: the reason if Ray lost the process.
    """

    trial: Trial
    returncode: int | None
    seconds: float = 0.0
    lost: str = ""


class Engine(Protocol):
    """Starts trials, reports how they ended, and passes stop signals on."""

    def has_room(self) -> bool:
        """Say whether another trial may be handed over."""

    def start(self, records: TrialRecords, trial: Trial) -> None:
        """Start a trial."""

    def ended(self, seconds: float) -> Ended | None:
        """Wait for a trial to end, at most this many seconds."""

    def stop(self) -> None:
        """Send SIGTERM to all running trials, and drop those that have not started."""

    def close(self) -> None:
        """Release the engine's resources."""


def start_process(folder: Path, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start ``python WORD ...`` for a trial's folder, and note it there. Both outputs go to ``log.txt``. The process
    is in a group of its own and gets SIGTERM when this one dies."""
    argv = [sys.executable, str(Path(tether.__file__)), str(os.getpid()), *words]
    with (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    note_process(folder, child.pid)
    return child


class TrialProcess:
    """The process of a trial. It writes to ``log.txt`` in its own process group, so only the engine signals it."""

    def __init__(self, records: TrialRecords, trial: Trial) -> None:
        self.trial, self.folder, self.started = trial, records.folder(trial), time.monotonic()
        resume = records.begin(trial)
        self.child = start_process(self.folder, trial.argv(records.output_dir, resume))

    def ended(self, seconds: float) -> Ended | None:
        """Wait for the end, at most this many seconds."""
        try:
            returncode = self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        remove_note(self.folder)
        return Ended(self.trial, returncode, time.monotonic() - self.started)


class OneByOne:
    """Runs one trial at a time on this machine."""

    def __init__(self) -> None:
        self.process: TrialProcess | None = None

    def has_room(self) -> bool:
        return self.process is None

    def start(self, records: TrialRecords, trial: Trial) -> None:
        self.process = TrialProcess(records, trial)

    def ended(self, seconds: float) -> Ended | None:
        ended = self.process.ended(seconds) if self.process else None
        if ended:
            self.process = None
        return ended

    def stop(self) -> None:
        if self.process:
            self.process.child.terminate()

    def close(self) -> None:
        """Do nothing: this engine holds no resources."""


class Forks:
    """Runs several trials at once on this machine, each in a fork of this process (Linux).

    This process has imported what a training needs, so a trial starts at once and shares that memory: on a GPU, whose
    runs take seconds, the imports would be a third of the time. All trials share the GPU.

    Arguments:
        at_once: the most trials that run at the same time.

    Raises:
        PlanError: this system has no fork, or CUDA is in use in this process already.
    """

    def __init__(self, at_once: int) -> None:
        if sys.platform != "linux":
            raise PlanError(f"--engine fork needs Linux, got {sys.platform}; --engine ray runs several trials at once")
        # torch then asks the driver's management library for GPUs; CUDA itself would not survive the fork
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        for name in _PRELOADED:
            importlib.import_module(name)
        if importlib.import_module("torch").cuda.is_initialized():
            raise PlanError("--engine fork cannot start: CUDA is in use in this process")
        self.at_once, self.context = at_once, multiprocessing.get_context("fork")
        self.running: dict[BaseProcess, tuple[Trial, Path, float]] = {}

    def has_room(self) -> bool:
        return len(self.running) < self.at_once

    def start(self, records: TrialRecords, trial: Trial) -> None:
        folder, resume = records.folder(trial), records.begin(trial)
        words = trial.argv(records.output_dir, resume)
        child = self.context.Process(target=_become, args=(words, folder / "log.txt", os.getpid()))
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the fork has let go of the runner's handlers
        try:
            child.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        note_process(folder, child.pid or 0)
        self.running[child] = trial, folder, time.monotonic()

    def ended(self, seconds: float) -> Ended | None:
        done = wait([child.sentinel for child in self.running], timeout=seconds)
        if not done:
            return None
        child = next(each for each in self.running if each.sentinel in done)
        trial, folder, started = self.running.pop(child)
        child.join()
        remove_note(folder)
        return Ended(trial, child.exitcode, time.monotonic() - started)

    def stop(self) -> None:
        for child in self.running:
            child.terminate()

    def close(self) -> None:
        """Do nothing: the runner waits for all trials."""


SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
#: What a fork would have to import: the training and its tests.
_PRELOADED = (
    "csekit.cli",
    "csekit.trainers.scripts.train",
    "csekit.trainers.scripts.pretrain",
    "transformers.models.bert.modeling_bert",
    "sklearn.linear_model",
)


def _become(words: Sequence[str], log: Path, parent: int) -> None:
    """Do in a fork what ``python WORD ...`` does, in a process group of its own, with both outputs to ``log``."""
    os.setsid()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # the runner's own would only note the signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    tether.hold(parent)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv, sys.path[0] = list(words), str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


class RayTasks:
    """Submits every trial that may start to Ray, which runs as many at once as the cluster has room for.

    Ray connects to the cluster that ``RAY_ADDRESS`` or its own settings name, or starts one on this machine. All
    machines must see the repository, the output folder and the data under the same paths.

    Arguments:
        num_cpus: CPU cores of a trial; Ray sets ``OMP_NUM_THREADS`` to it.
        num_gpus: GPUs of a trial; Ray sets ``CUDA_VISIBLE_DEVICES``.

    Raises:
        PlanError: Ray is not installed or does not start, or no machine of the cluster has these resources.
    """

    def __init__(self, num_cpus: float, num_gpus: float) -> None:
        try:
            import ray
        except ImportError as error:
            raise PlanError("--engine ray needs ray: pip install 'csekit[ray]'") from error
        self.ray = ray
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises plain Exception, among others
            raise PlanError(f"Ray could not start or connect: {' '.join(str(error).split())}") from error
        for name, wanted, unit in (("num_cpus", num_cpus, "CPU"), ("num_gpus", num_gpus, "GPU")):
            most = max(node["Resources"].get(unit, 0.0) for node in ray.nodes() if node["Alive"])
            if wanted > most:
                ray.shutdown()
                raise PlanError(f"--{name} must be at most {most:g}, which the largest machine has, got {wanted:g}")
        # a trial that is lost resumes with the next call: no retry by Ray, which would start it anew
        self.task = ray.remote(_run_trial).options(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0)
        self.refs: dict[Any, Trial] = {}

    def has_room(self) -> bool:
        return True

    def start(self, records: TrialRecords, trial: Trial) -> None:
        self.refs[self.task.remote(records, trial, os.getcwd())] = trial

    def ended(self, seconds: float) -> Ended | None:
        done, _ = self.ray.wait(list(self.refs), timeout=seconds)
        if not done:
            return None
        trial = self.refs.pop(done[0])
        try:
            ended: Ended = self.ray.get(done[0])
        except self.ray.exceptions.TaskCancelledError:
            return Ended(trial, None)
        except self.ray.exceptions.RayError as error:
            return Ended(trial, None, lost=" ".join(str(error).split()))
        return ended

    def stop(self) -> None:
        for ref in self.refs:
            self.ray.cancel(ref, force=False)  # reaches the task as KeyboardInterrupt

    def close(self) -> None:
        self.ray.shutdown()


def _run_trial(records: TrialRecords, trial: Trial, folder: str) -> Ended:
    """Run a trial's process inside a Ray worker. A cancelled task passes SIGTERM on, so that the trial saves."""
    os.chdir(folder)  # relative paths mean what they mean to the driver
    # a worker inherits an ignored SIGINT, as by `nohup … &` in a script; Ray's cancellation would then do nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = TrialProcess(records, trial)
    while True:
        try:
            if ended := process.ended(0.2):
                return ended
        except KeyboardInterrupt:
            process.child.terminate()
