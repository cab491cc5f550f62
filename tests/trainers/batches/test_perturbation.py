"""Draws for perturbed views: which places they touch, how many, and what they depend on."""

from typing import Any

import numpy as np
import pytest
import torch

from csekit.modeling.objectives import PerturbationSpec
from csekit.trainers.batches.collator import CSECollator

TEMPLATE = 'This: "{sentence}" means {mask}.'
ALL = (("token_cutoff", 0.4), ("feature_cutoff", 0.25), ("dropout", 0.3), ("shuffle", 0.2))


def batch_of(tokenizer: Any, texts: list[str], epoch: int = 0, **fields: Any) -> dict[str, Any]:
    spec = PerturbationSpec(**({"first": ALL, "second": ALL, "width": 20} | fields))
    collator = CSECollator(tokenizer, 32, {"perturbations": spec}, seed=7, prompt_template=TEMPLATE)
    return collator([{"texts": [text], "index": 10 + i, "epoch": epoch} for i, text in enumerate(texts)])


def own_places(tokenizer: Any, batch: dict[str, Any]) -> list[np.ndarray]:
    """The places of each sentence's own tokens, between the template's."""
    before = len(tokenizer('This: "').input_ids) - 1
    after = len(tokenizer(f'" means {tokenizer.mask_token}.').input_ids) - 1
    return [np.arange(before, int(n) - after) for n in batch["attention_mask"][:, 0].sum(-1)]


def test_counts_and_places(wordpiece: Any, sentences: list[str]) -> None:
    batch = batch_of(wordpiece, sentences)
    names = ("order", "tokens", "features", "elements")
    order, tokens, features, elements = (batch[f"perturbations_{name}"].numpy() for name in names)
    B, L = len(sentences), batch["input_ids"].shape[2]
    assert order.shape == tokens.shape == (2 * B, L)
    assert (order.dtype, features.shape, elements.shape) == (np.int64, (2 * B, 20), (2 * B, L, 20))
    assert ((~features).sum(1) == 5).all()
    for i, places in enumerate(own_places(wordpiece, batch) * 2):
        others = np.setdiff1d(np.arange(L), places)
        assert (~tokens[i]).sum() == int(0.4 * len(places))
        assert tokens[i, others].all()
        assert elements[i, others].all()
        assert sorted(order[i, places]) == list(places)
        assert (order[i, others] == others).all()
    share = 1 - elements[:, own_places(wordpiece, batch)[0]].mean()
    assert share == pytest.approx(0.3, abs=0.05)
    for found in (order, tokens, features, elements):
        assert (found[:B] != found[B:]).any()  # each view draws its own


def test_a_view_without_changes_and_kinds_that_are_not_asked_for(wordpiece: Any, sentences: list[str]) -> None:
    batch = batch_of(wordpiece, sentences, first=(("feature_cutoff", 0.25),), second=(("shuffle", 0.2),))
    B, L = len(sentences), batch["input_ids"].shape[2]
    assert "perturbations_elements" not in batch
    assert (batch["perturbations_order"][:B] == torch.arange(L)).all()
    assert batch["perturbations_tokens"].all()
    assert batch["perturbations_features"][B:].all()
    alone = batch_of(wordpiece, sentences, first=(), second=(("shuffle", 0.2),))
    assert [name for name in alone if name.startswith("perturbations")] == ["perturbations_order"]
    assert torch.equal(alone["perturbations_order"], batch["perturbations_order"])


def test_draws_depend_on_seed_epoch_and_sample_alone(wordpiece: Any, sentences: list[str]) -> None:
    spec = PerturbationSpec(first=ALL, second=ALL, width=20)
    rows = [{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(sentences)]
    full, B = CSECollator(wordpiece, 32, {"perturbations": spec})(rows), len(sentences)
    one = CSECollator(wordpiece, 32, {"perturbations": spec}, pad_to_multiple_of=8)(rows[2:3])
    later = CSECollator(wordpiece, 32, {"perturbations": spec})([rows[2] | {"epoch": 1}])
    L = int(full["attention_mask"][2].sum())
    for name in ("order", "tokens", "features", "elements"):
        found, alone, other = (each[f"perturbations_{name}"] for each in (full, one, later))
        cut = found[[2, B + 2]]
        if name != "features":
            cut, alone, other = cut[:, :L], alone[:, :L], other[:, :L]
        assert torch.equal(cut, alone), name
        assert not torch.equal(alone, other), name
