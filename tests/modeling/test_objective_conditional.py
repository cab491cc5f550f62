"""The conditional language models of Table 3 against loops over the family's own masked LM, in float64."""

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from csekit.modeling import CSEModel, Encode

NAMES = ["conditional_mlm", "corrective_lm"]


def edited_copy(objective, batch):
    """Its edited copies with their mask, and where they differ from the originals."""
    copied = objective.edited_copy(batch, Encode(None, None))
    return copied.ids, copied.mask, copied.changed


def built(checkpoint, name, **fields):
    model = CSEModel.from_backbone(checkpoint("bert"), objectives=[name], **{f"{name}_weight": 0.5}, **fields)
    return model.double().eval()


def vectors_of(model, batch):
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    return views, views.z.flatten(0, 1)


def conditional_loss(naive, plain, ids, mask, vectors, places, originals):
    total = 0.0
    for place in places:
        row, column = divmod(place, ids.shape[1])
        states = naive.conditioned(plain.bert, ids[row], mask[row], vectors[row])
        total = total - plain.cls(states)[column].log_softmax(-1)[originals[row, column]]
    return total / len(places)


def corrective_loss(naive, plain, copy_head, ids, mask, vectors, places, originals, copy_weight):
    total = 0.0
    for place in places:
        row, column = divmod(place, ids.shape[1])
        state = naive.conditioned(plain.bert, ids[row], mask[row], vectors[row])[column]
        chance = plain.cls(state[None, None])[0, 0].softmax(-1)[originals[row, column]]
        copying = (copy_head(state)).sigmoid().squeeze()
        same = ids[row, column] == originals[row, column]
        fixed = copying.detach()
        total = total - ((fixed if same else 0.0) + (1 - fixed) * chance).log()
        total = total - copy_weight * (copying if same else 1 - copying).log()
    return total / len(places)


@pytest.mark.parametrize("name", NAMES)
def test_against_loops(checkpoint, batch_of, naive, name):
    fields = {"edit_sampling": "argmax", "copy_weight": 3.0} if name == "corrective_lm" else {}
    model = built(checkpoint, name, **fields)
    batch, objective = batch_of(model), model.objectives[name]
    views, vectors = vectors_of(model, batch)
    found, metrics = objective(views, batch, Encode(model.backbone, None))
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint("bert")).double().eval()
    mask, originals = batch[f"{name}_attention_mask"], batch[f"{name}_originals"]
    if name == "corrective_lm":
        ids = edited_copy(objective, batch)[0]
        places = batch[f"{name}_scored"].tolist()
        given = (ids, mask, vectors, places, originals, 3.0)
        expected = 0.5 * corrective_loss(naive, plain, objective.copy_head, *given)
    else:
        ids, places = batch[f"{name}_input_ids"], batch[f"{name}_positions"].tolist()
        expected = 0.5 * conditional_loss(naive, plain, ids, mask, vectors, places, originals)
    torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-8)
    assert all(0 <= value <= 1 for value in metrics.values())

    encoder, own, copying = (list(m.parameters()) for m in (model.backbone, objective.lm, model.objectives[name]))
    copying = [p for p in copying if not any(p is q for q in own)]
    ours = torch.autograd.grad(found[name], [*encoder, *own, *copying], retain_graph=True)
    theirs = torch.autograd.grad(expected, [*encoder, *plain.parameters(), *copying])
    assert len(ours) == len(theirs) and len(copying) == (2 if name == "corrective_lm" else 0)
    ends = (len(encoder), len(encoder) + len(own))
    for left, right in zip(ours[: ends[0]] + ours[ends[1] :], theirs[: ends[0]] + theirs[ends[1] :], strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-8)
    shape = {id(p): n for n, p in plain.named_parameters()}
    wanted = {shape[id(p)]: g for p, g in zip(plain.parameters(), theirs[ends[0] : ends[1]], strict=True)}
    named = {n: g for (n, _), g in zip(objective.lm.named_parameters(), ours[ends[0] : ends[1]], strict=True)}
    for ours_name, gradient in named.items():
        full = ours_name.replace("encoder.model.", "bert.").replace("head.model.", "").replace("head.bias", "bias")
        full = full if full in wanted else "cls.predictions.bias"
        torch.testing.assert_close(gradient, wanted[full], rtol=1e-5, atol=1e-8, msg=full)
    assert max(g.abs().max() for g in ours[: ends[0]]) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_families(family, checkpoint, batch_of, tmp_path, name):
    model = CSEModel.from_backbone(checkpoint(family), objectives=[name])
    batch = batch_of(model, family)
    output = model.train()(**batch)
    output.loss.backward()
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    model.eval().save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path, training=True)
    losses = []
    for each in (model, again):
        torch.manual_seed(1)
        losses.append(each(**batch).loss)
    assert torch.equal(*losses)


def test_refusals(checkpoint, encoder_config, tokenizer_of, tmp_path):
    with pytest.raises(ValueError, match="corrective_lm_edit_operation must be one of 'replace', got 'insert'"):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["corrective_lm"], edit_operation="insert")
    with pytest.raises(ValueError, match="corrective_lm_copy_weight must be a number of at least 0, got -1"):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["corrective_lm"], corrective_lm_copy_weight=-1.0)
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no masked-LM head: it lacks"):
        CSEModel.from_backbone(tmp_path, objectives=["conditional_mlm"])
