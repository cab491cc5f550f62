"""Matryoshka training beside sentence-transformers' MatryoshkaLoss, its terms, and the exported size."""

import copy
import json

import numpy as np
import pytest
import torch

from csekit.encoding import load_encoder
from csekit.modeling import CSEModel, SimCSEModel

H = 16
NO_DROPOUT = {"decoder_dropout": 0.0}


def peer_of(folder, model: CSEModel):
    st, models, losses = (
        pytest.importorskip(f"sentence_transformers{part}", reason="needs the extra 'st'")
        for part in ("", ".models", ".losses")
    )
    modules = [models.Transformer(str(folder)), models.Pooling(H, pooling_mode="cls")]
    if model.config.projector_at_inference:
        modules.append(models.Dense(H, H, activation_function=torch.nn.Tanh()))
        modules[-1].linear.load_state_dict(model.projector[0].state_dict())
    return st.SentenceTransformer(modules=modules, device="cpu").eval(), losses


@pytest.mark.parametrize("fields", [{"projector": "none"}, {"projector": "tanh", "projector_at_inference": True}])
def test_value_and_gradients_are_those_of_sentence_transformers(checkpoint, batch_of, fields):
    dims, weights = [16, 8, 3], [1.0, 0.5, 2.0]
    nested = {"matryoshka_dims": dims, "matryoshka_weights": weights, "temperature": 0.1}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **nested, **fields)
    (peer, losses), batch = peer_of(checkpoint("bert", 0.0), model), batch_of(model)
    loss = losses.MatryoshkaLoss(peer, losses.MultipleNegativesRankingLoss(peer, scale=10.0), dims, weights)
    columns = [
        {"input_ids": batch["input_ids"][:, c], "attention_mask": batch["attention_mask"][:, c]} for c in range(2)
    ]
    expected, output = loss(columns, torch.zeros(5)), model(**batch)
    torch.testing.assert_close(output.loss, expected, rtol=1e-5, atol=1e-6)
    expected.backward()
    output.loss.backward()
    theirs = dict(peer[0].auto_model.named_parameters())
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6, msg=name)
    if fields["projector"] == "tanh":
        torch.testing.assert_close(model.projector[0].weight.grad, peer[2].linear.weight.grad, rtol=1e-4, atol=1e-6)


def cut_terms(model: CSEModel, batch: dict, size: int) -> dict[str, torch.Tensor]:
    """The terms of a model whose encoder's embeddings have nothing behind the first dimensions."""
    twin = copy.deepcopy(model)
    twin.config.matryoshka_dims = None
    last = twin.backbone.encoder.layer[-1].output

    def blank(module, arguments, states):
        return torch.cat([states[..., :size], torch.zeros_like(states[..., size:])], dim=-1)

    last.register_forward_hook(blank)
    return twin(**batch).loss_dict


TERMS = {
    "reconstruction_weight": 0.4,
    "icm_weight": 0.5,
    "consistency_weight": 0.7,
    "aux_mlm_weight": 0.5,
    "aux_mlm_head_init": "random",
    "mlm_weight": 0.3,
    **NO_DROPOUT,
}


@pytest.mark.parametrize("projector", ["none", "tanh"])
def test_every_term_that_reads_a_vector_counts_once_for_each_size(checkpoint, batch_of, projector, monkeypatch):
    """Against the same model with the embedding's other dimensions at 0, whole layers instead of packed ones."""
    monkeypatch.setattr("csekit.modeling.fast_packing.attention_output", lambda model: None)
    fields = {"matryoshka_dims": [6], "matryoshka_weights": [0.5], "projector": projector, **TERMS}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    batch = batch_of(model)
    alone = copy.deepcopy(model)
    alone.config.matryoshka_dims = None
    full, cut, found = alone(**batch).loss_dict, cut_terms(model, batch, 6), model(**batch)
    assert found.loss_dict["mlm"] == full["mlm"]  # it reads no vector
    for name in ("contrastive", "reconstruction", "icm", "consistency"):
        torch.testing.assert_close(found.loss_dict[name], full[name] + 0.5 * cut[name], rtol=1e-6, atol=1e-9, msg=name)
        assert not torch.isclose(cut[name], full[name]), name
    assert found.loss_dict["aux_mlm"] > full["aux_mlm"]
    torch.testing.assert_close(found.loss, sum(found.loss_dict.values()))
    torch.testing.assert_close(found.metrics["contrastive_6"].double(), cut["contrastive"].double())


def test_a_term_on_the_pooled_state_counts_once_behind_a_kept_projector(checkpoint, batch_of):
    """Regression: the pooled state is not cut then, and its terms were added up, once for each size."""
    terms = {"aux_mlm_weight": 0.5, "aux_mlm_head_init": "random", "icm_weight": 0.5, "icm_representation": "h"}
    terms |= {"dcm_weight": 1.0, "dcm_representation": "h", "reconstruction_weight": 0.4, **NO_DROPOUT}
    fields = {"matryoshka_dims": [4, 6], "projector": "tanh", "projector_at_inference": True, **terms}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields)
    batch, alone = batch_of(model), copy.deepcopy(model)
    alone.config.matryoshka_dims = None
    found, full = model(**batch).loss_dict, alone(**batch).loss_dict
    for name in ("aux_mlm", "icm", "dcm"):
        torch.testing.assert_close(found[name], full[name], msg=name)
    assert found["contrastive"] > 1.5 * full["contrastive"] and found["reconstruction"] > full["reconstruction"]


def test_the_dimension_contrast_is_that_of_the_first_dimensions(checkpoint, batch_of):
    fields = {"dcm_weight": 1.0, "dcm_reduction": "balanced", "contrastive_weight": 0.0, "projector": "none"}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), matryoshka_dims=[6], **fields)
    batch = batch_of(model)
    h = model.encode_views(batch["input_ids"], batch["attention_mask"]).h.detach()
    expected = 0.0
    for size in (6, H):
        a, b = ((v - v.mean(0)) / (v - v.mean(0)).norm(dim=0) for v in h[..., :size].double())
        C, same = a.T @ b, torch.eye(size, dtype=torch.bool)
        expected += (C[same] - 1).square().mean() + C[~same].square().mean()
    torch.testing.assert_close(model(**batch).loss_dict["dcm"].double(), expected, rtol=1e-4, atol=1e-6)


def test_batch_statistics_are_those_of_the_full_size(checkpoint, batch_of):
    models = [
        CSEModel.from_backbone(checkpoint("bert", 0.0), projector="batchnorm", matryoshka_dims=dims).train()
        for dims in (None, [4, 8])
    ]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model(**batch_of(model)).loss.backward()
    buffers = [dict(model.projector.named_buffers()) for model in models]
    assert all(torch.equal(buffers[0][name], buffers[1][name]) for name in buffers[0])
    assert float(buffers[0]["1.num_batches_tracked"]) == 1


def test_modifiers_see_the_cut_vectors_and_the_queue_enters_once(checkpoint, batch_of):
    fields = {"queue_weight": 1.0, "queue_size": 20, "noise_weight": 1.0, "projector": "none"}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), matryoshka_dims=[6], **fields).train()
    batch = batch_of(model)
    for _ in range(2):
        output = model(**batch)
        output.loss.backward()
    assert int(model.objectives["queue"].count) == 10
    assert output.loss_dict["contrastive"] > output.metrics["contrastive_6"]


def test_a_batch_is_no_negative_of_itself_in_any_size(checkpoint, batch_of):
    """The batch enters the queue after the whole contrast. The cut ones read the queue as it was before."""
    fields = {"projector": "none", "matryoshka_dims": [6]}
    plain = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).train()
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), queue_weight=1.0, queue_size=5, **fields).train()
    batch = batch_of(plain)
    first = model(**batch).metrics["contrastive_6"]
    torch.testing.assert_close(first, plain(**batch).metrics["contrastive_6"])  # the queue was empty
    keys = model.objectives["queue"].keys_MH[:, :6]
    z = plain.encode_views(batch["input_ids"], batch["attention_mask"]).z[..., :6]
    cosines = (
        torch.nn.functional.normalize(z[0], dim=-1) @ torch.nn.functional.normalize(torch.cat([z[1], keys]), dim=-1).T
    )
    expected = torch.nn.functional.cross_entropy(cosines / 0.05, torch.arange(5))
    torch.testing.assert_close(model(**batch).metrics["contrastive_6"], expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("projector", ["none", "tanh"])
def test_a_peer_is_cut_like_the_student(checkpoint, batch_of, projector):
    """Without dropout both networks are equal at first, and agree in every size."""
    fields = {"projector": projector, "own_contrast": 0.0, "own_group": 0.0, "matryoshka_dims": [6]}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), peer_weight=1.0, **fields).train()
    output = model(**batch_of(model))
    torch.testing.assert_close(output.loss_dict["peer"], torch.zeros(()), rtol=0, atol=1e-6)
    with torch.no_grad():
        for parameter in model.objectives["peer"].encoder.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    output = model(**batch_of(model))
    both = output.loss_dict["peer"]
    assert both > output.metrics["peer_divergence"] > 0  # the full size, and the cut one beside it
    both_gradient = torch.autograd.grad(model(**batch_of(model)).loss, model.objectives["peer"].encoder.parameters())
    assert all(gradient.isfinite().all() for gradient in both_gradient)


def test_the_exported_folder_carries_its_size(checkpoint, tokenizer_of, tmp_path):
    st = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    texts = ["w1 w2 w3", "w4 w5"]
    model = SimCSEModel.from_backbone(checkpoint("bert"), matryoshka_dims=[4, 8], truncate_dim=8)
    folder = model.export(tmp_path / "cut", tokenizer_of("bert"))
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["truncate_dim"] == 8
    peer = st.SentenceTransformer(str(folder), device="cpu")
    encoder, whole = load_encoder(folder, device="cpu"), load_encoder(folder, device="cpu", truncate_dim=H)
    assert peer.encode(texts).shape == encoder.encode(texts).shape == (2, 8)
    np.testing.assert_allclose(peer.encode(texts), encoder.encode(texts), atol=1e-6)
    np.testing.assert_array_equal(whole.encode(texts)[:, :8], encoder.encode(texts))
    assert whole.encode(texts).shape == (2, H)
    assert encoder.describe()["truncate_dim"] == 8
    with pytest.raises(ValueError, match="truncate_dim must be from 1 to the model's size, got 0"):
        load_encoder(folder, device="cpu", truncate_dim=0)
    with pytest.raises(ValueError, match="truncate_dim must be from 1 to the model's size, 16, got 17"):
        load_encoder(folder, device="cpu", truncate_dim=17)
    settings["truncate_dim"] = 99
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError, match=r"config_sentence_transformers.json: truncate_dim must be from 1 to .* got 99"
    ):
        load_encoder(folder, device="cpu")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"matryoshka_dims": [4, 17]}, "matryoshka_dims must be whole numbers from 1 to .* hidden size, 16, got 17"),
        ({"matryoshka_dims": [4, 4]}, r"matryoshka_dims must differ, got \[4, 4\]"),
        ({"matryoshka_dims": []}, r"matryoshka_dims must be a list of sizes, got \[\]"),
        ({"matryoshka_dims": "64"}, "matryoshka_dims must be a list of sizes, got '64'"),
        (
            {"matryoshka_dims": [4], "matryoshka_weights": [1.0, 2.0]},
            "matryoshka_weights must be one of each of the 1",
        ),
        ({"matryoshka_dims": [4], "matryoshka_weights": [0.0]}, "matryoshka_weights must be a number greater than 0"),
        ({"matryoshka_weights": [1.0]}, "matryoshka_weights need matryoshka_dims"),
        ({"truncate_dim": 17}, "truncate_dim must be from 1 to the encoder's hidden size, 16, got 17"),
        ({"matryoshka_dims": [4], "whitening_groups": 2}, "matryoshka_dims cannot be combined with whitening_groups"),
        ({"matryoshka_dims": [4], "further_positives": "delete"}, "combined with further_positives, got 'delete'"),
        ({"matryoshka_dims": [4], "queue_weight": 1.0}, "projector must be 'none', or projector_at_inference True"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), **fields)


@pytest.mark.parametrize("name", ["distill", "mlm"])
def test_sizes_that_no_term_reads_are_refused(checkpoint, name):
    """They had no effect, and nothing said so. Distillation of vectors reads all dimensions, that of cosines any."""
    fields = {"objectives": [name], "contrastive_weight": 0.0, "projector": "none", "matryoshka_dims": [8]}
    words = f"matryoshka_dims must be left out with contrastive_weight 0 and '{name}', .* no cut vector, got \\[8\\]"
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), **fields)
    cosines = {**fields, "objectives": ["distill"], "distill_loss": "similarities"}
    CSEModel.from_backbone(checkpoint("bert"), **cosines)
    assert CSEModel.from_backbone(checkpoint("bert"), **{**fields, "contrastive_weight": 1.0}).config.matryoshka_dims
