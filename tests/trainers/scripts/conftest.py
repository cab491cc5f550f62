"""The training scripts in this process, on a tiny model."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="session")
def backbone(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("started")
    small.write_texts(folder / "texts.txt", 20)
    return Path(small.write_backbone(folder / "whole"))


@pytest.fixture
def started(
    monkeypatch: pytest.MonkeyPatch, backbone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """``started(script, folder, *more)`` runs a script on a model, which must end with status 2 before any checkpoint.
    It returns the one line of the error."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", backbone.parent / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def start(script: str, folder: Path, *more: str, code: int = 2) -> str:
        words = ["--model_name_or_path", folder, "--train_file", backbone.parent / "texts.txt", "--use_cpu", "True"]
        words += ["--output_dir", tmp_path / "run", "--max_steps", "1", "--per_device_train_batch_size", "8", *more]
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLES / script))["main"]()
        assert end.value.code == code
        assert not list(tmp_path.glob("run/training/checkpoint-*"))
        lines = capfd.readouterr().err.splitlines()
        assert "Traceback" not in "".join(lines)
        (line,) = [line for line in lines if line.startswith(f"{script}: error: ")]
        return line

    return start
