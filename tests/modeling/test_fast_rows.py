"""Rows of few numbers: the same values and gradients, and few kernels."""

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from csekit.modeling import CSEModel
from csekit.modeling.fast_rows import fill_places, fill_rows, map_rows

#: Trains the product with a vocabulary, over another number of tokens in every step.
STEPS = """
import torch
from csekit.modeling.fast_vocabulary_loss import vocabulary_cross_entropy
matrix = torch.randn(512, 64, requires_grad=True)
for tokens in range(66, 128, 6):
    states = torch.randn(tokens, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = vocabulary_cross_entropy(states, matrix, None, torch.arange(tokens))
    losses.sum().backward()
"""


def few(rows: int) -> bool:
    return rows % 64 == 0 if rows > 64 else rows & (rows - 1) == 0


@pytest.mark.parametrize(("given", "made"), [(0, 0), (1, 1), (3, 4), (33, 64), (64, 64), (65, 128), (400, 448)])
def test_numbers_of_rows(given, made, monkeypatch):
    rows, places = torch.ones(given, 2), torch.arange(given)
    filled, found = fill_rows(rows, 7), fill_places(places)
    assert len(filled) == len(found) == made
    assert torch.equal(filled[:given], rows) and (filled[given:] == 7).all()
    assert torch.equal(found[:given], places) and (found[given:] == given - 1).all()
    monkeypatch.setenv("CSEKIT_FAST", "0")
    assert len(fill_rows(rows)) == len(fill_places(places)) == given


def test_value_and_gradient_of_a_map():
    module = nn.Linear(6, 2)
    ours, theirs = (torch.randn(37, 6, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
    weights, gradients = torch.randn(37, 2), []
    for output in (map_rows(module, ours), module(theirs)):
        assert output.shape == (37, 2)
        module.zero_grad()
        (output * weights).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(*gradients)


def test_what_reads_scored_tokens_has_few_numbers_of_rows(checkpoint, batch_of):
    """The masked-LM heads, DiffCSE's generator and the discriminators' heads, and the last layers in front of them."""
    objectives = ["mlm", "aux_mlm", "rtd", "conditional_mlm", "corrective_lm", "icm"]
    model = CSEModel.from_backbone(checkpoint("bert"), objectives=objectives, aux_mlm_head_init="random").train()
    parts = model.objectives
    generator, discriminator = parts["rtd"].generator, parts["rtd"].discriminator.model
    layers = [
        parts["aux_mlm"].head.model,
        generator.backbone,
        discriminator,
        parts["conditional_mlm"].lm.encoder.model,
    ]
    heads = [parts["mlm"].head, parts["aux_mlm"].lm_head, generator.head, parts["conditional_mlm"].lm.head]
    modules = [network.encoder.layer[-1].intermediate.dense for network in layers]
    modules += [next(part for part in head.modules() if isinstance(part, nn.Linear)) for head in heads]
    modules += [parts["rtd"].head, parts["corrective_lm"].copy_head, parts["icm"].decoder.leave]
    seen: list[list[int]] = [[] for _ in modules]
    for module, counts in zip(modules, seen, strict=True):
        module.register_forward_hook(lambda _, given, __, counts=counts: counts.append(given[0].shape[:-1].numel()))
    batch = batch_of(model)
    model(**batch).loss.backward()
    scored = [len(batch[f"{name}_positions"]) for name in ("mlm", "aux_mlm", "rtd", "conditional_mlm")]
    assert not all(map(few, scored))
    assert all(counts and all(map(few, counts)) for counts in seen), seen


def test_kernels_do_not_grow_with_the_steps():
    made = {}
    for fast in ("0", "1"):
        environment = {**os.environ, "CSEKIT_FAST": fast, "ONEDNN_VERBOSE": "profile_create"}
        child = subprocess.run(
            [sys.executable, "-c", STEPS], capture_output=True, text=True, env=environment, check=True
        )
        made[fast] = len(re.findall("create:cache_miss.*matmul", child.stdout))
    if not made["0"]:
        pytest.skip("oneDNN computes no product in bf16 on this machine")
    assert made["1"] <= 3 < made["0"]
