"""Edited sentences as examples of the contrast (DiffCSE, Table 15), against the formula in float64."""

import pytest
import torch

from csekit.modeling import Encode, SimCSEModel

B = 5


@pytest.mark.parametrize("use", ["positive", "negative"])
def test_edited_sentences_as_examples(checkpoint, batch_of, naive, use):
    """With the edited sentences in the denominators, the terms sum to one InfoNCE over all keys."""
    weight = {"positive": 0.3, "negative": 1.0}[use]
    model = SimCSEModel.from_backbone(
        checkpoint("bert"), edited_weight=weight, use_edited_as=use, temperature=0.2, edited_edit_sampling="argmax"
    ).double()
    assert not list(model.objectives["edited"].parameters())
    batch = batch_of(model)
    output = model(**batch)
    copied = model.objectives["edited"].edited_copy(batch, Encode(None, None))
    edited, mask, labels = copied.ids, copied.mask, copied.changed
    assert labels.any(1).sum() not in (0, B)  # some sentence is as it was
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    z_edited = model.projector(model.pooled(edited, mask))
    plain = naive.info_nce(z[0], z[1], 0.2)
    if use == "positive":
        expected = plain + weight * naive.info_nce(z[0], z_edited, 0.2)
    else:
        unchanged = {(i, B + j) for i in range(B) for j in range(B) if not labels[j].any()}
        expected = naive.info_nce(z[0], torch.cat([z[1], z_edited]), 0.2, excluded=unchanged)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    found, wanted = (torch.autograd.grad(loss, list(model.backbone.parameters())) for loss in (output.loss, expected))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
