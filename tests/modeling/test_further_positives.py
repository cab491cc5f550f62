"""Several positives of a sentence, PCL's contrast of all of them and its two networks, against loops over float64."""

import copy

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEConfig, CSEModel
from csekit.modeling.losses import group_contrast, group_divergence, group_logits
from tests.modeling.gradients import same_gradients

KINDS = "dropout+shuffle+reverse"


def vectors(model, batch, network=None) -> tuple[list[Tensor], list[list[Tensor]]]:
    """z1 of each sentence, and the positives of each sentence, encoded text by text."""
    network = network or model.backbone

    def one(ids: Tensor, mask: Tensor) -> Tensor:
        return model.projector(network(ids[None], mask[None]).last_hidden_state[:, 0])[0]

    ids, masks, B = batch["input_ids"], batch["attention_mask"], len(batch["input_ids"])
    further = [one(*row) for row in zip(*further_rows(batch), strict=True)] if further_rows(batch) else []
    z1 = [one(ids[i, 0], masks[i, 0]) for i in range(B)]
    return z1, [[one(ids[i, 1], masks[i, 1]), *further[i::B]] for i in range(B)]


def further_rows(batch):
    names = [f"further_positives_{key}" for key in ("input_ids", "attention_mask")]
    return [batch[name] for name in names] if names[0] in batch else None


def group(i: int, query: Tensor, positives: list[Tensor], others: list[Tensor], naive) -> list[Tensor]:
    """The softmax over the positives of sentence i and the other sentences, at τ = 0.2."""
    scores = [(naive.cosine(query, each) / 0.2).exp() for each in positives]
    scores += [(naive.cosine(query, each) / 0.2).exp() for j, each in enumerate(others) if j != i]
    return [score / sum(scores) for score in scores]


def naive_group(z1, positives, naive) -> Tensor:
    """The binary cross-entropy of σ(p), one member of a group after the other."""
    rows = []
    for i in range(len(z1)):
        p = group(i, z1[i], positives[i], z1, naive)
        P = len(positives[i])
        each = [-(1 / (1 + (-value).exp())).log() for value in p[:P]]
        each += [-(1 - 1 / (1 + (-value).exp())).log() for value in p[P:]]
        rows.append(sum(each) / len(each))
    return sum(rows) / len(rows)


def naive_divergence(P: list[list[Tensor]], Q: list[list[Tensor]]) -> Tensor:
    rows = [
        sum(q * (q / p).log() for p, q in zip(*each, strict=True)) / len(each[0]) for each in zip(P, Q, strict=True)
    ]
    return sum(rows) / len(rows)


def model_of(checkpoint, **fields) -> CSEModel:
    return CSEModel.from_backbone(checkpoint("bert", 0.0), temperature=0.2, **fields).double()


def test_the_contrast_adds_one_for_each_further_positive(checkpoint, batch_of, naive):
    model = model_of(checkpoint, further_positives=KINDS, further_positives_weight=0.7)
    twin, batch = copy.deepcopy(model), batch_of(model)
    z1, positives = vectors(twin, batch)
    columns = [torch.stack(each) for each in zip(*positives, strict=True)]
    first, *further = [naive.info_nce(torch.stack(z1), column, 0.2) for column in columns]
    output = model(**batch)
    assert len(further) == 3
    torch.testing.assert_close(output.loss.double(), first + 0.7 * sum(further), rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, first + 0.7 * sum(further))


@pytest.mark.parametrize("how", ["mean", "first_last"])
def test_the_contrast_with_composed_positives_against_the_formula(checkpoint, batch_of, naive, how):
    """CompCSE: the pooled states of a sentence's two halves make one, which is then projected; the first 5 of z."""
    fields = {"further_positives": "dropout+halves", "composition": how, "contrast_dims": 5}
    model = model_of(checkpoint, **fields, second_view_weight=0.0, further_positives_weight=0.7)
    twin, batch = copy.deepcopy(model), batch_of(model)

    def state(ids: Tensor, mask: Tensor) -> Tensor:
        return twin.backbone(ids[None], mask[None]).last_hidden_state[0, 0]

    h1 = [state(*row) for row in zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], strict=True)]
    again, left, right = torch.stack([state(*row) for row in zip(*further_rows(batch), strict=True)]).split(5)
    pairs = [(a + b) / 2 if how == "mean" else torch.cat([a[:8], b[8:]]) for a, b in zip(left, right, strict=True)]
    z1, z2, z3 = (twin.projector(torch.stack(list(each)))[:, :5] for each in (h1, again, pairs))
    expected = 0.7 * (naive.info_nce(z1, z2, 0.2) + naive.info_nce(z1, z3, 0.2))
    output = model(**batch)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


@pytest.mark.parametrize("kinds", [None, KINDS])
def test_the_contrast_of_all_positives_against_the_formula(checkpoint, batch_of, naive, kinds):
    fields = {"further_positives": kinds, "further_positives_weight": 0.0, "group_weight": 0.7}
    model = model_of(checkpoint, **fields, contrastive_weight=0.0)
    twin, batch = copy.deepcopy(model), batch_of(model)
    expected = 0.7 * naive_group(*vectors(twin, batch), naive)
    output = model(**batch)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-7)
    assert output.loss_dict.keys() == {"group"}
    output.loss, expected = 100 * output.loss, 100 * expected  # its gradient is small
    same_gradients(model, twin, output.loss, expected)


@pytest.mark.parametrize("kinds", [None, KINDS])
def test_the_cooperation_against_the_formula(checkpoint, batch_of, naive, disturb, kinds):
    fields = {"further_positives": kinds, "contrastive_weight": 0.0, "peer_weight": 0.7, "peer_own_contrast": 0.3}
    model = model_of(checkpoint, objectives=["peer"], peer_own_group=0.4, **fields)
    disturb(model.objectives["peer"].encoder)  # both start from the same checkpoint: no divergence without dropout
    twin, batch = copy.deepcopy(model), batch_of(model)
    z1, zp = vectors(twin, batch)
    y1, yp = vectors(twin, batch, twin.objectives["peer"].encoder)
    rows = range(len(z1))
    P, Q = ([group(i, a[i], b[i], c, naive) for i in rows] for a, b, c in ((z1, yp, y1), (y1, zp, z1)))
    S, T = ([group(i, a[i], b[i], a, naive) for i in rows] for a, b in ((z1, zp), (y1, yp)))
    divergence = naive_divergence(P, Q) + naive_divergence(S, T)
    contrast = naive.info_nce(torch.stack(y1), torch.stack([each[0] for each in yp]), 0.2)
    expected = 0.7 * (divergence + 0.3 * contrast + 0.4 * naive_group(y1, yp, naive))
    output = model(**batch)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert output.metrics["peer_divergence"].item() == pytest.approx(divergence.item(), rel=1e-4)
    assert divergence > 1e-3
    same_gradients(model, twin, output.loss, expected)


def test_equal_groups_do_not_diverge_and_perfect_positives_leave_a_loss():
    z, own = torch.randn(4, 6), torch.arange(4)
    logits = group_logits(z, z[None], z, own, 0.05)
    assert group_divergence(logits, logits) == 0
    far = torch.tensor([[500.0, -torch.inf, 0.0, 0.0]])
    loss, share = group_contrast(far, 1)
    assert share == 1
    # σ(1) at the positive, σ(0) at both others: the binary cross-entropy of a softmax does not reach 0
    torch.testing.assert_close(loss, torch.tensor((0.31326 + 2 * 0.69315) / 3), atol=1e-4, rtol=0)


def test_the_encoder_s_dropout_is_the_same_with_further_positives_and_a_peer(checkpoint, batch_of):
    """Regression of comparability: what a run draws for its two views does not depend on the rest."""
    fields = {"further_positives": KINDS, "further_positives_weight": 0.0, "peer_weight": 1.0}
    models = [CSEModel.from_backbone(checkpoint("bert", 0.3), **each).train() for each in ({}, fields)]
    models[0].projector.load_state_dict(models[1].projector.state_dict())
    batch, found = batch_of(models[1]), []
    plain = {name: value for name, value in batch.items() if not name.startswith("further")}
    for model, given in zip(models, (plain, batch), strict=True):
        torch.manual_seed(4)
        found.append([model(**given).loss_dict for _ in range(2)])
    for one, other in zip(*found, strict=True):
        assert one["contrastive"] == other["contrastive"]
    assert found[1][0]["peer"] != found[1][1]["peer"]


def test_identical_texts_are_left_out_of_the_contrast_with_further_positives(checkpoint, batch_of):
    model = model_of(checkpoint, further_positives="shuffle", mask_identical=True)
    batch = batch_of(model)
    losses = []
    for masked in (True, False):
        model.config.mask_identical = masked
        for name in ("input_ids", "attention_mask"):
            batch[name][1], rows = batch[name][0], batch[f"further_positives_{name}"]
            length = min(rows.shape[1], batch[name].shape[2])
            rows[1, :length] = rows[0, :length]
        batch.pop("token_counts", None), batch.pop("further_positives_token_counts", None)
        losses.append(model(**batch).loss)
    assert losses[0] < losses[1]


def test_the_peer_starts_from_the_checkpoint_trains_and_is_not_exported(checkpoint, batch_of, tmp_path, tokenizer_of):
    model = CSEModel.from_backbone(checkpoint("bert"), objectives=["peer"]).train()
    own, peer = (dict(each.named_parameters()) for each in (model.backbone, model.objectives["peer"].encoder))
    assert own.keys() == peer.keys()
    assert all(torch.equal(own[name], peer[name]) for name in own)
    model(**batch_of(model)).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for name, parameter in peer.items() if "position" not in name)
    model.save_pretrained(tmp_path / "training")
    again = CSEModel.from_pretrained(tmp_path / "training").state_dict()
    assert any(name.startswith("objectives.peer.encoder.") for name in again)
    folder = model.export(tmp_path / "export", tokenizer_of("bert"))
    assert sum(p.numel() for p in own.values()) * 4 < (folder / "model.safetensors").stat().st_size
    assert (folder / "model.safetensors").stat().st_size < 1.9 * sum(p.numel() for p in own.values()) * 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"further_positives": "swap"}, r"further_positives must be .* joined by '\+', got 'swap'"),
        ({"further_positives": "shuffle+"}, r"further_positives must be .* joined by '\+', got 'shuffle\+'"),
        ({"further_positives": 3}, "further_positives must be text or None, got 3"),
        ({"further_positives_weight": -1.0}, "further_positives_weight must be a number of at least 0, got -1.0"),
        (
            {"further_positives": "column+parts"},
            "further_positives must not have both 'column' and 'parts', which read the same column",
        ),
        (
            {"further_positives": "shuffle+column", "conditional_mlm_weight": 1.0, "condition_sentence": "next"},
            "'column' with conditional_mlm_condition_sentence 'next': both read the corpus's last column",
        ),
        (
            {"further_positives": "parts", "conditional_mlm_weight": 1.0, "condition_sentence": "both"},
            "must not have 'parts' with conditional_mlm_condition_sentence 'both'",
        ),
        ({"composition": "max"}, "composition must be one of 'mean', 'first_last', got 'max'"),
        ({"contrast_dims": 17}, "contrast_dims must be from 1 to the hidden size, 16, got 17"),
        ({"contrast_dims": 2.0}, "contrast_dims must be a whole number or None, got 2.0"),
        ({"contrast_dims": 4, "matryoshka_dims": [8]}, "matryoshka_dims cannot be combined with contrast_dims, got 4"),
        ({"second_view_weight": 0.0}, "second_view_weight must be greater than 0 without further_positives"),
        (
            {"second_view_weight": 0.0, "further_positives": "halves", "further_positives_weight": 0.0},
            "second_view_weight must be greater than 0 without further_positives",
        ),
        ({"peer_own_group": -1.0}, "peer_own_group must be a number of at least 0, got -1.0"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["peer", "group"], **fields)


@pytest.mark.parametrize(("size", "dims"), [(24, 20), (8, 8)])
def test_the_contrast_s_dimensions_are_those_of_the_projected_vectors(checkpoint, batch_of, size, dims):
    """Regression: they were compared with the hidden size, 16: 20 of 24 were refused, and 12 of 8 were 8."""
    mapped = {"projector": "linear", "projector_size": size}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), contrast_dims=dims, **mapped)
    batch = batch_of(model)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z[..., :dims]
    cosines = torch.nn.functional.cosine_similarity(z[0][:, None], z[1][None], dim=-1)
    expected = torch.nn.functional.cross_entropy(cosines / 0.05, torch.arange(len(cosines)))
    torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match=f"contrast_dims must be from 1 to the projector_size, {size}, got {size + 1}"
    ):
        CSEModel.from_backbone(checkpoint("bert"), contrast_dims=size + 1, **mapped)
    saved = model.config.to_dict() | {"contrast_dims": size + 1}  # of an earlier version, which took all of z
    assert CSEConfig.from_dict(saved).contrast_dims is None


@pytest.mark.parametrize(
    "own",
    [
        {"further_positives": "shuffle+delete"},
        {"further_positives": "halves", "objectives": ["peer"]},
        {"objectives": ["triplet"], "triplet_weight": 1.0},
    ],
)
def test_running_statistics_are_those_of_the_views(checkpoint, batch_of, own):
    """Regression: a kept projector, and the queue, read a mixture with other texts and with the peer's states."""
    plain, model = (
        CSEModel.from_backbone(checkpoint("bert", 0.0), projector="batchnorm", **fields).train()
        for fields in ({}, own)
    )
    model.projector.load_state_dict(plain.projector.state_dict())
    for each in (plain, model):
        each(**batch_of(model)).loss.backward()
    for name, value in plain.projector.named_buffers():
        assert torch.equal(model.projector.get_buffer(name), value), name
    assert plain.projector[1].num_batches_tracked == 1
