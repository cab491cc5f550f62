"""The fast paths against the naive ones: every method trains to the same losses and weights either way."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from csekit.modeling import CSEModel
from csekit.modeling.fast_compile import compile_layers
from csekit.modeling.fast_counts import counts_of, note_counts
from csekit.modeling.fast_dropout import LanesDropout
from csekit.modeling.fast_layers import attention_output
from csekit.modeling.fast_packing import PACKED_ATTENTION
from csekit.modeling.fast_switch import fast
from csekit.modeling.fast_vocabulary_loss import vocabulary_cross_entropy

AUX = {"aux_mlm_weight": 0.5, "aux_mlm_head_init": "top_layers"}
MSSE = {"pooling": "mask", "prompt_template": '"{sentence}" means {mask}.', "dcm_weight": 0.05, "icm_weight": 0.2}
METHODS: dict[str, dict[str, Any]] = {
    "simcse": {},
    "simcse_mean": {"pooling": "mean", "projector": "batchnorm"},
    "simcse_mlm": {"mlm_weight": 0.5},
    "informin": {"reconstruction_weight": 0.4},
    "infocse": AUX,
    "infocse_plain": {**AUX, "gradient": "plain", "detach": False},
    "diffcse": {"rtd_weight": 0.5, "projector": "batchnorm", "edit_operation": "all"},
    "diffcse_released": {"rtd_weight": 0.5, "edit_scope": "all", "rtd_positions": "all"},
    "edited": {"edited_weight": 0.5},
    "conditional_mlm": {"conditional_mlm_weight": 0.5},
    "corrective_lm": {"corrective_lm_weight": 0.5},
    "msse": MSSE,
    "msse_denoising": {**MSSE, "decoder": "denoising"},
    "joint": {**AUX, "reconstruction_weight": 0.4, "mlm_weight": 0.1, "rtd_weight": 0.1, "dcm_weight": 0.05},
}
#: Randomness whose draws differ between the two: dropout, and tokens that a generator draws from rounded logits.
QUIET = {"edit_sampling": "argmax", "decoder_dropout": 0.0, "element_dropout": 0.0}


def quiet(fields: dict[str, Any]) -> dict[str, Any]:
    names = [name.removesuffix("_weight") for name in fields if name.endswith("_weight")]
    known = CSEModel.config_class.flat_names(names)
    return fields | {name: value for name, value in QUIET.items() if name in known}


def train(checkpoint: Any, batch_of: Any, fields: dict[str, Any], steps: int = 3) -> tuple[list[dict], dict]:
    """The terms of each step, and the weights at the end."""
    folder = checkpoint("bert")  # before the seed: the first call makes it, with a seed of its own
    torch.manual_seed(0)
    model = CSEModel.from_backbone(folder, dropout=0.0, temperature=0.2, **fields).train()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    batch, terms = batch_of(model), []
    for _ in range(steps):
        optimiser.zero_grad()
        output = model(**batch)
        output.loss.backward()
        optimiser.step()
        terms.append(output.loss_dict | output.metrics)
    return terms, copy.deepcopy(model.state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_to_the_same_losses(checkpoint, batch_of, monkeypatch, method):
    """Without dropout, whose draws differ; three steps of gradient descent in fp32."""
    fields = quiet(METHODS[method])
    ours, weights = train(checkpoint, batch_of, fields)
    monkeypatch.setenv("CSEKIT_FAST", "0")
    naive, expected = train(checkpoint, batch_of, fields)
    torch.testing.assert_close(ours, naive, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=2e-5)
    assert any(not torch.equal(ours[0][name], ours[2][name]) for name in ours[0])  # it trained


def test_the_switch_turns_every_fast_path_off(checkpoint, monkeypatch):
    monkeypatch.setenv("CSEKIT_FAST", "0")
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.1, mlm_weight=0.1)
    assert model.backbone.config._attn_implementation != PACKED_ATTENTION
    assert not [module for module in model.modules() if isinstance(module, LanesDropout)]
    assert attention_output(model.backbone) is None
    assert compile_layers(model) == 0
    assert counts_of(note_counts(torch.ones(2, 3), [3, 3])) is None
    logits = nn.Parameter(torch.randn(2, 4))
    losses, _ = vocabulary_cross_entropy(logits, torch.randn(5, 4), None, torch.tensor([1, -100]))
    assert "VocabularyCrossEntropy" not in type(losses.grad_fn).__name__


def test_the_fast_paths_are_the_default(checkpoint):
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.1)
    assert model.backbone.config._attn_implementation == PACKED_ATTENTION
    assert [module for module in model.modules() if isinstance(module, LanesDropout)]


def test_other_values_are_refused(monkeypatch):
    monkeypatch.setenv("CSEKIT_FAST", "no")
    with pytest.raises(ValueError, match="CSEKIT_FAST must be '0' or '1', got 'no'"):
        fast()
