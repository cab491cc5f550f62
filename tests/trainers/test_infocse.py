"""InfoCSE in the trainer, from a stage-1 checkpoint: what is logged, clipped, moved, kept, exported and resumed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, TrainerCallback

from csekit.modeling import InfoCSEModel
from csekit.modeling.auxiliary_head import AuxiliaryHead
from csekit.trainers import CSETrainer
from csekit.trainers.run_record import history

LOWER = "objectives.aux_mlm.lower."


@pytest.fixture
def run(small: ModuleType, small_backbone: Path, tmp_path: Path) -> Callable[..., CSETrainer]:
    """``run(name, fields, …)``: a trainer of 8 steps in two epochs, with a checkpoint in the middle of the first."""
    stage1 = shutil.copytree(small_backbone, tmp_path / "stage1")
    torch.manual_seed(2)
    AuxiliaryHead(AutoConfig.from_pretrained(stage1)).save(stage1, layer=1)
    texts = small.write_texts(tmp_path / "texts.txt", 32)

    def make(name: str, fields: dict[str, Any] | None = None, **options: Any) -> CSETrainer:
        given = {"num_train_epochs": 2, "eval_steps": 2, "save_total_limit": 9, **options}
        return small.make_trainer(stage1, texts, tmp_path / name, method="infocse", fields=fields, **given)

    return make


class Norms(TrainerCallback):
    """The gradient's norm over the encoder's group and over the auxiliary network, after clipping."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        named = [(name.startswith("objectives."), p.grad) for name, p in model.named_parameters() if p.requires_grad]
        sizes = [torch.cat([g.flatten() for own, g in named if own is kind]).norm().item() for kind in (False, True)]
        self.seen.append((sizes[0], sizes[1]))


def test_a_run(run: Callable[..., CSETrainer], tmp_path: Path) -> None:
    trainer, norms = run("run", max_grad_norm=0.1), Norms()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.add_callback(norms)
    trainer.train()
    for encoder, auxiliary in norms.seen:  # clipped together, one would be far below the limit
        assert encoder == pytest.approx(0.1, rel=1e-3)
        assert auxiliary == pytest.approx(0.1, rel=1e-3)
    log = [entry for entry in trainer.state.log_history if "loss/aux_mlm" in entry]
    assert len(log) == 4
    for entry in log:
        assert entry["loss"] == pytest.approx(entry["loss/contrastive"] + entry["loss/aux_mlm"], rel=1e-5)
        assert entry["loss/aux_mlm"] == pytest.approx(1e-5 * entry["metrics/aux_mlm_cross_entropy"], rel=1e-5)
    assert (
        log[-1]["metrics/aux_mlm_cross_entropy"] < log[0]["metrics/aux_mlm_cross_entropy"]
    )  # λ = 1e-5, still learning

    kept = [entry["loss/aux_mlm"] for entry in history(trainer)[1]]  # six decimals left one digit of it
    assert kept == pytest.approx([entry["loss/aux_mlm"] for entry in log], rel=1e-5)

    last = load_file(Path(trainer.training_dir) / "checkpoint-8" / "model.safetensors")
    assert any(name.startswith(LOWER) for name in last)
    frozen = {name for name, value in before.items() if torch.equal(last[name], value)}
    assert frozen == {name for name in before if name.startswith(LOWER)}
    optimised = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert optimised == {id(p) for name, p in trainer.model.named_parameters() if not name.startswith(LOWER)}

    folder = trainer.save_run()
    exported = {name for name in load_file(folder / "model.safetensors") if not name.startswith("pooler.")}
    assert exported == set(trainer.model.backbone.state_dict())
    plain = AutoModel.from_pretrained(folder)
    assert all(torch.equal(p, plain.get_parameter(n)) for n, p in trainer.model.backbone.named_parameters())
    again = InfoCSEModel.from_pretrained(folder / "training")
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{}, {"detach": False, "contrastive_weight": 0.0, "gradient": "plain"}], ids=["default", "no contrast"]
)
def test_a_resumed_run_ends_bitwise_like_one_that_was_not(
    run: Callable[..., CSETrainer], fields: dict[str, Any]
) -> None:
    straight, resumed = run("straight", fields), run("resumed", fields)
    straight.train()
    resumed.train(resume_from_checkpoint=f"{straight.training_dir}/checkpoint-2")
    assert resumed.state.global_step == straight.state.global_step == 8
    for name in ("model.safetensors", "optimizer.pt"):
        left, right = (Path(each.training_dir) / "checkpoint-8" / name for each in (straight, resumed))
        if name.endswith("safetensors"):
            found, expected = load_file(right), load_file(left)
        else:
            found, expected = (
                {(i, k): v for i, entry in torch.load(path)["state"].items() for k, v in entry.items()}
                for path in (right, left)
            )
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
