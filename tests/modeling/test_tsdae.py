"""TSDAE beside sentence-transformers' DenoisingAutoEncoderLoss, and its decoders."""

import copy

import pytest
import torch

from csekit.modeling import CSEModel, Encode


def build(folder, **fields) -> CSEModel:
    return CSEModel.from_backbone(folder, **{"objectives": ["tsdae"], "contrastive_weight": 0.0, **fields})


def peer_loss(folder, pooling: str = "cls"):
    st, models, losses = (
        pytest.importorskip(f"sentence_transformers{part}", reason="needs the extra 'st'")
        for part in ("", ".models", ".losses")
    )
    modules = [models.Transformer(str(folder)), models.Pooling(16, pooling_mode=pooling)]
    return losses.DenoisingAutoEncoderLoss(st.SentenceTransformer(modules=modules, device="cpu")).eval()


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "cls"), ("bert", "mean"), ("roberta", "cls"), ("electra", "cls")]
)
def test_value_and_gradients_are_those_of_sentence_transformers(checkpoint, batch_of, kind, pooling):
    """The same checkpoint, the same weights of the attention to the vector, the same two batches of ids."""
    model, peer = build(checkpoint(kind, 0.0), pooling=pooling), peer_loss(checkpoint(kind, 0.0), pooling)
    decoder, base = model.objectives["tsdae"].decoder, peer.decoder.base_model
    for path, name in decoder.names.items():
        base.get_submodule(path).load_state_dict(decoder.own[name].state_dict())
    batch = batch_of(model, kind)
    noisy, whole = (
        {"input_ids": ids, "attention_mask": mask}
        for ids, mask in (
            (batch["tsdae_input_ids"], batch["tsdae_attention_mask"]),
            (batch["input_ids"][:, 0], batch["attention_mask"][:, 0]),
        )
    )
    whole["input_ids"] = whole["input_ids"][:, : whole["attention_mask"].sum(1).max()]  # as its own collator pads
    expected = peer([noisy, whole], torch.zeros(len(noisy["input_ids"])))
    output = model(**batch)
    assert expected > 1
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    expected.backward()
    theirs = dict(base.named_parameters())
    found = dict(model.backbone.named_parameters())
    found |= {f"{path}.{key}": p for path, n in decoder.names.items() for key, p in decoder.own[n].named_parameters()}
    assert found.keys() == {name for name in theirs if not name.startswith("pooler.")}
    for name, parameter in found.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("kind", "decoder"), [("bert", "tied"), ("bert", "small"), ("mpnet", "small")])
def test_every_weight_of_the_decoder_trains_and_the_encoder_through_it(checkpoint, batch_of, kind, decoder):
    model = build(checkpoint(kind), tsdae_decoder=decoder).train()
    model(**batch_of(model, kind)).loss.backward()
    trained = [*model.objectives["tsdae"].named_parameters(), *model.backbone.named_parameters()]
    idle = {name for name, p in trained if p.grad is None or p.grad.abs().max() == 0}
    # attention to a single vector has the weight 1, whatever its query and key are
    free = {name for name, _ in trained if ".self.query." in name or ".self.key." in name}
    assert {name for name in idle - free if "crossattention" not in name} == set()
    assert idle <= free


def test_the_small_decoder_reads_the_tokens_before_only(checkpoint, batch_of):
    """−log p of a token does not move with the tokens behind it, and moves with those before it and the vector."""
    model = build(checkpoint("bert", 0.0), tsdae_decoder="small", tsdae_decoder_dropout=0.0)
    batch = batch_of(model)
    objective, views = model.objectives["tsdae"], model.encode_views(batch["input_ids"], batch["attention_mask"])
    words = model.backbone.get_input_embeddings().weight
    encode = Encode(model.backbone, words, pooled=model.pooled_in_chunks)
    target = objective.target(views, batch, encode)
    losses = objective.predict(target, encode)[0]
    L, place = target.ids.shape[1], 4
    ids = target.ids.clone()
    ids[0, place] = 90  # the label at its place stays: only what the decoder reads changes
    changed = objective.predict(target.part(ids, target.mask, target.vectors, *target.places), encode)[0]
    moved = [int(p) for p, a, b in zip(target.positions, losses, changed, strict=True) if not torch.equal(a, b)]
    assert moved == [p for p in target.positions.tolist() if place < p < L]
    other = objective.predict(target.part(target.ids, target.mask, target.vectors + 1, *target.places), encode)[0]
    assert (other - losses).abs().min() > 0


def test_a_checkpoint_holds_the_shared_weights_once_and_reloads(checkpoint, batch_of, tmp_path):
    model = build(checkpoint("bert"), contrastive_weight=1.0)
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path)
    own = [name for name in again.state_dict() if name.startswith("objectives.tsdae.decoder.")]
    assert own
    assert all(".own.encoder_layer_" in name for name in own)
    batch = batch_of(model)
    twin = copy.deepcopy(again)
    for each in (model, again, twin):
        assert torch.equal(each(**batch).loss, model(**batch).loss)


def test_a_head_that_the_checkpoint_lacks_is_told(checkpoint, tmp_path, caplog):
    model = build(checkpoint("bert"), tsdae_decoder="small")
    model.backbone.save_pretrained(tmp_path)
    build(tmp_path)
    assert "the decoder's head of 'tsdae' starts random" in caplog.text


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("bert", {"tsdae_decoder": "large"}, "tsdae_decoder must be one of 'tied', 'small', got 'large'"),
        ("bert", {"tsdae_deletion": 1.0}, "tsdae_deletion must be a number of at least 0 and below 1, got 1.0"),
        ("bert", {"tsdae_decoder_layers": 0}, "tsdae_decoder_layers must be a number of at least 1, got 0"),
        ("distilbert", {}, "tsdae_decoder must be 'small' for the family 'distilbert'"),
        ("albert", {}, "tsdae_decoder must be 'small' for the family 'albert'"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, kind, fields, words):
    with pytest.raises(ValueError, match=words):
        build(checkpoint(kind), **fields)
