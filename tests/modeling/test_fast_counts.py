"""A step whose token counts came with the batch: the same values and gradients, and no number read from the device."""

import copy

import pytest
import torch

from csekit.modeling import CSEModel
from csekit.modeling.fast_cache import Chunks
from csekit.modeling.fast_counts import counts_of, first_rows, note_counts, split_rows
from csekit.modeling.fast_packing import Packing

OBJECTIVES = ["reconstruction", "mlm", "aux_mlm", "rtd", "edited", "conditional_mlm", "corrective_lm", "dcm", "icm"]


def build(checkpoint, name):
    fields = {f"{name}_weight": 0.7} | ({"aux_mlm_head_init": "top_layers"} if name == "aux_mlm" else {})
    fields |= {f"{name}_edit_sampling": "argmax"} if name in ("rtd", "edited", "corrective_lm") else {}
    fields |= {"icm_decoder_dropout": 0.0, "icm_element_dropout": 0.0} if name == "icm" else {}
    return CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, **fields).train()


def without_counts(batch):
    return {key: value for key, value in batch.items() if not key.endswith("token_counts")}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective(name, checkpoint, batch_of, host_waits):
    model = build(checkpoint, name)
    batch, twin = batch_of(model), copy.deepcopy(model)
    assert batch["token_counts"].tolist() == batch["attention_mask"].sum(2).tolist()
    with host_waits() as ours:
        found = model(**batch, return_loss=True)
        found.loss.backward()
    with host_waits() as theirs:
        expected = twin(**without_counts(batch), return_loss=True)
        expected.loss.backward()
    assert ours.found == []
    assert "aten::nonzero" in theirs.names
    assert found.loss_dict == expected.loss_dict and found.metrics == expected.metrics
    for (parameter, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), parameter
        assert one.grad is None or torch.equal(one.grad, other.grad), parameter


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_counts_of_all_views(checkpoint, make_batch, columns):
    model = build(checkpoint, "mlm")
    batch = make_batch(4, columns)
    views = model.encode_views(*batch.values(), batch["attention_mask"].sum(2).numpy())
    assert counts_of(views.attention_mask) == views.attention_mask.sum(1).tolist()
    assert counts_of(model.encode_views(*batch.values()).attention_mask) is None


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_chunks_keep_the_counts_of_their_rows(name, checkpoint, batch_of, host_waits):
    model = build(checkpoint, name)
    batch, twin = batch_of(model), copy.deepcopy(model)
    model.chunks = twin.chunks = Chunks(3)
    losses, waits = [], host_waits()
    with waits:
        losses.append(model(**batch, return_loss=True).loss)
        losses[0].backward()
    assert "aten::nonzero" not in waits.names
    losses.append(twin(**without_counts(batch), return_loss=True).loss)
    losses[1].backward()
    assert torch.equal(*losses)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


def test_rows_of_a_mask():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]])
    plain = split_rows(mask, 2)
    assert note_counts(mask, [2, 4, 2, 0, 2]) is mask
    assert [counts_of(part) for part in split_rows(mask, 2)] == [[2, 4], [2, 0], [2]]
    assert first_rows(mask, 5) is mask and counts_of(first_rows(mask, 3)) == [2, 4, 2]
    assert all(counts_of(part) is None for part in plain)
    assert torch.equal(Packing.of(mask).index_T, Packing.of(mask.clone()).index_T)


def test_counts_of_another_mask_are_refused():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    with pytest.raises(ValueError, match="token_counts must be 2, one a row of attention_mask, got 3"):
        note_counts(mask, [2, 4, 1])
    with pytest.raises(RuntimeError, match="token_counts are not those of attention_mask"):
        Packing.of(note_counts(mask, [2, 2]))
