"""Negatives of a row's own view: SimCLR's NT-Xent, which Mirror-BERT and ConSERT train with, against loops."""

import copy

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from tests.modeling.gradients import same_gradients


def nt_xent(z1: Tensor, z2: Tensor, tau: float, both: bool, naive) -> Tensor:
    """−log e^{s(i, p)} / Σ_{k≠i} e^{s(i, k)}, the mean over the rows of the first view, or over all 2B vectors."""
    z, B = torch.cat([z1, z2]), len(z1)
    rows = []
    for i in range(2 * B if both else B):
        scores = {k: (naive.cosine(z[i], z[k]) / tau).exp() for k in range(2 * B) if k != i}
        rows.append(-(scores[(i + B) % (2 * B)] / sum(scores.values())).log())
    return sum(rows) / len(rows)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_loss_and_its_gradient_against_the_formula(checkpoint, batch_of, naive, symmetric):
    fields = {"temperature": 0.2, "symmetric": symmetric, "same_view_negatives": True, "contrastive_weight": 0.7}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    output = model(**batch)
    z1, z2 = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    expected = 0.7 * nt_xent(z1, z2, 0.2, symmetric, naive)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


def test_hard_negatives_margin_and_identical_texts_keep_their_place(checkpoint, batch_of):
    """With a third column, a margin and repeated texts, the further keys change the denominator alone."""
    fields = {"temperature": 0.2, "angular_margin": 0.3, "hard_negative_weight": 0.5, "mask_identical": True}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    batch = batch_of(model)
    batch.pop("token_counts", None)
    for name in ("input_ids", "attention_mask"):
        batch[name] = torch.cat([batch[name], batch[name][:, 1:].roll(1, 0)], dim=1)
        batch[name][1, 0] = batch[name][0, 0]  # the same sentence twice
    plain = model(**batch)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    model.config.same_view_negatives = True
    wider = model(**batch)
    torch.testing.assert_close(wider.metrics, plain.metrics, rtol=1e-6, atol=1e-7)  # two passes: the last digit
    norm = torch.nn.functional.normalize(z, dim=-1)
    own = (norm[0] @ norm[0].T / 0.2).exp()
    keep = ~torch.eye(5, dtype=torch.bool)
    keep[0, 1] = keep[1, 0] = False  # identical texts are no negatives
    cosines = torch.cat([norm[0] @ norm[1].T, norm[0] @ norm[2].T], 1)
    angle = cosines[:, :5].diagonal().acos()
    logits = cosines / 0.2
    logits[range(5), range(5)] = (angle + 0.3).cos() / 0.2
    logits[range(5), range(5, 10)] += 0.5
    texts = [tuple(row.tolist()) for row in batch["input_ids"].transpose(0, 1).flatten(0, 1)]
    for i in range(5):
        for k in range(10):
            if k != i and texts[5 + k] in (texts[i], texts[5 + i]):
                logits[i, k] = -torch.inf
    total = logits.exp().sum(1) + (own * keep).sum(1)
    expected = (total.log() - logits.diagonal()).mean()
    torch.testing.assert_close(wider.loss.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_guide_s_count_leaves_a_row_s_own_place_out(checkpoint, batch_of):
    fields = {"guided_weight": 1.0, "guided_threshold": 0.3, "same_view_negatives": True}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields)
    batch = batch_of(model) | {f"teacher_0{column}": torch.eye(5) for column in ("", "_1")}
    assert model(**batch).metrics["guided_left_out"] == 0


def test_a_value_that_is_not_allowed(checkpoint):
    with pytest.raises(ValueError, match="same_view_negatives must be True or False, got 'yes'"):
        CSEModel.from_backbone(checkpoint("bert"), same_view_negatives="yes")
