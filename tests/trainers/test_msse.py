"""MSSE in the trainer: what is logged, moved, exported and resumed."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from csekit.encoding import load_encoder
from csekit.modeling import MSSEModel
from csekit.trainers import CSETrainer

TEMPLATE = "the {sentence} is {mask}"
DENOISING = {"icm_decoder": "denoising", "icm_target": "positive", "word_dropout": 0.3}


@pytest.fixture
def run(small: ModuleType, small_backbone: Path, tmp_path: Path) -> Callable[..., CSETrainer]:
    """``run(name, fields, …)``: a trainer of 8 steps in two epochs, with a checkpoint in the middle of the first."""
    texts = small.write_texts(tmp_path / "texts.txt", 32)

    def make(name: str, fields: dict[str, Any] | None = None, **options: Any) -> CSETrainer:
        given = {"max_seq_length": 16, "num_train_epochs": 2, "eval_steps": 2, "save_total_limit": 9, **options}
        fields = {"prompt_template": TEMPLATE, **(fields or {})}
        return small.make_trainer(small_backbone, texts, tmp_path / name, method="msse", fields=fields, **given)

    return make


def test_a_run(run: Callable[..., CSETrainer]) -> None:
    trainer = run("run")
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss/icm" in entry]
    assert len(log) == 4  # entries of two steps each
    for entry in log:
        terms = [entry[f"loss/{name}"] for name in ("contrastive", "dcm", "icm")]
        assert entry["loss"] == pytest.approx(sum(terms), rel=1e-5)
        assert min(terms) > 0
        assert entry["loss/icm"] == pytest.approx(0.2 * entry["metrics/icm_cross_entropy"], rel=1e-5)
        assert {"metrics/icm_gap", "metrics/dcm_diagonal", "metrics/dcm_off_diagonal"} <= entry.keys()
    assert not [name for name, value in trainer.model.state_dict().items() if torch.equal(before[name], value)]

    folder = trainer.save_run()
    exported = {name for name in load_file(folder / "model.safetensors") if not name.startswith("pooler.")}
    assert exported == set(trainer.model.backbone.state_dict())
    again = MSSEModel.from_pretrained(folder / "training")
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in again.state_dict().items())
    texts = ["man runs", "red ball in house was fast on tree", "dog"]
    ours = trainer.embed(texts)
    for path in (folder, folder / "training"):
        np.testing.assert_allclose(load_encoder(path, device="cpu").encode(texts), ours, rtol=0, atol=1e-5)
    st = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    found = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(found, ours, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, DENOISING], ids=["causal", "denoising"])
def test_a_resumed_run_ends_bitwise_like_one_that_was_not(
    run: Callable[..., CSETrainer], fields: dict[str, Any]
) -> None:
    straight, resumed = run("straight", fields), run("resumed", fields)
    straight.train()
    resumed.train(resume_from_checkpoint=f"{straight.training_dir}/checkpoint-2")
    assert resumed.state.global_step == straight.state.global_step == 8
    found, expected = (
        load_file(Path(each.training_dir) / "checkpoint-8" / "model.safetensors") for each in (resumed, straight)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
