"""Perturbed token embeddings of a view (ConSERT), against an encoder that is called text by text."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from csekit.modeling.perturbation import parse_changes
from tests.modeling.gradients import same_gradients

FIELDS = {"perturb_first": "feature_cutoff:0.3+shuffle", "perturb_second": "token_cutoff:0.4+dropout:0.2"}


def embedded(model: Any, ids: Tensor, places: Tensor, keep: Tensor) -> Tensor:
    """The last states of one text: its tokens at the given positions, its embeddings times ``keep`` (L, E)."""
    embeddings = model.embeddings(input_ids=ids[None], position_ids=places[None])
    return model.encoder(embeddings * keep)[0][0]


def vectors(model: CSEModel, batch: dict[str, Tensor]) -> list[Tensor]:
    """The mean states of both views, as ConSERT's code computes them: shuffled tokens keep their row and get the
    position of their new place; the mean over tokens does not see the order."""
    ids, mask = (batch[name][:, :2].transpose(0, 1).flatten(0, 1) for name in ("input_ids", "attention_mask"))
    parts = {name: batch.get(f"perturbations_{name}") for name in ("order", "tokens", "features", "elements")}
    found = []
    for i in range(len(ids)):
        n = int(mask[i].sum())
        places = torch.arange(n)
        if parts["order"] is not None:
            places[parts["order"][i, :n]] = torch.arange(n)
        keep = torch.ones(n, 16).double()
        if parts["tokens"] is not None:  # drawn for the places behind the shuffle
            keep = keep * parts["tokens"][i, :n][places, None] * parts["features"][i]
        if parts["elements"] is not None:
            keep = keep * parts["elements"][i, :n][places]
        found.append(embedded(model.backbone, ids[i, :n], places, keep).mean(0))
    return found


def info_nce(z: list[Tensor], B: int, naive: Any) -> Tensor:
    rows = []
    for i in range(B):
        scores = [(naive.cosine(z[i], z[B + k]) / 0.2).exp() for k in range(B)]
        rows.append(-(scores[i] / sum(scores)).log())
    return sum(rows) / B


@pytest.mark.parametrize("fields", [FIELDS, {"perturb_second": "shuffle"}, {"perturb_first": "token_cutoff"}])
def test_the_contrast_of_perturbed_views_against_the_formula(checkpoint, batch_of, naive, fields):
    options = {"pooling": "mean", "projector": "none", "temperature": 0.2}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **options, **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    twin.backbone.set_attn_implementation("eager")
    output = model(**batch)
    expected = info_nce(vectors(twin, batch), 5, naive)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    plain = {name: value for name, value in batch.items() if not name.startswith("perturbations")}
    assert (model(**plain).loss - output.loss).abs() > 1e-3
    same_gradients(model, twin, output.loss, expected)


def test_every_family_and_pooling_packed_and_padded(checkpoint, batch_of, tokenizer_of, family):
    """The same vectors whether padding is computed or not; other ones than without perturbation."""
    fields = {"pooling": "cls", "perturb_first": "feature_cutoff:0.5", "perturb_second": "shuffle+token_cutoff:0.5"}
    model = CSEModel.from_backbone(checkpoint(family, 0.0), **fields).eval()
    batch = batch_of(model, family)
    given = (batch["input_ids"], batch["attention_mask"], None)
    packed = model.encode_views(*given, batch).h
    changed = (packed - model.encode_views(*given).h).abs().amax(-1) > 1e-4
    assert changed[0].all()
    assert changed[1].any()
    model.backbone.set_attn_implementation("sdpa" if family != "deberta-v2" else "eager")
    torch.testing.assert_close(model.encode_views(*given, batch).h, packed, rtol=1e-3, atol=1e-4)


def test_a_third_column_and_further_positives_stay_as_they_are(checkpoint, batch_of):
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **FIELDS, further_positives="dropout")
    batch = batch_of(model)
    batch.pop("token_counts")
    for name in ("input_ids", "attention_mask"):
        batch[name] = torch.cat([batch[name], batch[name][:, :1]], dim=1)
    plain = {name: value for name, value in batch.items() if not name.startswith("perturbations")}
    views = [model.encode_views(batch["input_ids"], batch["attention_mask"], None, each) for each in (batch, plain)]
    torch.testing.assert_close(views[0].h[2], views[1].h[2])
    assert (views[0].h[0] - views[1].h[0]).abs().max() > 1e-2
    assert torch.equal(views[0].input_ids, views[1].input_ids)
    assert torch.equal(views[0].texts, views[1].texts)


def test_a_peer_reads_the_same_perturbed_views(checkpoint, batch_of):
    """Both networks start from the same weights: without dropout they agree."""
    fields = {"peer_weight": 1.0, "further_positives": "shuffle", "further_positives_weight": 0.0}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **FIELDS, **fields)
    output = model(**batch_of(model))
    torch.testing.assert_close(output.metrics["peer_divergence"], torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(output.metrics["peer_contrastive"], output.loss_dict["contrastive"])


def test_inference_and_evaluation_are_not_perturbed(checkpoint, make_batch):
    texts = make_batch(5, 1)
    rows = (texts["input_ids"][:, 0], texts["attention_mask"][:, 0])
    models = [CSEModel.from_backbone(checkpoint("bert"), **each) for each in ({}, FIELDS)]
    one, other = (model(*rows).sentence_embedding for model in models)
    assert torch.equal(one, other)


def test_settings_are_read_and_kept(checkpoint, tmp_path):
    model = CSEModel.from_backbone(checkpoint("bert"), **FIELDS)
    assert model.config.view_changes == (
        (("feature_cutoff", 0.3), ("shuffle", 0.2)),
        (("token_cutoff", 0.4), ("dropout", 0.2)),
    )
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path)
    assert again.batch_specs == model.batch_specs
    assert model.batch_specs["perturbations"].width == 16


@pytest.mark.parametrize(
    "value", ["swap", "shuffle:0.5", "dropout:1.0", "dropout:x", "dropout+dropout", "", "dropout+"]
)
def test_values_that_are_not_allowed(checkpoint, value):
    with pytest.raises(ValueError, match=r"perturb_second must be different ones of .*, got '"):
        CSEModel.from_backbone(checkpoint("bert"), perturb_second=value)


def test_a_value_of_another_type():
    with pytest.raises(ValueError, match="perturb_first must be text or None, got 3"):
        parse_changes("perturb_first", 3)


def test_perturbed_views_whose_attention_is_read(checkpoint, batch_of):
    """Reading the attention changes neither the contrast nor its gradient."""
    attention = {"objectives": ["attention"], "attention_first_layer": 0, "attention_last_layer": 1}
    found = []
    for more in ({}, attention | {"attention_weight": 1e-9}):
        model = CSEModel.from_backbone(checkpoint("bert", 0.0), pooling="mean", projector="none", **FIELDS, **more)
        model = model.double().train()
        output = model(**batch_of(model))
        output.loss.backward()
        found.append((output.loss.detach().double(), model.backbone.embeddings.word_embeddings.weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
