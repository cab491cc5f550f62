"""Training with cached gradients: the same weights and log as without; what cannot be is refused before anything."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from csekit.modeling import OBJECTIVES, Objective, ObjectiveConfig, SimCSEModel
from csekit.trainers import CSETrainingArguments


@dataclass
class FarConfig(ObjectiveConfig):
    name: ClassVar[str] = "far"
    weight: float = 0.5


class Far(Objective):
    """Says nothing of chunks."""

    config_class = FarConfig

    def __init__(self, config: Any, encoder_config: Any) -> None:
        super().__init__(config, encoder_config)
        self.norm = nn.BatchNorm1d(encoder_config.hidden_size)

    def forward(self, views: Any, batch: Any, encode: Any) -> Any:
        return {"far": self.config.weight * self.norm(views.h[0]).square().mean()}, {}


@pytest.mark.slow
def test_a_run_ends_where_one_without_cache_ends(small_run: Callable[..., Any], tmp_path: Path) -> None:
    """Two clipping groups, accumulated micro-batches, packed rows; no dropout, whose draws depend on the chunks."""
    options = {
        "method": "infocse",
        "fields": {"dropout": 0.0, "aux_mlm_head_init": "top_layers", "mlm_weight": 0.1},
        "columns": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "optim": "sgd",  # Adam would blow up the rounding of gradients that are zero
        "learning_rate": 0.03,
        "max_grad_norm": 0.05,  # every step is clipped
    }
    plain = small_run(tmp_path / "plain", **options)
    cached = small_run(tmp_path / "cached", cache_chunk_size=5, **options)
    before = {name: value.clone() for name, value in plain.model.state_dict().items()}
    plain.train()
    cached.train()
    assert len(cached.clip_groups) == 2
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(cached.model.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)
    moved = [name for name, value in plain.model.state_dict().items() if not torch.equal(value, before[name])]
    assert any(name.startswith("backbone.") for name in moved) and any(".head." in name for name in moved)
    logs = [[entry for entry in t.state.log_history if "loss" in entry] for t in (plain, cached)]
    assert [entry.keys() for entry in logs[0]] == [entry.keys() for entry in logs[1]]
    for one, other in zip(*logs, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)


def test_a_chunk_is_all_that_the_networks_see(
    small_run: Callable[..., Any], tmp_path: Path, bf16_computed: None
) -> None:
    trainer = small_run(tmp_path / "run", cache_chunk_size=6, max_steps=2, bf16=True)
    rows: list[int] = []

    def watch(module: nn.Module, arguments: Any, states: torch.Tensor) -> None:
        if torch.is_grad_enabled():  # not the evaluation
            rows.append(len(states))

    trainer.model.config.encoder_config._attn_implementation = "sdpa"  # padded, so that rows can be counted
    trainer.model.backbone.set_attn_implementation("sdpa")
    trainer.model.backbone.embeddings.register_forward_hook(watch)
    trainer.train()
    assert rows == 2 * [6, 6, 4, 4, 6, 6]  # 8 sentences, twice each; the last chunk's graph is needed first


def test_what_cannot_be_cached_is_refused(
    small_run: Callable[..., Any], small_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "far", Far)
    with pytest.raises(ValueError, match=r"must be 0 with the objective 'far'.*Far\.cacheable\), got 4"):
        small_run(tmp_path / "run", fields={"far_weight": 1.0}, cache_chunk_size=4)
    small_run(tmp_path / "run", fields={"far_weight": 1.0})
    monkeypatch.setattr(Far, "cacheable", True)
    with pytest.raises(ValueError, match=r"must be 0 with the layer objectives\.far\.norm, whose statistics"):
        small_run(tmp_path / "run", fields={"far_weight": 1.0}, cache_chunk_size=4)
    model = SimCSEModel.from_backbone(small_backbone)
    model.backbone.embeddings.norm = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match=r"the layer backbone\.embeddings\.norm, whose statistics"):
        model.cache_gradients(2)
    assert model.chunks.size == 0
    with pytest.raises(ValueError, match=r"cache_chunk_size must be 0 \(off\) or a number of texts, got -1"):
        CSETrainingArguments(output_dir=str(tmp_path), cache_chunk_size=-1)


def test_the_next_trainer_sets_the_model_back(small_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", cache_chunk_size=4, max_steps=1)
    assert trainer.model.chunks.size == 4
    trainer.model.cache_gradients(0)
    assert trainer.model.chunks.size == 0
