"""The diagnostics that tell whether an auxiliary network reads the sentence's vector."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel, Encode
from csekit.modeling import vector_gap as module
from csekit.modeling.vector_gap import GAP_ROWS

FIELDS: dict[str, dict[str, Any]] = {
    "aux_mlm": {"aux_mlm_weight": 0.5, "aux_mlm_head_init": "random"},
    "rtd": {"rtd_weight": 0.5, "rtd_edit_sampling": "argmax"},
    "rtd, all positions": {"rtd_weight": 0.5, "rtd_edit_sampling": "argmax", "rtd_positions": "all"},
}


def build(checkpoint: Any, kind: str, dropout: float) -> CSEModel:
    folder = checkpoint("bert", dropout)
    torch.manual_seed(3)
    return CSEModel.from_backbone(folder, **FIELDS[kind]).train()


def name_of(kind: str) -> str:
    return kind.split(",")[0]


def losses(objective: Any, copied: Any, encode: Encode) -> Tensor:
    """The loss of each scored position."""
    if objective.config.name == "aux_mlm":
        return objective.predict(copied, encode)[0]
    (logits,) = objective.predict(copied, encode)
    return -logits.log_softmax(-1)[torch.arange(len(logits)), copied.changed_M]


@pytest.mark.parametrize("rows", [GAP_ROWS, 3, 1])
@pytest.mark.parametrize("kind", FIELDS)
def test_it_is_the_loss_from_the_vectors_of_other_sentences_less_the_loss_from_their_own(
    checkpoint: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int
) -> None:
    """On all of ten copies, or on the first ones and their share of the tokens."""
    monkeypatch.setattr(module, "GAP_ROWS", rows)
    model, name = build(checkpoint, kind, 0.0), name_of(kind)
    batch = batch_of(model)
    found = model(**batch).metrics[f"{name}_gap"]

    objective: Any = model.objectives[name]
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight)
    if name == "aux_mlm":
        own = objective.masked_copy(views, batch, views.h)
    else:
        scored = None if kind != "rtd" else "scored"
        own = objective.edited_copy(batch, encode, views.z, scored)
    other = replace(own, vectors=own.vectors[torch.arange(-1, 9)])
    difference = losses(objective, other, encode) - losses(objective, own, encode)
    places = torch.arange(own.ids.numel()) if own.positions is None else own.positions
    share = -(-len(places) * min(rows, 10) // 10)
    counted = (places < rows * own.ids.shape[1]) & (torch.arange(len(places)) < share)
    assert 0 < counted.sum() <= share
    torch.testing.assert_close(found, difference[counted].mean(), rtol=1e-4, atol=1e-6)
    assert found.abs() > 1e-5
    assert not found.requires_grad


@pytest.mark.parametrize("kind", FIELDS)
def test_training_is_the_same_bit_for_bit_with_it(
    checkpoint: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It draws no random number, leaves no module in eval mode and adds nothing to a gradient."""

    def trained(with_gap: bool) -> tuple[dict[str, Tensor], Tensor, list[bool]]:
        for file in ("objective_aux_mlm", "objective_rtd"):
            if not with_gap:
                monkeypatch.setattr(f"csekit.modeling.{file}.vector_gap", lambda *_: torch.zeros(()))
        model = build(checkpoint, kind, 0.3)
        batch = batch_of(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(5)
        for _ in range(3):
            output = model(**batch)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            assert (output.metrics[f"{name_of(kind)}_gap"] != 0) == with_gap
        return model.state_dict(), torch.get_rng_state(), [part.training for part in model.modules()]

    with_it, state, modes = trained(True)
    without, other_state, other_modes = trained(False)
    assert with_it.keys() == without.keys()
    assert [key for key in with_it if not torch.equal(with_it[key], without[key])] == []
    assert torch.equal(state, other_state)
    assert modes == other_modes


def test_a_batch_without_masked_tokens_has_a_gap_of_zero(checkpoint: Any, batch_of: Any) -> None:
    model = build(checkpoint, "aux_mlm", 0.1)
    batch = batch_of(model)
    for key in ("positions", "labels"):
        batch[f"aux_mlm_{key}"] = batch[f"aux_mlm_{key}"][:0]
    assert model(**batch).metrics["aux_mlm_gap"] == 0
