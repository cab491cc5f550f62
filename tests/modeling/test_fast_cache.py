"""Cached gradients: values and gradients are those of the same batch without, with dropout on."""

import weakref
from typing import Any

import pytest
import torch
from torch import nn

from csekit.modeling import OBJECTIVES, CSEModel, fast_cache
from csekit.modeling.fast_cache import Chunks, batch_statistics

AUX = {"aux_mlm_weight": 0.5, "aux_mlm_head_init": "random"}
TEMPLATES = {
    "pooling": "mask",
    "prompt_template": 'w50 " {sentence} " means {mask} .',
    "second_prompt_template": "w60 w61 {sentence} means {mask}",
    "subtract_template": True,
}
LAYERS = {"attention_first_layer": 0, "attention_last_layer": 1, "attention_samples": 0}
SETS: dict[str, dict[str, Any]] = {
    "simcse": {"pooling": "first_last_mean", "symmetric": True, "mask_identical": True},
    "batchnorm": {"projector": "batchnorm", "reconstruction_weight": 0.4},
    "mlm": {"mlm_weight": 1.0, "mlm_views": 1},
    "aux_mlm": AUX,
    "aux_mlm_plain": {**AUX, "gradient": "plain", "detach": False, "projector": "batchnorm"},
    "rtd": {"rtd_weight": 1.0, "projector": "batchnorm", "edit_operation": "all"},
    "rtd_all": {"rtd_weight": 1.0, "rtd_positions": "all", "edit_scope": "all", "generator_dropout": True},
    "edited": {"edited_weight": 1.0, "projector": "batchnorm", "use_edited_as": "negative"},
    "conditional_mlm": {"conditional_mlm_weight": 1.0},
    "corrective_lm": {"corrective_lm_weight": 1.0, "condition": "h"},
    "dcm": {"dcm_weight": 0.8},
    "icm": {"icm_weight": 0.5},
    "icm_denoising": {"icm_weight": 0.5, "decoder": "denoising", "contrastive_weight": 0.0},
    "tsdae": {"tsdae_weight": 1.0},
    "tsdae_small": {"tsdae_weight": 1.0, "tsdae_decoder": "small", "contrastive_weight": 0.0},
    "matryoshka": {"matryoshka_dims": [4, 8], "projector": "batchnorm", "icm_weight": 0.5, "dcm_weight": 0.8},
    "modifiers": {"noise_weight": 1.0, "queue_weight": 1.0, "queue_size": 7, "projector": "batchnorm"},
    "triplet": {"triplet_weight": 1.0, "triplet_margin": 0.3, "angular_margin": 0.3, "projector": "batchnorm"},
    "triplet_dropout": {"triplet_weight": 1.0, "triplet_margin": 0.3, "triplet_dropout": True, **TEMPLATES},
    "whitening": {"whitening_groups": 8, "further_positives": "dropout", "queue_weight": 1.0, "queue_size": 7},
    "attention": {"attention_weight": 1.0, **LAYERS},
    "attention_templates": {**TEMPLATES, "attention_weight": 1.0, **LAYERS, "projector": "batchnorm"},
    "smoothing": {"smoothing_weight": 1.0, "smoothing_size": 4, "smoothing_neighbors": 2, "projector": "batchnorm"},
    "halves": {"further_positives": "halves+dropout", "second_view_weight": 0.0, "contrast_dims": 5},
    "positives": {"further_positives": "dropout+repeat", "group_weight": 1.0, "projector": "batchnorm"},
    "peer": {**TEMPLATES, "further_positives": "shuffle", "further_positives_weight": 0.5, "peer_weight": 1.0},
    "templates": {**TEMPLATES, "queue_weight": 1.0, "queue_size": 7},
    "templates_batchnorm": {**TEMPLATES, "edited_weight": 1.0, "projector": "batchnorm", "pooling": "mean"},
    "same_view": {"same_view_negatives": True, "symmetric": True, "queue_weight": 1.0, "queue_size": 7},
    "perturbed": {
        **TEMPLATES,
        "perturb_first": "feature_cutoff:0.3+shuffle",
        "perturb_second": "token_cutoff+dropout",
        "peer_weight": 1.0,
    },
    "towers": {**TEMPLATES, "towers_weight": 1.0, "towers_negatives": 2},
    "towers_without_dropout": {"towers_weight": 1.0, "towers_dropout": False, "pooling": "mean"},
    "token_information": {"token_information_weight": 1.0, "token_information_channels": 6, **TEMPLATES},
    "joint": {"objectives": ["reconstruction", "dcm", "icm", "rtd", "mlm", "aux_mlm"], "aux_mlm_head_init": "random"},
}
#: Randomness that differs between chunks and the whole batch.
NOISE = {"edit_sampling": "argmax", "generator_dropout": False, "decoder_dropout": 0.0, "element_dropout": 0.0}


def build(checkpoint, fields: dict[str, Any], dropout: float | None = None) -> CSEModel:
    return CSEModel.from_backbone(checkpoint("bert", dropout), **{"temperature": 0.2, **fields}).train()


def quiet(fields: dict[str, Any]) -> dict[str, Any]:
    """The same without randomness."""
    names = CSEModel.config_class.flat_names(
        [name.removesuffix("_weight") for name in fields if name.removesuffix("_weight") in OBJECTIVES]
        + fields.get("objectives", [])
    )
    return {**fields, **{name: value for name, value in NOISE.items() if name in names}}


def step(model: CSEModel, batch: dict[str, torch.Tensor], size: int, kept: bool = False, bf16: bool = False) -> Any:
    """Output, gradients, buffers, and the next random number; ``kept`` keeps what the chunks compute."""
    with pytest.MonkeyPatch.context() as patch:
        if kept:
            patch.setattr(fast_cache, "checkpoint", lambda function, *inputs, use_reentrant: function(*inputs))
        torch.manual_seed(5)
        model.chunks = Chunks(size)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(**batch)
        output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    return output, gradients, buffers, torch.rand(3)


@pytest.mark.parametrize("name", SETS)
def test_every_objective_has_its_value_and_gradient(checkpoint, batch_of, name):
    """Without dropout, ten rows in chunks of three, against all at once, in float64."""
    model = build(checkpoint, quiet(SETS[name]), dropout=0.0).double()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    batch = batch_of(model)
    output, gradients, buffers, _ = step(model, batch, 0)
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients.values())
    model.load_state_dict(state)
    found, own, statistics, _ = step(model, batch, 3)
    torch.testing.assert_close(found.loss_dict, output.loss_dict, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.metrics, output.metrics, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(own, gradients, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics, buffers)  # of a batchnorm projector: seen once


@pytest.mark.parametrize("name", SETS)
def test_dropout_is_the_same_the_second_time(checkpoint, batch_of, name):
    """Bitwise what the same chunks give where everything is kept, the random state behind the step included."""
    model = build(checkpoint, SETS[name])
    state = {key: value.clone() for key, value in model.state_dict().items()}
    batch = batch_of(model)
    one = step(model, batch, 4, kept=True)
    model.load_state_dict(state)
    two = step(model, batch, 4)
    assert torch.equal(one[0].loss, two[0].loss) and torch.equal(one[3], two[3])
    for part in (1, 2):
        assert [key for key in one[part] if not torch.equal(one[part][key], two[part][key])] == []
    model.load_state_dict(state)
    other = step(model, batch, 0)  # dropout is on: other draws, another loss
    assert not torch.equal(other[0].loss, one[0].loss)
    model.load_state_dict(state)
    assert torch.equal(step(model, batch, 40)[0].loss, other[0].loss)  # one chunk: nothing changes


def test_sentences_alone_against_two_passes_by_hand(checkpoint, make_batch):
    """Gao et al. (2021), §3: vectors without graph, the gradient of the loss with respect to them, then each chunk
    once more from its random state."""
    model, batch = build(checkpoint, {"projector": "tanh"}), make_batch(5, 1)
    output, gradients, _, _ = step(model, batch, 4)
    ids, mask = (batch[name].transpose(0, 1).flatten(0, 1).repeat(2, 1) for name in ("input_ids", "attention_mask"))
    torch.manual_seed(5)
    model.zero_grad()
    states, vectors = [], []
    for start in range(0, 10, 4):
        states.append(torch.get_rng_state())
        with torch.no_grad():
            vectors.append(model.pooled(ids[start : start + 4], mask[start : start + 4]))
    h = torch.cat(vectors).requires_grad_()
    z = model.projector(h)
    logits = nn.functional.cosine_similarity(z[:5, None], z[None, 5:], dim=-1) / 0.2
    loss = nn.functional.cross_entropy(logits, torch.arange(5))
    loss.backward()
    for start, state in zip(range(0, 10, 4), states, strict=True):
        torch.set_rng_state(state)
        again = model.pooled(ids[start : start + 4], mask[start : start + 4])
        again.backward(h.grad[start : start + 4])
    torch.testing.assert_close(output.loss, loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_half_precision_adds_up_in_full(checkpoint, batch_of):
    model = build(checkpoint, {"mlm_weight": 1.0})
    batch = batch_of(model)
    kept, cached = (step(model, batch, 3, kept, bf16=True)[1] for kept in (True, False))
    assert all(torch.equal(kept[name], cached[name]) for name in kept)
    layer = nn.Linear(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        out = Chunks(1)(lambda rows: (layer(rows),), (torch.ones(300, 1),))[0]
        assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert layer.weight.grad == layer.bias.grad == 300  # in bf16 256 + 1 is 256


def test_gradient_checkpointing_inside_a_chunk(checkpoint, make_batch):
    # pooling by mean draws the same random numbers with and without, see fast_layers.py
    model, batch = build(checkpoint, {"pooling": "mean"}), make_batch(5, 1)
    one = step(model, batch, 4)
    model.backbone.gradient_checkpointing_enable()
    two = step(model, batch, 4)
    assert all(torch.equal(one[1][name], two[1][name]) for name in one[1])


def kept_bytes(model: CSEModel, batch: dict[str, torch.Tensor], size: int) -> int:
    """Bytes that the graph holds between forward and backward, parameters aside."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}
    alive: list[weakref.ref] = []

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            alive.append(weakref.ref(self))

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        model.chunks = Chunks(size)
        output = model(**batch)
    for reference in alive:
        if (kept := reference()) is not None:
            storage = kept.tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                storages[storage.data_ptr()] = storage.nbytes()
    assert output.loss.requires_grad
    return sum(storages.values())


@pytest.mark.parametrize("name", ["simcse", "mlm", "aux_mlm", "rtd", "edited", "corrective_lm", "icm"])
def test_what_is_kept_does_not_grow_with_the_activations(checkpoint, batch_of, name):
    model = build(checkpoint, SETS[name])
    batch = batch_of(model)
    assert kept_bytes(model, batch, 2) < kept_bytes(model, batch, 0) / 5


def test_places_of_chunks():
    """Places are counted from the first row of their chunk; a chunk may have none, the last one fewer rows."""
    ids_NL = torch.arange(15).view(5, 3)
    places, labels = torch.tensor([0, 4, 5, 12, 14]), torch.arange(5)
    calls = []

    def function(ids, vectors, places, labels):
        calls.append((ids.tolist(), vectors.tolist(), places.tolist(), labels.tolist()))
        return ids.flatten()[places], vectors.sum(1)

    found = Chunks(2)(function, (ids_NL, torch.ones(5, 2)), (places, labels))
    assert [call[2:] for call in calls] == [([0, 4, 5], [0, 1, 2]), ([], []), ([0, 2], [3, 4])]
    assert [len(call[0]) for call in calls] == [2, 2, 1]
    assert torch.equal(found[0], places) and torch.equal(found[1], torch.full((5,), 2.0))
    for size in (0, 5, 6):
        calls.clear()
        Chunks(size)(function, (ids_NL, torch.ones(5, 2)), (places, labels))
        assert len(calls) == 1


def test_a_network_without_gradient_runs_once():
    weight, runs = nn.Parameter(torch.ones(2)), []

    def function(rows):
        runs.append(len(rows))
        return (rows * weight,)

    with torch.no_grad():
        (out,) = Chunks(2)(function, (torch.ones(3, 2),))
    assert runs == [2, 1] and not out.requires_grad
    Chunks(2)(function, (torch.ones(3, 2),))[0].sum().backward()
    assert runs == [2, 1, 2, 1, 1, 2] and torch.equal(weight.grad, torch.full((2,), 3.0))


def test_layers_with_statistics_of_the_batch_are_found(checkpoint):
    model = build(checkpoint, {"projector": "batchnorm"})
    assert batch_statistics(model.backbone) == [] and len(batch_statistics(model.projector)) == 2
    assert all(objective.cacheable for objective in OBJECTIVES.values())


@pytest.mark.gpu
def test_dropout_is_the_same_the_second_time_on_a_gpu(checkpoint, batch_of):
    model = build(checkpoint, SETS["joint"]).cuda()
    batch = {name: value.cuda() if torch.is_tensor(value) else value for name, value in batch_of(model).items()}
    one, two = step(model, batch, 4, kept=True), step(model, batch, 4)
    torch.testing.assert_close(one[1], two[1], rtol=1e-4, atol=1e-5)
