"""The mechanism of the objectives, with one that the package does not know."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import Tensor, nn

from csekit.modeling import (
    OBJECTIVES,
    CSEModel,
    InforMinConfig,
    MaskingSpec,
    Objective,
    ObjectiveConfig,
    SimCSEModel,
)

B, L, H = 4, 9, 16


@dataclass
class FarConfig(ObjectiveConfig):
    name: ClassVar[str] = "far"
    weight: float = 0.5
    rate: float = 0.2


class Far(Objective):
    """Uses all of the mechanism: masked copies, an own group, frozen weights outside the state dict."""

    config_class = FarConfig

    def __init__(self, config: Any, encoder_config: Any) -> None:
        super().__init__(config, encoder_config)
        self.layer = nn.Linear(encoder_config.hidden_size, 1)
        self.frozen: list[Tensor] = []
        self.fetched = 0

    @property
    def batch_spec(self) -> MaskingSpec:
        return MaskingSpec(probability=self.config.rate, views=1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self.layer.parameters()), "lr_scale": 10.0, "clip_group": "far"}]

    def load_frozen(self) -> None:
        self.fetched += 1

    def forward(self, views, batch, encode):
        states = encode(batch["far_input_ids"], views.attention_mask[: len(batch["far_input_ids"])])
        loss = self.layer(states[:, 0] - views.h[0]).square().mean()
        return {"far": self.config.weight * loss}, {"far_size": loss.detach()}


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "far", Far)


def test_an_objective_from_outside(far, checkpoint, make_batch, tmp_path):
    model = CSEModel.from_backbone(checkpoint("bert"), far_weight=0.3, rate=0.4, mlm_weight=0.1)
    assert list(model.objectives) == ["far", "mlm"]
    assert model.objectives["far"].fetched == 1
    assert model.batch_specs["far"] == MaskingSpec(probability=0.4, views=1)
    assert list(model.batch_specs) == ["far", "mlm"]
    del model.objectives["mlm"]
    batch = make_batch(B, 1, L)
    output = model.train()(**batch, far_input_ids=batch["input_ids"].squeeze(1))
    assert output.loss_dict["far"].item() == pytest.approx(0.3 * output.metrics["far_size"].item())
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_true_loads_frozen_networks(far, checkpoint, tmp_path):
    CSEModel.from_backbone(checkpoint("bert"), far_weight=0.3).save_pretrained(tmp_path)
    assert CSEModel.from_pretrained(tmp_path).objectives["far"].fetched == 0
    assert CSEModel.from_pretrained(tmp_path, training=True).objectives["far"].fetched == 1
    model, info = CSEModel.from_pretrained(tmp_path, training=True, output_loading_info=True)
    assert model.objectives["far"].fetched == 1 and not info["missing_keys"]


def test_parameter_groups_hold_every_trainable_parameter_once(far, checkpoint):
    model = CSEModel.from_backbone(checkpoint("bert"), far_weight=0.3, mlm_weight=0.1)
    model.backbone.embeddings.requires_grad_(False)
    groups = model.parameter_groups()
    assert [(group["lr_scale"], group["clip_group"]) for group in groups] == [(1.0, "encoder"), (10.0, "far")]
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    trainable = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert len(set(listed)) == len(listed) and set(listed) == set(trainable)
    assert [group["clip_group"] for group in SimCSEModel.from_backbone(checkpoint("bert")).parameter_groups()] == [
        "encoder"
    ]


def test_config_of_a_saved_objective_from_outside(far, checkpoint, tmp_path):
    CSEModel.from_backbone(checkpoint("bert"), far_weight=0.3, rate=0.4).save_pretrained(tmp_path)
    assert CSEModel.from_pretrained(tmp_path).config.objectives == [FarConfig(weight=0.3, rate=0.4)]
    assert InforMinConfig(far_weight=0.3).far_rate == 0.2
