"""CT's two encoders beside loops over pairs and sentence-transformers' ContrastiveTensionLoss."""

import copy

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from tests.modeling.gradients import same_gradients


def build(folder, disturb=None, **fields) -> CSEModel:
    fields = {"objectives": ["towers"], "contrastive_weight": 0.0, "pooling": "mean", **fields}
    model = CSEModel.from_backbone(folder, **fields)
    if disturb is not None:  # both start from the same checkpoint
        disturb(model.objectives["towers"].encoder)
    return model


def mean_states(network, ids: Tensor, mask: Tensor) -> Tensor:
    return network(ids[None, mask.bool()]).last_hidden_state[0].mean(0)


def naive(model: CSEModel, batch: dict[str, Tensor], negatives: int) -> Tensor:
    """The binary cross-entropy of one pair after the other."""
    ids, masks = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    B, terms = len(ids), []
    for i in range(B):
        for k in range(negatives + 1):
            j = (i + k) % B
            one = mean_states(model.backbone, ids[i], masks[i])
            other = mean_states(model.objectives["towers"].encoder, ids[j], masks[j])
            probability = 1 / (1 + (-(one * other).sum()).exp())
            same = ids[i][masks[i].bool()].tolist() == ids[j][masks[j].bool()].tolist()
            terms.append(-(probability if same else 1 - probability).log())
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("given", "negatives"), [(2, 2), (7, 4), (0, 4)])
@pytest.mark.parametrize("dropout", [True, False])
def test_the_loss_and_its_gradient_against_the_formula(checkpoint, batch_of, disturb, given, negatives, dropout):
    fields = {"towers_weight": 0.7, "towers_negatives": given, "towers_dropout": dropout}
    model = build(checkpoint("bert", 0.0), disturb, **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    batch.pop("token_counts")
    for name in ("input_ids", "attention_mask"):
        batch[name][1, 0] = batch[name][0, 0]  # the same text twice is no negative
    output = model(**batch)
    expected = 0.7 * naive(twin, batch, negatives)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert output.loss_dict.keys() == {"towers"}
    same_gradients(model, twin, output.loss, expected)


def test_value_and_gradients_are_those_of_sentence_transformers(checkpoint, batch_of, disturb):
    """The same weights and pairs. Its loss is the sum over pairs, ours the mean."""
    st, models, losses = (
        pytest.importorskip(f"sentence_transformers{part}", reason="needs the extra 'st'")
        for part in ("", ".models", ".losses")
    )
    folder = checkpoint("bert", 0.0)
    model = build(folder, disturb, towers_negatives=3)
    modules = [models.Transformer(str(folder)), models.Pooling(16, pooling_mode="mean")]
    peer = losses.ContrastiveTensionLoss(st.SentenceTransformer(modules=modules, device="cpu")).eval()
    networks = {"model1": model.backbone, "model2": model.objectives["towers"].encoder}
    for name, network in networks.items():
        loaded = getattr(peer, name)[0].auto_model.load_state_dict(network.state_dict(), strict=False)
        assert loaded.unexpected_keys == []
    batch = batch_of(model)
    ids, mask = (batch[name][:, 0] for name in ("input_ids", "attention_mask"))
    first = torch.arange(5).repeat_interleave(4)
    second = (first + torch.arange(4).repeat(5)) % 5
    features = [{"input_ids": ids[rows], "attention_mask": mask[rows]} for rows in (first, second)]
    expected = peer(features)
    output = model(**batch)
    torch.testing.assert_close(output.loss * 20, expected)
    (output.loss * 20).backward()
    expected.backward()
    for name, network in networks.items():
        theirs = dict(getattr(peer, name)[0].auto_model.named_parameters())
        for key, parameter in network.named_parameters():
            torch.testing.assert_close(parameter.grad, theirs[key].grad, rtol=1e-4, atol=1e-5, msg=f"{name}.{key}")


def test_the_diagnostics_count_the_pairs_that_are_told_right(checkpoint, batch_of):
    model = build(checkpoint("bert", 0.0), towers_negatives=0)
    for network in (model.backbone, model.objectives["towers"].encoder):
        network.encoder.layer[-1].output.LayerNorm.weight.data.zero_()
        network.encoder.layer[-1].output.LayerNorm.bias.data.fill_(1.0)
    found = model(**batch_of(model)).metrics
    assert (found["towers_same"], found["towers_different"]) == (1, 0)  # every product is positive


def test_without_dropout_the_term_repeats_and_the_contrast_keeps_its_draws(checkpoint, batch_of):
    settings = ({"objectives": []}, {"towers_dropout": False})
    models = [build(checkpoint("bert", 0.3), contrastive_weight=1.0, **each) for each in settings]
    models[0].projector.load_state_dict(models[1].projector.state_dict())
    found = []
    for model in models:
        torch.manual_seed(4)
        found.append([model.train()(**batch_of(models[1])).loss_dict for _ in range(2)])
    for plain, beside in zip(*found, strict=True):
        assert plain["contrastive"] == beside["contrastive"]
    assert found[1][0]["towers"] == found[1][1]["towers"]
    models[1].config.towers_dropout = True
    assert models[1](**batch_of(models[1])).loss_dict["towers"] != found[1][0]["towers"]


def test_both_encoders_train_are_kept_and_the_first_is_exported(checkpoint, batch_of, tmp_path, tokenizer_of):
    model = build(checkpoint("bert")).train()
    own, second = (dict(each.named_parameters()) for each in (model.backbone, model.objectives["towers"].encoder))
    assert all(torch.equal(own[name], second[name]) for name in own)
    model(**batch_of(model)).loss.backward()
    for each in (own, second):
        assert all(p.grad.abs().max() > 0 for name, p in each.items() if "position" not in name)
    model.save_pretrained(tmp_path / "training")
    again = CSEModel.from_pretrained(tmp_path / "training").state_dict()
    assert any(name.startswith("objectives.towers.encoder.") for name in again)
    folder = model.export(tmp_path / "export", tokenizer_of("bert"))
    assert (folder / "model.safetensors").stat().st_size < 1.9 * sum(p.numel() for p in own.values()) * 4


def test_a_value_that_is_not_allowed(checkpoint):
    with pytest.raises(ValueError, match="towers_negatives must be a number of at least 0, got -1"):
        build(checkpoint("bert"), towers_negatives=-1)
