"""Margin-MSE beside sentence-transformers' MarginMSELoss, and what it refuses."""

import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MarginMSELoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import pairwise_cos_sim, pairwise_dot_score

from csekit.encoding import load_encoder
from csekit.modeling import CSEModel


def build(folder, **fields) -> CSEModel:
    given = {"objectives": ["margin"], "contrastive_weight": 0.0, "projector": "none", "pooling": "mean", **fields}
    return CSEModel.from_backbone(folder, **given)


@pytest.mark.parametrize(("similarity", "peer"), [("dot", pairwise_dot_score), ("cosine", pairwise_cos_sim)])
def test_value_and_gradients_are_those_of_sentence_transformers(checkpoint, make_batch, similarity, peer):
    folder = checkpoint("bert", 0.0)
    model = build(folder, margin_similarity=similarity)
    transformer = Transformer(str(folder))
    other = SentenceTransformer(modules=[transformer, Pooling(16, pooling_mode="mean")], device="cpu")
    batch = make_batch(5, 3) | {"teacher_0": torch.randn(5, 1)}
    columns = [{name: batch[name][:, c] for name in ("input_ids", "attention_mask")} for c in range(3)]
    expected = MarginMSELoss(other, similarity_fct=peer).eval()(columns, batch["teacher_0"].squeeze(1))
    output = model(**batch)
    torch.testing.assert_close(output.loss, expected)
    assert 0 <= output.metrics["margin_order"] <= 1
    output.loss.backward()
    expected.backward()
    theirs = dict(transformer.auto_model.named_parameters())
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_export_names_the_similarity(checkpoint, tokenizer_of, tmp_path, similarity):
    build(checkpoint("bert"), margin_similarity=similarity).export(tmp_path, tokenizer_of("bert"))
    settings = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert settings["similarity_fn_name"] == similarity


def test_a_term_of_weight_0_names_no_similarity(checkpoint, tokenizer_of, tmp_path):
    """The contrast alone trained, which compares cosines, and search took dot products."""
    build(checkpoint("bert"), margin_weight=0.0, contrastive_weight=1.0).export(tmp_path, tokenizer_of("bert"))
    assert load_encoder(tmp_path).similarity_fn_name == "cosine"


def test_the_checkpoint_is_searched_with_its_similarity(checkpoint, tokenizer_of, tmp_path):
    """Retrieval and search took the cosine for ``training/``, and the dot product for the export."""
    build(checkpoint("bert"), margin_similarity="dot").save_pretrained(tmp_path / "training")
    tokenizer_of("bert").save_pretrained(tmp_path / "training")
    assert load_encoder(tmp_path / "training").similarity_fn_name == "dot"


def test_a_similarity_that_is_not_allowed(checkpoint):
    with pytest.raises(ValueError, match="margin_similarity must be one of 'dot', 'cosine', got 'euclidean'"):
        build(checkpoint("bert"), margin_similarity="euclidean")
