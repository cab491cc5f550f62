"""Ray runs a plan: dependencies, failures, a killed driver, stop signals. One cluster serves all tests here."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from experiments.processes import is_alive
from experiments.tests.conftest import environment

ray = pytest.importorskip("ray", reason="needs ray: pip install 'csekit[ray]'")

# Starts a cluster of three CPUs and keeps it until its input ends. Ctrl-C is ignored, as by `nohup … &` in a script.
CLUSTER = """
import signal, sys, ray
signal.signal(signal.SIGINT, signal.SIG_IGN)
context = ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
print(context.address_info["address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster in processes of its own, so that a driver's end does not end it."""
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "RAY_AUTH_MODE": "disabled"},  # recent versions want a token of every driver otherwise
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield address
        process.communicate(timeout=60)


@pytest.fixture
def with_ray(bench: Any, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plan of one experiment, and the cluster's address for the drivers."""
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    bench.plan["experiments"] = {"one": {"title": "One"}}
    return bench


def start(bench: Any) -> "subprocess.Popen[bytes]":
    process: subprocess.Popen[bytes] = bench.start("--engine", "ray", env=environment())
    return process


@pytest.mark.slow
def test_ray_runs_a_plan_with_dependencies_and_notes_a_failed_trial(
    with_ray: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with_ray.depend()
    assert with_ray.run("--engine", "ray") == 1
    assert with_ray.starts() == {"one/seed=42": 1, "one/seed=43": 1}
    summary = with_ray.summary()["experiments"]
    assert summary["one"]["finished_seeds"] == [42, 43]
    assert summary["broken"]["failed"]["run"]["tail"] == ["no such text"]
    printed = capsys.readouterr().out
    assert "later/seed=42  not started, waits for broken/run, which has no result" in printed
    assert with_ray.record("one/seed=42")["backbone"] == "run"


@pytest.mark.slow
def test_ray_runs_the_points_of_a_grid_at_once_and_stops_them_on_sigterm(with_ray: Any) -> None:
    points = [f"one/learning_rate={rate}" for rate in ("0.0001", "1e-05", "3e-05")]
    with with_ray.held(1):
        process = start(with_ray)
        for point in points:
            with_ray.wait_for(f"{point} step 0")
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert {f"{point} terminated" for point in points} <= set(with_ray.calls())
    assert with_ray.run("--engine", "ray") == 0
    assert with_ray.starts() == dict.fromkeys(points, 2) | {f"one/seed={seed}": 1 for seed in (42, 43, 44)}
    assert not [line for point in points for line in with_ray.calls()[9:] if line == f"{point} step 0"]


@pytest.mark.slow
def test_a_killed_driver_takes_its_trials_along_and_goes_on(with_ray: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with with_ray.held(1):
        process = start(with_ray)
        with_ray.wait_for("one/learning_rate=3e-05 step 0")
        (note,) = with_ray.folder.rglob("learning_rate=3e-05/process.json")
        trial = json.loads(note.read_text())
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 60
        while is_alive(trial) and time.monotonic() < deadline:  # Ray kills it with its worker, without a word to it
            time.sleep(0.1)
        assert not is_alive(trial)
    assert with_ray.run("--engine", "ray") == 0
    owner = f"process {process.pid} on {socket.gethostname()}"
    assert f"was in use by {owner}, which is gone" in capsys.readouterr().out
    assert with_ray.starts()["one/learning_rate=3e-05"] == 2
    assert with_ray.summary()["experiments"]["one"]["finished_seeds"] == [42, 43, 44]


@pytest.mark.slow
def test_a_trial_whose_worker_dies_is_noted(with_ray: Any) -> None:
    with with_ray.held(1):
        process = start(with_ray)
        with_ray.wait_for("one/learning_rate=0.0001 step 0")
        child = int((with_ray.folder / "runs/one/learning_rate=0.0001/pid").read_text())
        os.kill(parent_of(child), signal.SIGKILL)
        with_ray.wait_for("one/learning_rate=0.0001 terminated")
    process.communicate(timeout=120)
    assert process.returncode == 1
    failed = with_ray.summary()["experiments"]["one"]["failed"]["learning_rate=0.0001"]
    assert failed["status"] == "failed"
    assert with_ray.summary()["experiments"]["one"]["finished_seeds"] == [42, 43, 44]


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


@pytest.mark.slow
def test_resources_that_no_machine_has_are_refused(with_ray: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_ray.run("--engine", "ray", "--num_cpus", "64") == 2
    assert "--num_cpus must be at most 3" in capsys.readouterr().err
    assert not with_ray.calls()
