"""The example of an own objective trains, is logged under its name, reloads exactly, and is what the page shows."""

import importlib.util
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModel

from csekit import CSEModel
from csekit.modeling import OBJECTIVES

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "own_objective.py"
WORDS = "the a man woman dog cat plays sings runs red blue fast slow".split()  # noqa: SIM905


@pytest.fixture
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("own_objective", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del OBJECTIVES["variance"]


def test_it_trains_is_logged_and_reloads(example: ModuleType, tiny_folder: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    corpus, run = tmp_path / "sentences.txt", tmp_path / "run"
    corpus.write_text("".join(" ".join(rng.choices(WORDS, k=6)) + "\n" for _ in range(64)))
    example.main(str(tiny_folder), str(corpus), str(run))

    state = next((run / "training").glob("checkpoint-*/trainer_state.json"))
    log = [entry for entry in json.loads(state.read_text())["log_history"] if "loss/variance" in entry]
    assert log
    assert all(entry["loss/variance"] > 0 and entry["metrics/std"] > 0 for entry in log)
    assert log[0]["loss"] == pytest.approx(log[0]["loss/contrastive"] + log[0]["loss/variance"], abs=1e-3)

    model = CSEModel.from_pretrained(run / "training")
    assert model.config.variance_weight == 1.0
    assert isinstance(model.objectives["variance"], example.Variance)
    exported = AutoModel.from_pretrained(run).state_dict()
    assert all(torch.equal(exported[name], weight) for name, weight in model.backbone.state_dict().items())


def test_the_term_is_the_formula(example: ModuleType) -> None:
    torch.manual_seed(0)
    z = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    objective = example.Variance(example.VarianceConfig(weight=2.0, target=0.6), None)
    terms, _ = objective(type("Views", (), {"z": z}), {}, None)
    expected = torch.zeros((), dtype=torch.float64)
    for view in z:
        unit = [row / row.norm() for row in view]
        for j in range(3):
            column = torch.stack([row[j] for row in unit])
            std = (((column - column.mean()) ** 2).sum() / 4 + 1e-6).sqrt()
            expected = expected + 2.0 * torch.relu(0.6 - std) / 6
    torch.testing.assert_close(terms["variance"].double(), expected, rtol=1e-5, atol=1e-6)
    ours, naive = (torch.autograd.grad(value, z, retain_graph=True)[0] for value in (terms["variance"], expected))
    torch.testing.assert_close(ours, naive, rtol=1e-4, atol=1e-6)


def test_a_last_batch_of_one_row(example: ModuleType, tiny_folder: Path, tmp_path: Path) -> None:
    corpus, run = tmp_path / "sentences.txt", tmp_path / "run"
    corpus.write_text("".join(f"the {word} man {number} plays\n" for number in range(5) for word in WORDS))
    assert len(corpus.read_text().splitlines()) % 64 == 1  # its variance was nan, and the run stopped
    example.main(str(tiny_folder), str(corpus), str(run))
    assert (run / "results.json").is_file()


def test_the_page_shows_the_file() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    assert blocks
    assert all(block in FILE.read_text() for block in blocks)
    assert len(blocks[0].splitlines()) <= 40
