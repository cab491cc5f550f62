"""The lock on an output folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.processes import LOCK, describe, locked
from experiments.trial import PlanError


def test_a_lock_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    with locked(tmp_path / "runs"):
        note = json.loads((tmp_path / "runs" / LOCK).read_text())
        assert note["pid"] == os.getpid()
        with (
            pytest.raises(PlanError, match=f"is in use by process {os.getpid()} on {note['host']}"),
            locked(tmp_path / "runs"),
        ):
            pass
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_lock_of_a_process_that_is_gone_is_taken_over_with_a_word(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        note = describe(process.pid)
        process.communicate(b"\n")
    (tmp_path / LOCK).write_text(json.dumps(note))
    said: list[str] = []
    with locked(tmp_path, said.append):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert len(said) == 1
    assert f"process {note['pid']}" in said[0]


def test_a_later_process_with_the_same_pid_is_another_one(tmp_path: Path) -> None:
    note = describe(os.getpid())
    (tmp_path / LOCK).write_text(json.dumps(note | {"started": note["started"] - 100}))
    with locked(tmp_path, lambda line: None):
        assert json.loads((tmp_path / LOCK).read_text())["started"] == note["started"]


def test_a_lock_of_another_machine_says_which_file_to_delete(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": 0.0}))
    with pytest.raises(PlanError, match=f"on elsewhere: delete .*{LOCK} if that process is gone"), locked(tmp_path):
        pass
