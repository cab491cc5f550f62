"""The workers of the data loader end with a killed training."""

import json
import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
from transformers import TrainerCallback


class Noted(TrainerCallback):
    """Writes the pids of this process's children."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.file.write_text(json.dumps([child.pid for child in psutil.Process().children()]))


def test_loader_workers_end_at_once_with_a_killed_training(
    small: ModuleType, small_backbone: Path, tmp_path: Path
) -> None:
    """Until torch's own check after 5 seconds they kept the memory, and a lock that they had inherited."""
    texts, noted = small.write_texts(tmp_path / "texts.txt", 400), tmp_path / "pids.json"
    if (child := os.fork()) == 0:
        try:
            trainer = small.make_trainer(
                small_backbone,
                texts,
                tmp_path / "run",
                dataloader_num_workers=2,
                eval_strategy="no",
                save_strategy="no",
            )
            trainer.add_callback(Noted(noted))
            trainer.add_callback(small.SignalAt(6, int(signal.SIGKILL)))
            trainer.train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    pids = json.loads(noted.read_text())
    assert len(pids) == 2
    stop = time.monotonic() + 2
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < stop, left
        time.sleep(0.05)
