"""Compiled layers: the values and gradients of those that are not, and no compiling anew for other lengths."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

from csekit.modeling import CSEModel, SimCSEModel
from csekit.modeling.fast_cache import Chunks
from csekit.modeling.fast_compile import compile_layers
from csekit.modeling.fast_dropout import LanesDropout

LENGTHS = [9, 5, 12, 7, 10, 4]


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def step(model, batch):
    loss = model(**batch, return_loss=True).loss
    loss.backward()
    return loss.detach()


def same_step(model, twin, batch):
    losses = step(model, batch), step(twin, batch)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_batches_of_all_lengths_share_their_graphs(name, checkpoint, make_batch, encoder_config):
    model = SimCSEModel.from_backbone(checkpoint(name), dropout=0.0).train()
    names, twin, graphs = list(model.state_dict()), copy.deepcopy(model), []
    layers = model.config.encoder_config.num_hidden_layers
    assert compile_layers(model, backend="aot_eager") == layers - (name == "bert")
    assert list(model.state_dict()) == names
    for rows, length in enumerate(LENGTHS, 4):
        same_step(model, twin, make_batch(rows, 1, length, encoder_config(name).pad_token_id, seed=length))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2:] == graphs[2:3] * 4  # the first batches know rows within ModernBERT's window and longer ones
    assert name != "bert" or graphs[-1] == 1
    assert not counters["graph_break"] and not counters["unimplemented"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_batches_filled_to_a_bucket(name, checkpoint, make_batch, encoder_config):
    """The values and gradients of plain batches; the compiled layers meet two sizes."""
    model = SimCSEModel.from_backbone(checkpoint(name), dropout=0.0).train()
    twin, sizes, graphs = copy.deepcopy(model), set(), []
    compile_layers(model, backend="aot_eager", bucket=64)
    model.backbone.embeddings.register_forward_hook(lambda *args: sizes.add(args[2].shape[1]))
    for length in LENGTHS:
        same_step(model, twin, make_batch(6, 1, length, encoder_config(name).pad_token_id, seed=length))
        graphs.append(counters["stats"]["unique_graphs"])
    assert sizes == {64, 128}
    assert name != "bert" or graphs[-1] <= 2
    assert not counters["graph_break"] and not counters["unimplemented"]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 3])
def test_objectives_and_chunks(checkpoint, batch_of, chunk):
    """A graph each for encoder, generator and discriminator, and two for a chunk of one row; later steps add none."""
    fields = {"rtd_weight": 0.7, "rtd_edit_sampling": "argmax", "mlm_weight": 0.1}
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, **fields).train()
    twin, graphs = copy.deepcopy(model), []
    assert compile_layers(model, backend="eager") == 2
    model.chunks = twin.chunks = Chunks(chunk)
    for _ in range(3):
        for each in (model, twin):
            each.zero_grad()
        same_step(model, twin, batch_of(model))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] <= (5 if chunk else 3) and graphs == graphs[:1] * 3


@pytest.mark.slow
def test_dropout_is_in_the_graph(checkpoint, make_batch):
    """Regression: dropout by integers broke each layer into pieces."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.1).train()
    compile_layers(model, backend="eager")
    losses = []
    for seed, length in ((0, 9), (1, 9), (0, 9), (0, 7)):
        torch.manual_seed(seed)
        losses.append(step(model, make_batch(4, 1, length)))
    assert losses[0] == losses[2] != losses[1]
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    layer = LanesDropout(0.3).train()
    layer.compile(backend="eager", dynamic=True)
    dropped = layer(torch.ones(500, 200))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=5 * (0.21 / 1e5) ** 0.5)


def test_what_has_no_layers_is_refused():
    with pytest.raises(ValueError, match="torch_compile must be off: Linear has no list of layers"):
        compile_layers(torch.nn.Linear(2, 2))


def test_an_unknown_mode_is_one_line(checkpoint):
    model = CSEModel.from_backbone(checkpoint("bert"))
    with pytest.raises(ValueError, match=r"torch_compile_mode must be .* got 'fastest.*': .* should be one of"):
        compile_layers(model, "inductor", "fastest\n")
