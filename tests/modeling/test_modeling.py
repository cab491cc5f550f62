"""The model: shapes, the whole loss against loops in float64, what trains, what is saved."""

import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModel

import csekit.modeling.modeling_cse as modeling_cse
from csekit.modeling import (
    OBJECTIVES,
    CSEModel,
    InforMinConfig,
    InforMinModel,
    MaskingSpec,
    Objective,
    ObjectiveConfig,
    SimCSEConfig,
    SimCSEModel,
)
from csekit.modeling.configuration_cse import dropout_fields

B, L, H = 4, 9, 16


@pytest.fixture
def informin(encoder_config):
    """``informin(dropout=0.1, **fields)``: InforMin-CL with MLM over a tiny BERT."""

    def build(dropout: float = 0.1, kind: type = InforMinModel, **fields: Any) -> CSEModel:
        fields = {"mlm_weight": 0.1, **fields} if kind is InforMinModel else fields
        return kind(kind.config_class(encoder_config=encoder_config("bert", dropout), **fields)).train()

    return build


# Inference


def test_inference_shapes(informin, make_batch):
    model = informin().eval()
    output = model(**make_batch(B, 0, L))
    assert output.sentence_embedding.shape == (B, H) and output.last_hidden_state.shape == (B, L, H)
    assert torch.equal(output.sentence_embedding, output.last_hidden_state[:, 0])
    ids = make_batch(B, 0, L)["input_ids"]
    torch.testing.assert_close(model(ids), model(ids, torch.ones_like(ids)))


def test_projector_at_inference(informin, make_batch):
    model = informin(projector_at_inference=True).eval()
    output = model(**make_batch(B, 0, L))
    assert torch.equal(output.sentence_embedding, model.projector(output.last_hidden_state[:, 0]))


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last_mean", "top2_mean"])
def test_amount_of_padding_does_not_matter(informin, make_batch, naive, disturb, pooling):
    model = disturb(informin(pooling=pooling)).eval()
    batch = make_batch(B, 0, L)
    embeddings = model(**batch).sentence_embedding
    wider = {name: nn.functional.pad(value, (0, 5)) for name, value in batch.items()}
    torch.testing.assert_close(model(**wider).sentence_embedding, embeddings, rtol=1e-4, atol=1e-5)
    for ids, mask, embedding in zip(*batch.values(), embeddings, strict=True):
        states = model.backbone(input_ids=ids[None, : mask.sum()], output_hidden_states=True).hidden_states
        expected = naive.pool(pooling, tuple(state[0] for state in states))
        torch.testing.assert_close(embedding, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_left_padding_where_positions_follow_the_tokens(encoder_config, make_batch, pooling):
    """RoBERTa counts its positions from the first real token: there the side of the padding must not matter."""
    config = SimCSEConfig(encoder_config=encoder_config("roberta"), pooling=pooling)
    model, batch = SimCSEModel(config).eval(), make_batch(B, 0, L, pad=1)
    left = {name: value.clone() for name, value in batch.items()}
    for row, n in enumerate(batch["attention_mask"].sum(1).tolist()):
        left = {name: value.index_put((torch.tensor(row),), value[row].roll(L - n)) for name, value in left.items()}
    assert not torch.equal(left["input_ids"], batch["input_ids"])
    torch.testing.assert_close(model(**left).sentence_embedding, model(**batch).sentence_embedding)


def test_mask_pooling_from_backbone(checkpoint, tokenizer_of):
    template = '"{sentence}" means {mask}.'.replace('"', ' " ').replace(".", " . ")
    model = SimCSEModel.from_backbone(checkpoint("bert"), pooling="mask", prompt_template=template).eval()
    assert model.config.prompt_mask_offset == -3
    tokenizer = tokenizer_of("bert")
    texts = [template.format(sentence=s, mask="[MASK]") for s in ("w1 w2 [MASK] w3", "w1")]  # a mask in the text too
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    output = model(**batch)
    for row in range(2):
        last = batch["attention_mask"][row].sum() - 3
        assert batch["input_ids"][row, last] == tokenizer.mask_token_id
        assert torch.equal(output.sentence_embedding[row], output.last_hidden_state[row, last])


# Training


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_training_output(informin, make_batch, add_copies, columns):
    output = informin()(**add_copies(make_batch(B, columns, L)), return_loss=True)
    assert list(output.loss_dict) == ["contrastive", "reconstruction", "mlm"]
    torch.testing.assert_close(output.loss.detach(), sum(output.loss_dict.values()), rtol=1e-7, atol=0)
    assert output.sentence_embedding.shape == (max(columns, 2), B, H)
    detached = [*output.loss_dict.values(), *output.metrics.values(), output.sentence_embedding]
    assert output.loss.requires_grad and not any(value.requires_grad for value in detached)
    assert {value.dim() for value in [*output.loss_dict.values(), *output.metrics.values()]} == {0}
    expected = {"positive_cosine", "negative_cosine", "alignment", "uniformity", "identical_texts", "mlm_accuracy"}
    assert output.metrics.keys() == expected


def test_one_row(informin, make_batch, add_copies):
    output = informin()(**add_copies(make_batch(1, 1, L)))
    output.loss.backward()
    assert output.loss_dict["contrastive"] == 0 and all(m.isfinite() for m in output.metrics.values())


def test_a_single_column_is_two_dropout_views_of_the_same_ids(informin, make_batch):
    batch = make_batch(B, 1, L)
    views = informin().encode_views(**{f"{name}_BCL": value for name, value in batch.items()})
    assert torch.equal(views.input_ids, batch["input_ids"].squeeze(1).repeat(2, 1))
    assert not torch.allclose(views.h[0], views.h[1])
    views = informin(dropout=0.0).encode_views(batch["input_ids"], batch["attention_mask"])
    assert torch.equal(views.h[0], views.h[1])


def test_views_are_the_columns(informin, make_batch):
    model, batch = informin(dropout=0.0, projector="linear"), make_batch(B, 3, L)
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    for column in range(3):
        one = model(batch["input_ids"][:, column], batch["attention_mask"][:, column]).sentence_embedding
        torch.testing.assert_close(views.h[column], one)
        torch.testing.assert_close(views.z[column], model.projector(one))


def naive_projection(model: CSEModel, h: Tensor) -> Tensor:
    """All views together: (V·B, H) → (V·B, H), batch statistics by hand."""
    if model.config.projector != "batchnorm":
        return model.projector(h)
    first, norm, _, second, _ = model.projector
    for linear, weight, bias in ((first, norm.weight, norm.bias), (second, None, None)):
        h = h @ linear.weight.T
        mean = sum(h) / len(h)
        variance = sum((row - mean) ** 2 for row in h) / len(h)
        h = torch.stack([(row - mean) / (variance + 1e-5).sqrt() for row in h])
        if weight is not None:
            h = (h * weight + bias).clamp_min(0)
    return h


def naive_loss(model: CSEModel, batch: dict[str, Tensor], naive: SimpleNamespace) -> Tensor:
    """The paper's loss, a sentence at a time and without padding."""
    config, rows = model.config, len(batch["input_ids"])
    h = []
    for column in range(batch["input_ids"].shape[1]):
        for ids, mask in zip(batch["input_ids"][:, column], batch["attention_mask"][:, column], strict=True):
            states = model.backbone(input_ids=ids[None, : mask.sum()], output_hidden_states=True).hidden_states
            h.append(naive.pool(config.pooling, tuple(state[0] for state in states)))
    z = naive_projection(model, torch.stack(h))
    z1, z2, negatives = z[:rows], z[rows : 2 * rows], z[2 * rows :]
    bonus = {(i, rows + i): config.hard_negative_weight for i in range(rows)}
    loss = naive.info_nce(z1, torch.cat([z2, negatives]), config.temperature, bonus=bonus)
    if config.symmetric:
        loss = (loss + naive.info_nce(z2, z1, config.temperature)) / 2
    scale = {"squared_norm": 1.0, "mse": 2 / H}[config.reconstruction]
    return loss + config.reconstruction_weight * scale * naive.squared_norm(z1, z2)


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (2, {}),
        (2, {"symmetric": True, "reconstruction": "mse", "reconstruction_weight": 4.0, "projector": "linear"}),
        (2, {"projector": "batchnorm", "pooling": "mean", "temperature": 0.2}),
        (3, {"hard_negative_weight": 0.7, "pooling": "first_last_mean", "projector": "none"}),
        (3, {"projector": "batchnorm", "symmetric": True, "pooling": "top2_mean"}),
    ],
)
def test_whole_loss_and_gradients_equal_the_loops(informin, make_batch, naive, disturb, columns, fields):
    model = disturb(informin(dropout=0.0, **{"mlm_weight": 0.0, "objectives": ["reconstruction"], **fields}))
    del model.objectives["mlm"]
    batch = make_batch(B, columns, L)
    reference = copy.deepcopy(model).double()
    expected = naive_loss(reference, batch, naive)
    expected.backward()
    output = model(**batch)
    output.loss.backward()
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-5)
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    for name, parameter in model.named_parameters():
        atol = 1e-4 * max(theirs[name].abs().max().item(), 0.1 * largest)
        torch.testing.assert_close(parameter.grad.double(), theirs[name], rtol=1e-3, atol=atol, msg=name)


def test_every_trainable_parameter_moves(informin, make_batch, add_copies):
    model = informin(projector="batchnorm")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimiser.zero_grad()
        model(**add_copies(make_batch(B, 1, L, seed=step), seed=step)).loss.backward()
        assert all(value.grad is not None for value in model.parameters())
        optimiser.step()
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert not still


def test_forward_never_waits_for_the_device(informin, make_batch, add_copies, monkeypatch):
    """No tensor of the model's own code becomes a Python number (each would stall a GPU)."""
    ours = str(Path(modeling_cse.__file__).parent)
    model = informin(projector="batchnorm", mask_identical=True, symmetric=True)
    batch = add_copies(make_batch(B, 3, L))

    def guard(name: str) -> None:
        real = getattr(Tensor, name)

        def refuse(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            assert ours not in sys._getframe(1).f_code.co_filename, f"Tensor.{name} in the forward"
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, refuse)

    for name in ("item", "tolist", "numpy", "nonzero", "cpu", "__bool__", "__float__", "__int__", "__index__"):
        guard(name)
    model(**batch).loss.backward()


def test_bf16_autocast_keeps_the_contrast_in_fp32(informin, make_batch, add_copies, monkeypatch):
    seen = []
    real = modeling_cse.cosine_logits
    monkeypatch.setattr(modeling_cse, "cosine_logits", lambda *args: seen.append(real(*args)) or seen[-1])
    model, batch = informin(dropout=0.0, projector="batchnorm"), add_copies(make_batch(B, 2, L))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch)
    output.loss.backward()
    assert seen[0].dtype == torch.float32
    assert {value.dtype for value in (output.loss, *output.loss_dict.values())} == {torch.float32}
    exact = model(**batch)
    assert output.loss.item() == pytest.approx(exact.loss.item(), rel=0.2)
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


def test_gradient_checkpointing_changes_nothing(informin, make_batch, add_copies):
    model, batch = informin(), add_copies(make_batch(B, 1, L))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(  # the name of the lowest supported version
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        torch.manual_seed(3)
        model.zero_grad()
        model(**batch).loss.backward()
        gradients.append({name: value.grad.clone() for name, value in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


# Identical texts


def repeated(make_batch, columns: int) -> dict[str, Tensor]:
    """A batch whose rows 0 and 2 hold the same text, with id 0 among its tokens and different padding."""
    batch = make_batch(B, columns, L)
    batch["input_ids"][[0, 2]], batch["attention_mask"][[0, 2]] = 0, 0
    text = torch.tensor([1, 30, 0, 31, 0])
    batch["input_ids"][:3:2, :, :5], batch["attention_mask"][:3:2, :, :5] = text, 1
    batch["input_ids"][2, :, 5:] = 7  # padding may hold anything
    return batch


@pytest.mark.parametrize("side", ["right", "left"])
def test_identical_texts_are_counted(informin, make_batch, side):
    model, batch = informin(kind=SimCSEModel), repeated(make_batch, 1)
    if side == "left":
        batch = {name: value.index_put((torch.tensor(2),), value[2].roll(4, -1)) for name, value in batch.items()}
    assert model(**batch).metrics["identical_texts"] == 2
    assert model(**make_batch(B, 1, L)).metrics["identical_texts"] == 0
    batch["attention_mask"][2, :, -5:] = torch.tensor([1, 1, 1, 1, 0] if side == "right" else [0, 1, 1, 1, 1])
    assert model(**batch).metrics["identical_texts"] == 0


@pytest.mark.parametrize("symmetric", [False, True])
def test_identical_texts_leave_the_denominator(informin, make_batch, naive, symmetric):
    fields = {"kind": SimCSEModel, "dropout": 0.0, "projector": "none", "symmetric": symmetric}
    batch = repeated(make_batch, 2)
    model = informin(**fields)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    for masked, excluded in ((False, set()), (True, {(0, 2), (2, 0)})):
        model.config.mask_identical = masked
        expected = naive.info_nce(z[0], z[1], 0.05, excluded=excluded)
        if symmetric:
            expected = (expected + naive.info_nce(z[1], z[0], 0.05, excluded=excluded)) / 2
        torch.testing.assert_close(model(**batch).loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_symmetric_masks_by_the_texts_of_the_column(informin, make_batch, naive):
    """Two rows share the query and have positives of their own: backwards, the other query is the row's own text."""
    batch = make_batch(B, 2, L)
    for value in batch.values():
        value[2, 0] = value[0, 0]
    model = informin(kind=SimCSEModel, dropout=0.0, projector="none", symmetric=True, mask_identical=True)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    backwards = naive.info_nce(z[1], z[0], 0.05, excluded={(0, 2), (2, 0)})
    expected = (naive.info_nce(z[0], z[1], 0.05) + backwards) / 2
    torch.testing.assert_close(model(**batch).loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_hard_negative_equal_to_the_query_is_masked(informin, make_batch, naive):
    batch = make_batch(B, 3, L)
    for value in batch.values():
        value[1, 2] = value[3, 0]
    model = informin(kind=SimCSEModel, dropout=0.0, projector="none", mask_identical=True)
    output = model(**batch)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    expected = naive.info_nce(z[0], torch.cat([z[1], z[2]]), 0.05, excluded={(3, B + 1)})
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-4, atol=1e-5)
    assert output.metrics["identical_texts"] == 1


# Loading and saving


def test_from_backbone_copies_weights_bitwise(checkpoint):
    model = InforMinModel.from_backbone(checkpoint("bert"), reconstruction_weight=4.0)
    source = AutoModel.from_pretrained(checkpoint("bert"), add_pooling_layer=False).state_dict()
    assert model.backbone.state_dict().keys() == source.keys()
    assert all(torch.equal(value, source[name]) for name, value in model.backbone.state_dict().items())
    assert model.config.reconstruction_weight == 4.0
    assert all(value.device.type == "cpu" for value in (*model.parameters(), *model.buffers()))


def test_from_backbone_is_ready_for_inference_throughout(checkpoint, make_batch):
    """As Transformers' from_pretrained: the whole model is in eval mode (was: dropout off, batchnorm on)."""
    model = InforMinModel.from_backbone(checkpoint("bert"), projector="batchnorm", mlm_weight=0.1)
    assert not any(module.training for module in model.modules())
    batch = make_batch(B, 0, L)
    assert torch.equal(model(**batch).sentence_embedding, model(**batch).sentence_embedding)


def test_from_backbone_refuses_unknown_fields(checkpoint):
    with pytest.raises(ValueError, match=r"no field 'temprature'; did you mean one of \['temperature'"):
        SimCSEModel.from_backbone(checkpoint("bert"), temprature=0.1)
    with pytest.raises(ValueError, match="'mlm_probability' must be a field of exactly one objective"):
        SimCSEModel.from_backbone(checkpoint("bert"), mlm_probability=0.1)


def test_from_backbone_refuses_a_checkpoint_that_lacks_weights(encoder_config, tmp_path):
    model = AutoModel.from_config(encoder_config("bert"))
    state = {name: value for name, value in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks 4 weights of BertModel, e.g. 'encoder.layer.1.output"):
        SimCSEModel.from_backbone(tmp_path)


def test_dropout_argument(checkpoint, family):
    model = SimCSEModel.from_backbone(checkpoint(family), dropout=0.37)
    assert dropout_fields(model.config.encoder_config) and set(
        dropout_fields(model.config.encoder_config).values()
    ) == {0.37}
    heads = {n: v for n, v in vars(model.config.encoder_config).items() if "dropout" in n and "classif" in n}
    assert all(value != 0.37 for value in heads.values())
    modules = [module for module in model.backbone.modules() if isinstance(module, nn.Dropout)]
    assert {module.p for module in modules} == {0.37}
    assert set(dropout_fields(model.backbone.config).values()) == {0.37}


def same_state(a: nn.Module, b: nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    different = [name for name, value in left.items() if not torch.equal(value, right[name])]
    assert not different


@pytest.mark.parametrize("projector", ["tanh", "batchnorm", "linear", "none"])
def test_save_and_reload_bitwise(checkpoint, make_batch, add_copies, tmp_path, projector):
    model = InforMinModel.from_backbone(checkpoint("bert"), projector=projector, mlm_weight=0.1).train()
    model(**add_copies(make_batch(B, 1, L))).loss.backward()  # moves running statistics
    model.save_pretrained(tmp_path / "one")
    again = InforMinModel.from_pretrained(tmp_path / "one")
    by_auto = AutoModel.from_pretrained(tmp_path / "one")
    assert type(again) is type(by_auto) is InforMinModel and not again.training
    same_state(model, again)
    same_state(model, by_auto)
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert str(checkpoint("bert")) not in (tmp_path / "one" / "config.json").read_text()


def test_nothing_is_stored_twice(checkpoint, tmp_path):
    model = InforMinModel.from_backbone(checkpoint("bert"), mlm_weight=0.1)
    pointers = [value.data_ptr() for value in model.state_dict().values() if value.numel()]
    assert len(set(pointers)) == len(pointers)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert saved.keys() == model.state_dict().keys()
    assert {name.split(".")[0] for name in saved} == {"backbone", "projector", "objectives"}
    matrices = [name for name, value in saved.items() if value.shape == (97, H)]
    assert matrices == ["backbone.embeddings.word_embeddings.weight"]


def test_from_backbone_refuses_a_training_checkpoint_and_from_pretrained_a_backbone(checkpoint, tmp_path):
    SimCSEModel.from_backbone(checkpoint("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"training checkpoint: .*from_pretrained"):
        SimCSEModel.from_backbone(tmp_path)
    with pytest.raises(ValueError, match=r"'bert'.*from_backbone"):
        SimCSEModel.from_pretrained(checkpoint("bert"))


# An objective from outside


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
