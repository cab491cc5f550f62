"""Distillation beside sentence-transformers' MSELoss, as naive loops, and what it does to views and projector."""

import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MSELoss
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from csekit.encoding import load_encoder
from csekit.modeling import CSEModel

MAPPED = {"projector": "linear", "projector_size": 24, "projector_at_inference": True}


def build(folder, **fields) -> CSEModel:
    given = {"objectives": ["distill"], "contrastive_weight": 0.0, "projector": "none", "pooling": "mean", **fields}
    return CSEModel.from_backbone(folder, **given)


def taught(batch, size: int) -> dict[str, torch.Tensor]:
    return batch | {
        "teacher_0": torch.randn(len(batch["input_ids"]), size, generator=torch.Generator().manual_seed(3))
    }


@pytest.mark.parametrize("fields", [{}, MAPPED], ids=["same size", "a linear map"])
def test_value_and_gradients_are_those_of_sentence_transformers(checkpoint, make_batch, fields):
    """Sentence and translation get the teacher's vector of the sentence."""
    folder = checkpoint("bert", 0.0)
    model, size = build(folder, **fields), fields.get("projector_size", 16)
    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(16, pooling_mode="mean")]
    if fields:
        dense = Dense(16, size, activation_function=torch.nn.Identity())
        dense.linear.load_state_dict(model.projector.state_dict())
        modules.append(dense)
    batch = taught(make_batch(5, 2), size)
    columns = [{name: batch[name][:, c] for name in ("input_ids", "attention_mask")} for c in (0, 1)]
    expected = MSELoss(SentenceTransformer(modules=modules, device="cpu")).eval()(columns, batch["teacher_0"])
    output = model(**batch)
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    expected.backward()
    theirs = dict(transformer.auto_model.named_parameters())
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("loss", ["cosine", "similarities"])
def test_losses_are_the_naive_loops(checkpoint, make_batch, loss):
    model = build(checkpoint("bert", 0.0), distill_loss=loss)
    batch = taught(make_batch(4, 2), 16 if loss == "cosine" else 7)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    views, t = z.detach().double(), batch["teacher_0"].double()

    def cos(a, b) -> float:
        return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))

    total = 0.0
    for z in views:
        for i in range(4):
            if loss == "cosine":
                total += (1 - cos(z[i], t[i])) / 8
            else:
                total += sum((cos(z[i], z[k]) - cos(t[i], t[k])) ** 2 for k in range(4) if k != i) / 3 / 8
    assert model(**batch).loss.item() == pytest.approx(total, rel=1e-5)


def test_a_single_sentence_is_encoded_once_unless_something_reads_two_views(checkpoint, make_batch):
    batch = taught(make_batch(4, 1), 16)
    for fields, views in (({}, 1), ({"contrastive_weight": 1.0}, 2), ({"dcm_weight": 1.0}, 2)):
        model = build(checkpoint("bert"), **fields).train()
        assert len(model.encode_views(batch["input_ids"], batch["attention_mask"]).z) == views
    alone = build(checkpoint("bert", 0.0))(**batch)
    assert alone.loss_dict.keys() == {"distill"}
    assert torch.isfinite(alone.metrics["distill_agreement"])


def test_the_exported_student_has_the_teachers_size(checkpoint, tokenizer_of, make_batch, tmp_path):
    model = build(checkpoint("bert", 0.0), **MAPPED)
    model.export(tmp_path, tokenizer_of("bert"))
    texts = ["w1 w2 w3", "w4"]
    found = load_encoder(tmp_path, device="cpu").encode(texts)
    assert found.shape == (2, 24)
    peer = SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(peer))


def test_an_encoder_of_kept_layers_is_computed_as_any_other(checkpoint, batch_of):
    """Every part reads the new configuration: batches are packed, and an objective gets its attention."""
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), layers=[1])
    assert model.backbone.config._attn_implementation == "csekit_packed"
    assert all(
        getattr(module, "config", model.backbone.config) is model.backbone.config
        for module in model.backbone.modules()
    )
    fields = {"attention_first_layer": 0, "attention_last_layer": 0, "attention_groups": 1}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), layers=[1], attention_weight=1.0, **fields).train()
    assert model(**batch_of(model)).loss_dict["attention"].isfinite()


@pytest.mark.parametrize("name", ["towers", "peer", "aux_mlm", "conditional_mlm"])
def test_networks_that_start_from_all_layers_refuse_kept_ones(checkpoint, name):
    with pytest.raises(ValueError, match=f"layers must be left out with '{name}', whose own network starts from all"):
        CSEModel.from_backbone(checkpoint("bert", 0.0), layers=[1], objectives=[name])


def test_kept_layers_are_those_of_the_checkpoint_and_reload(checkpoint, make_batch, tmp_path):
    whole, cut = build(checkpoint("modernbert")), build(checkpoint("modernbert"), layers=[0, 2])
    assert cut.config.encoder_config.num_hidden_layers == cut.backbone.config.num_hidden_layers == 2
    own = whole.config.encoder_config.layer_types
    assert cut.config.encoder_config.layer_types == [own[0], own[2]]
    wanted = {name.replace("layers.2.", "layers.1."): value for name, value in whole.backbone.state_dict().items()
              if "layers.1." not in name}  # fmt: skip
    found = cut.backbone.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    cut.save_pretrained(tmp_path)
    batch = make_batch(3, 0)
    torch.testing.assert_close(
        CSEModel.from_pretrained(tmp_path)(**batch).sentence_embedding, cut(**batch).sentence_embedding
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"distill_loss": "kl"}, "distill_loss must be one of 'mse', 'cosine', 'similarities', got 'kl'"),
        ({"projector_size": 8}, "projector must be 'linear' with projector_size, got 'none'"),
        ({**MAPPED, "projector_size": 0}, "projector_size must be a number of at least 1, got 0"),
        ({**MAPPED, "dcm_weight": 1.0}, "projector_size must be left out with the objective 'dcm', got 24"),
        ({**MAPPED, "matryoshka_dims": [8]}, "projector_size must be left out with matryoshka_dims"),
        ({"layers": [0, 2]}, r"layers must be numbers from 0 to 1, the encoder's last layer, got \[0, 2\]"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        build(checkpoint("bert"), **fields)
