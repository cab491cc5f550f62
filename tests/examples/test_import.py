"""``--import``: an objective of the user's own is found by name by the scripts and the commands."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from csekit.cli import main as csekit
from csekit.encoding import load_encoder
from csekit.modeling import OBJECTIVES, CSEModel
from csekit.trainers import parse_run_arguments

ROOT = Path(__file__).parents[2]
RUN_UNSUP = ROOT / "examples" / "run_unsup.py"
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))

MODULE = '''
"""An objective with a weight of its own."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from csekit import Objective, ObjectiveConfig
from csekit.modeling import OBJECTIVES


@dataclass
class SpreadConfig(ObjectiveConfig):
    name: ClassVar[str] = "spread"
    weight: float = 0.1
    target: float = 0.05


class Spread(Objective):
    config_class = SpreadConfig

    def __init__(self, config, encoder_config):
        super().__init__(config, encoder_config)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, views, batch, encode):
        std_VH = views.z.float().std(dim=1)
        return {"spread": self.config.weight * (self.scale * std_VH - self.config.target).square().mean()}, {}


OBJECTIVES["spread"] = Spread
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the module, a backbone and texts."""
    path = tmp_path_factory.mktemp("import")
    small.write_backbone(path / "tiny-bert")
    small.write_texts(path / "texts.txt", 60)
    (path / "my_terms.py").write_text(MODULE, encoding="utf-8")
    (path / "no_terms.py").write_text("x = 1\n", encoding="utf-8")
    (path / "broken.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    (path / "preset.yaml").write_text(
        "import: my_terms\nmethod: joint\nobjectives: [mlm, spread]\nmodel_name_or_path: tiny-bert\n"
        "train_file: texts.txt\noutput_dir: run\nper_device_train_batch_size: 8\nmax_steps: 4\neval_steps: 2\n"
        "logging_steps: 1\nsave_total_limit: 5\ndo_predict: false\nuse_cpu: true\ndisable_tqdm: true\n"
        "label_free_samples: 0\nlearning_rate: 1e-3\n",
        encoding="utf-8",
    )
    return path


def train(folder: Path, *more: str) -> None:
    """Train with the preset in a process of its own: another number of threads gives other digits."""
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    words = ["--config", "preset.yaml", "--spread_weight", "2", "--spread_target", "0.5", *more]
    done = subprocess.run(
        [sys.executable, str(RUN_UNSUP), *words], capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """The run of the preset, started as users start it, in the folder that holds the module."""
    train(folder)
    return folder / "run"


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in the folder. Afterwards it does not know the module."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("my_terms", "no_terms"):
        sys.modules.pop(name, None)
    OBJECTIVES.pop("spread", None)


def error_of(capsys: pytest.CaptureFixture, *argv: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse_run_arguments(argv)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_term_is_trained_and_the_run_knows_its_module(run: Path) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["imports"] == ["my_terms"]
    for entry in results["log"]:
        total = sum(entry[f"loss/{name}"] for name in ("contrastive", "mlm", "spread"))
        assert entry["loss"] == pytest.approx(total, abs=1e-3)
        assert entry["loss/spread"] > 0
    assert load_file(run / "training" / "model.safetensors")["objectives.spread.scale"] != 1
    assert "import my_terms" in (run / "README.md").read_text(encoding="utf-8")


def test_the_export_needs_no_module_and_the_checkpoint_names_it(run: Path, here: None) -> None:
    assert load_encoder(run).encode(["a dog runs"]).shape == (1, 32)
    with pytest.raises(ValueError, match="trained with --import my_terms"):
        load_encoder(run / "training")


def test_a_command_loads_the_checkpoint(run: Path, here: None) -> None:
    words = ["texts.txt", "--model", str(run / "training"), "--output", "own.npy", "--no_progress"]
    done = CliRunner().invoke(csekit, ["encode", *words, "--import", "my_terms"])
    assert done.exit_code == 0, done.output
    model = CSEModel.from_pretrained(run / "training")
    assert (model.config.spread_weight, model.config.spread_target) == (2.0, 0.5)
    assert model.objectives["spread"].scale != 1
    texts = Path("texts.txt").read_text(encoding="utf-8").splitlines()
    np.testing.assert_allclose(np.load("own.npy"), load_encoder(run).encode(texts), atol=1e-6)


@pytest.mark.data
def test_the_checkpoint_is_scored_as_its_export(run: Path, here: None, data_dir: Path) -> None:
    scores = []
    for model, more in ((run, []), (run / "training", ["--import", "my_terms"])):
        words = ["eval", str(model), "--tasks", "dev", "--data_dir", str(data_dir), "--no_progress", *more]
        done = CliRunner().invoke(csekit, [*words, "--output", f"{model.name}.json"])
        assert done.exit_code == 0, done.output
        tasks = json.loads(Path(f"{model.name}.json").read_text(encoding="utf-8"))["dev"]["tasks"]
        scores.append({name: task["all"] for name, task in tasks.items()})
    assert scores[0] == pytest.approx(scores[1], abs=1e-2)


def test_a_command_refuses_what_it_cannot_import(folder: Path, here: None) -> None:
    words = ["encode", "texts.txt", "--model", "tiny-bert", "--output", "none.npy"]
    done = CliRunner().invoke(csekit, [*words, "--import", "nowhere"])
    assert done.exit_code == 2
    assert f"--import nowhere: no module 'nowhere' in the working directory ({folder})" in done.stderr
    done = CliRunner().invoke(csekit, [*words, "--engine", "ray", "--import", "my_terms"])
    assert done.exit_code == 2
    assert "--import is not for --engine ray" in done.stderr


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_first(run: Path) -> None:
    checkpoint = str(run / "training" / "checkpoint-2")
    train(run.parent, "--output_dir", "again", "--resume_from_checkpoint", checkpoint)
    folders = (run, run.parent / "again")
    first, second = (load_file(path / "training" / "model.safetensors") for path in folders)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_a_weight_on_the_command_line_adds_the_term_to_any_method(here: None) -> None:
    found, _, fields = parse_run_arguments(["--import", "my_terms", "--spread_weight", "0.5"])
    assert found.imports == ["my_terms"]
    assert (found.method, fields) == ("simcse", {"spread_weight": 0.5})


def test_modules_of_preset_and_command_line_add_up(here: None) -> None:
    found, _, _ = parse_run_arguments(["--config", "preset.yaml", "--import", "no_terms"])
    assert found.imports == ["my_terms", "no_terms"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--import", "nowhere"], "--import nowhere: no module 'nowhere' in the working directory ({folder})"),
        (["--import", "my_terms.more"], "--import my_terms.more: no module 'my_terms.more' in the working directory"),
        (["--import", "my_terms.py"], "--import must be the name of a module, my_module or my_package.terms"),
        (["--import", "broken"], "--import broken: No module named 'nowhere_to_be_found'"),
        (["--import", "no_terms"], "--import no_terms: no objective was registered"),
        (["--import", "my_terms"], "names none of the registered objectives, 'spread': add --spread_weight"),
        (["--method", "joint", "--objectives", "spread"], "got 'spread'; --import my_module adds"),
        (["--import", "my_terms", "--method", "joint", "--objectives", "spraed"], "'spread', got 'spraed'"),
    ],
)
def test_an_import_without_effect_is_refused(
    folder: Path, here: None, capsys: pytest.CaptureFixture, words: list[str], message: str
) -> None:
    assert message.format(folder=folder) in error_of(capsys, *words)


@pytest.mark.parametrize("words", [["--spread_weight", "1"], ["--method", "joint", "--objectives", "spread"]])
def test_a_run_without_its_module_is_told_which(
    run: Path, here: None, capsys: pytest.CaptureFixture, words: list[str]
) -> None:
    text = error_of(capsys, "--output_dir", str(run), "--resume_from_checkpoint", "True", *words)
    assert f"{run} was trained with --import my_terms" in text


def test_custom_code_refuses_the_objective(run: Path, here: None) -> None:
    done = CliRunner().invoke(csekit, ["push", str(run), "someone/name", "--custom_code"])
    assert done.exit_code == 2
    assert "custom code holds objectives of csekit only, got 'spread'" in done.stderr
