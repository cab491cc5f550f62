"""Forks run a plan: several trials at once, failures, stop signals; they give what one process gives."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from experiments.processes import is_alive
from experiments.tests.conftest import ROOT, environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks need Linux")
FORKS = ("--engine", "fork", "--at_once", "3")


def start(bench: Any) -> Any:
    return bench.start(*FORKS, env=environment())


def test_forks_run_what_may_start_at_once_and_stop_on_sigterm(bench: Any) -> None:
    bench.plan["experiments"] = {"one": {"title": "One"}}
    points = [f"one/learning_rate={rate}" for rate in ("0.0001", "1e-05", "3e-05")]
    with bench.held(1):
        process = start(bench)
        for point in points:
            bench.wait_for(f"{point} step 0")
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert {f"{point} terminated" for point in points} <= set(bench.calls())
    process = start(bench)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert bench.starts() == dict.fromkeys(points, 2) | {f"one/seed={seed}": 1 for seed in (42, 43, 44)}


@pytest.mark.slow
def test_forks_never_exceed_at_once(bench: Any) -> None:
    bench.plan |= {"grid": {}, "seeds": [42, 43, 44, 45, 46], "experiments": {"one": {}}}
    bench.plan["arguments"]["learning_rate"] = 1e-4
    with bench.held(1):
        process = start(bench)
        for seed in (42, 43, 44):
            bench.wait_for(f"one/seed={seed} step 0")
        time.sleep(0.5)
        assert len(bench.starts()) == 3
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(bench.starts()) == 5


@pytest.mark.slow
def test_forks_note_a_failed_trial_and_hold_back_what_needs_it(bench: Any) -> None:
    bench.depend()
    process = start(bench)
    process.communicate(timeout=120)
    assert process.returncode == 1
    assert bench.starts() == {"one/seed=42": 1, "one/seed=43": 1}
    assert bench.summary()["experiments"]["broken"]["failed"]["run"]["tail"] == ["no such text"]
    assert bench.record("one/seed=42")["backbone"] == "run"


@pytest.mark.slow
def test_what_a_running_trial_has_written_so_far_is_not_its_result(bench: Any) -> None:
    """``csekit eval`` of several suites writes its file after each; the summary after another experiment read it."""
    parts = (
        "import json, pathlib, sys, time; out = pathlib.Path(sys.argv[1]); calls = pathlib.Path(sys.argv[2]); "
        "write = lambda **more: (out / 'results.json').write_text("
        "json.dumps({'backbone': 'mini', 'seed': 42, **more})); "
        "out.mkdir(parents=True, exist_ok=True); write(); limit = time.monotonic() + 60\n"
        "while 'one/seed=42 end' not in calls.read_text() and time.monotonic() < limit: time.sleep(0.1)\n"
        "time.sleep(2); write(whole=True)"
    )
    bench.calls_file.write_text("")
    bench.plan |= {"grid": {}, "seeds": [42]}
    bench.plan["arguments"]["learning_rate"] = 1e-4
    bench.plan["experiments"] = {
        "evaluated": {"command": ["-c", parts, "{output_dir}", str(bench.calls_file)]},
        "one": {},
    }
    process = start(bench)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert bench.record("evaluated/run")["whole"]


@pytest.mark.slow
def test_a_killed_driver_takes_its_forks_along(bench: Any) -> None:
    bench.plan["experiments"] = {"one": {"title": "One"}}
    with bench.held(1):
        process = start(bench)
        bench.wait_for("one/learning_rate=3e-05 step 0")
        notes = [json.loads(path.read_text()) for path in bench.folder.rglob("process.json")]
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 60
        while any(is_alive(note) for note in notes) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert len(notes) == 3
    assert not any(is_alive(note) for note in notes)
    process = start(bench)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert bench.summary()["experiments"]["one"]["finished_seeds"] == [42, 43, 44]


@pytest.mark.slow
def test_a_training_in_a_fork_gives_what_it_gives_alone(bench: Any) -> None:
    script = str(ROOT / "examples" / "run_unsup.py")  # the demo, which brings its own encoder and text
    results = {}
    for name, engine in (("forks", FORKS), ("alone", ())):
        arguments = {"max_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True}
        bench.plan = {
            "name": name,
            "script": script,
            "seeds": [42, 43],
            "arguments": arguments,
            "experiments": {"one": {}},
        }
        command = [*bench.command(*engine), "--output_dir", str(bench.folder / name)]
        driver = [sys.executable, "-m", "experiments.run_seeds", *command]
        done = subprocess.run(driver, capture_output=True, text=True, env=environment(), timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        folders = [bench.folder / name / f"one/seed={seed}" for seed in (42, 43)]
        results[name] = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert results["forks"] == results["alone"]
    assert results["forks"][0] != results["forks"][1]


@pytest.mark.parametrize("given", ["0", "-1"])
def test_at_once_must_be_at_least_one(bench: Any, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.run("--engine", "fork", "--at_once", given)
    assert f"--at_once: must be at least 1, got {given}" in capsys.readouterr().err
