"""Worker processes end with the process that started them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-c", "from csekit.cli import main; main()"]


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; False if it does not within these seconds."""
    stop = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > stop:
            return False
        time.sleep(0.05)
    return True


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_workers_of_a_killed_encode_end_with_it(tiny_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """They stayed for minutes, with 460 MB each."""
    (tmp_path / "texts.txt").write_text("".join(f"the man plays a red guitar {i}\n" for i in range(40_000)))
    output = tmp_path / "out.npy"
    options = ["--model", str(tiny_folder), "--pooling", "mean", "--num_workers", "2", "--chunk_rows", "500"]
    argv = [*COMMAND, "encode", str(tmp_path / "texts.txt"), "-o", str(output), "--device", "cpu", *options]
    record = tmp_path / "out.npy.json"
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as encode:
        try:
            assert until(lambda: record.is_file() and json.loads(record.read_text())["done"] > 0, 300)
            children = psutil.Process(encode.pid).children(recursive=True)
            assert sum("spawn_main" in " ".join(child.cmdline()) for child in children) == 2
            encode.send_signal(number)
            encode.wait(20)
        finally:
            encode.kill()
    assert until(lambda: not alive(children), 3), alive(children)
