"""The mechanism of the objectives, with one that the package does not know."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from csekit.modeling import (
    OBJECTIVES,
    CSEConfig,
    CSEModel,
    InforMinConfig,
    MaskingSpec,
    Objective,
    ObjectiveConfig,
    SimCSEModel,
    register_objective,
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


@dataclass
class OwnConfig(FarConfig):
    name: ClassVar[str] = "own"


@pytest.fixture
def registry():
    """Remove the objectives that a test registered."""
    before = dict(OBJECTIVES)
    yield
    OBJECTIVES.clear()
    OBJECTIVES.update(before)


@pytest.fixture
def far(registry):
    register_objective(Far)


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


def test_registering(registry):
    @register_objective
    class Own(Far):
        config_class = OwnConfig

    assert OBJECTIVES["own"] is Own
    assert register_objective(Own) is Own  # again: nothing changes
    assert CSEConfig(own_weight=0.25).own_rate == 0.2


def test_a_class_that_is_defined_again_replaces_the_first(registry):
    """As when a notebook's cell runs twice."""
    kinds = [type("Own", (Far,), {"config_class": OwnConfig, "__qualname__": "Own"}) for _ in range(2)]
    for kind in kinds:
        register_objective(kind)
    assert OBJECTIVES["own"] is kinds[1]


@dataclass
class Taken(ObjectiveConfig):
    name: ClassVar[str] = "mlm"


@dataclass
class Reserved(ObjectiveConfig):
    name: ClassVar[str] = "contrastive"


@dataclass
class Unnamed(ObjectiveConfig):
    pass


class Undecorated(ObjectiveConfig):
    name: ClassVar[str] = "undecorated"


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (
            Taken,
            ValueError,
            r"Taken.name must differ from .*, got 'mlm', which is .*objective_mlm.MaskedLM",
        ),
        (Reserved, ValueError, r"Reserved.name must be an identifier, .*got 'contrastive'"),
        (Unnamed, ValueError, r"Unnamed.name must be an identifier, .*got ''"),
        (Undecorated, TypeError, r"Bad.config_class must be a dataclass derived from ObjectiveConfig"),
        (ObjectiveConfig, TypeError, r"Bad.config_class must be a dataclass derived from ObjectiveConfig"),
    ],
)
def test_what_cannot_be_registered(registry, config, kind, message):
    before = dict(OBJECTIVES)
    with pytest.raises(kind, match=message):
        register_objective(type("Bad", (Far,), {"config_class": config}))
    assert before == OBJECTIVES


def test_only_objectives_can_be_registered():
    with pytest.raises(TypeError, match="objective must be a subclass of Objective, got <class 'dict'>"):
        register_objective(dict)


def test_an_own_objective_trains_saves_and_reloads(registry, checkpoint, make_batch, tmp_path):
    register_objective(Far)
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, far_weight=0.5).train()
    batch = make_batch(B, 2, L)
    batch["far_input_ids"] = batch["input_ids"][:, 0].clone()
    batch["far_input_ids"][:, 1] = 4  # masked
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        output = model(**batch)
        output.loss.backward()
        optimiser.step()
        losses.append(output.loss_dict["far"].item())
    assert losses[2] < losses[0]
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path).train()
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    del OBJECTIVES["far"]
    message = r"objective 'far' is not registered: import the module that registers it .*--import my_module"
    with pytest.raises(ValueError, match=message):
        CSEModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["contrastive", "reconstruction"])
def test_a_term_needs_a_name_of_its_own(registry, checkpoint, make_batch, name):
    """The later term took the place of the earlier one, which was left out of the loss."""

    @register_objective
    class Own(Objective):
        config_class = OwnConfig

        def forward(self, views, batch, encode):
            return {name: self.config.weight * views.z.square().mean()}, {}

    model = CSEModel.from_backbone(checkpoint("bert"), reconstruction_weight=0.4, own_weight=0.5)
    with pytest.raises(ValueError, match=f"objective 'own' must name its terms as no other term, got '{name}'"):
        model(**make_batch(B, 1, L))


def test_every_term_of_an_own_objective_has_the_weight_of_the_full_size(registry, checkpoint, make_batch):
    """With Matryoshka, a term with another name than its objective's had the weight 1 at the full size."""

    @register_objective
    class Own(Objective):
        config_class = OwnConfig

        def forward(self, views, batch, encode):
            first, second = views.z[0].square().sum(1).mean(), views.z[1].square().sum(1).mean()
            return {"own": first, "own_second": second}, {}

    sizes = {"matryoshka_dims": [8, H], "matryoshka_weights": [2.0, 0.25], "projector": "none"}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), own_weight=1.0, **sizes)
    output = model(**make_batch(B, 2, L))
    for view, term in enumerate(("own", "own_second")):
        h_BH = output.sentence_embedding[view]
        expected = 0.25 * h_BH.square().sum(1).mean() + 2 * h_BH[:, :8].square().sum(1).mean()
        torch.testing.assert_close(output.loss_dict[term], expected, msg=term)


def test_an_objective_of_weight_0_is_not_computed_and_does_not_train(far, checkpoint):
    """The loss is that without it, and its weights are saved all the same."""
    batch = {"input_ids": torch.randint(5, 50, (2, B, L)), "attention_mask": torch.ones(2, B, L, dtype=torch.int64)}
    models = []
    for objectives in ([{"name": "far", "weight": 0.0}], []):
        torch.manual_seed(0)
        models.append(CSEModel.from_backbone(checkpoint("bert"), objectives=objectives).train())
    left_out = models[0].objectives["far"]
    left_out.forward = lambda *_: pytest.fail("computed")
    assert not any(parameter.requires_grad for parameter in left_out.parameters())
    assert "objectives.far.layer.weight" in models[0].state_dict()
    outputs = []
    for model in models:
        torch.manual_seed(1)
        outputs.append(model(**batch))
    assert outputs[0].loss_dict.keys() == {"contrastive"} and torch.equal(outputs[0].loss, outputs[1].loss)
