"""Batches filled up to a multiple of a bucket: the values and gradients of those that are not, and few sizes."""

import copy

import pytest
import torch

from csekit.modeling import CSEModel, SimCSEModel
from csekit.modeling.fast_buckets import BucketPacking, use_buckets
from csekit.modeling.fast_compile import begin_step, compile_layers, uncompiled
from csekit.modeling.fast_counts import note_counts
from csekit.modeling.fast_packing import PACKED_ATTENTION, Packing
from tests.modeling.gradients import same_gradients_so_far, same_states

CAN = {"bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert", "albert"}
LENGTHS = [3, 11, 1, 7]
OBJECTIVES = ["reconstruction", "mlm", "aux_mlm", "rtd", "edited", "conditional_mlm", "corrective_lm", "dcm", "icm"]


def ragged(lengths=LENGTHS, pad=0):
    ids = torch.randint(8, 90, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return ids.masked_fill(mask == 0, pad), mask


def fill(model, bucket):
    """Fill the batches of every encoder in ``model``."""
    for encoder in model.modules():
        if hasattr(encoder, "set_attn_implementation") and encoder.config._attn_implementation == PACKED_ATTENTION:
            use_buckets(encoder, bucket)


def padded(model):
    """Undo packing: Transformers' own padded batches."""
    for module in model.modules():
        if hasattr(module, "set_attn_implementation") and module.config._attn_implementation == PACKED_ATTENTION:
            module.set_attn_implementation("sdpa")


@pytest.mark.parametrize("lengths", [LENGTHS, [8, 8], [6, 6, 6], [1, 1]])
def test_states_and_gradients_of_padded_batches(family, checkpoint, encoder_config, lengths):
    """With many blanks, with none (16 tokens), and in a batch without padding."""
    if family not in CAN:
        pytest.skip(f"{family} stays padded")
    model = SimCSEModel.from_backbone(checkpoint(family), dropout=0.0).train()
    twin, seen = copy.deepcopy(model), []
    fill(model, 16)
    padded(twin)
    first = next(module for module in model.backbone.modules() if isinstance(module, torch.nn.Linear))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2]))
    ids, mask = ragged(lengths, encoder_config(family).pad_token_id)
    same_states(model, twin, ids, mask)
    assert seen[0] == -(-sum(lengths) // 16) * 16


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective(name, checkpoint, batch_of, host_waits):
    """The same terms as without, and no number is read from the device."""
    fields = {f"{name}_weight": 0.7} | ({"aux_mlm_head_init": "top_layers"} if name == "aux_mlm" else {})
    fields |= {f"{name}_edit_sampling": "argmax"} if name in ("rtd", "edited", "corrective_lm") else {}
    fields |= {"icm_decoder_dropout": 0.0, "icm_element_dropout": 0.0} if name == "icm" else {}
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, **fields).train()
    batch, twin = batch_of(model), copy.deepcopy(model)
    fill(model, 32)
    with host_waits() as waits:
        found = model(**batch, return_loss=True)
        found.loss.backward()
    expected = twin(**batch, return_loss=True)
    expected.loss.backward()
    assert waits.found == []
    torch.testing.assert_close(found.loss_dict | found.metrics, expected.loss_dict | expected.metrics)
    same_gradients_so_far(model, twin)


def test_blanks_get_no_gradient_and_give_none():
    """Even if what stands on them is large."""
    mask = ragged()[1]
    packing = BucketPacking.of_bucket(mask, 16)
    assert packing.index_T.tolist() == [*mask.flatten().nonzero().squeeze(1).tolist(), *[mask.numel()] * 10]
    states = torch.randn(*mask.shape, 5, requires_grad=True)
    packed = packing.pack(states)
    rows = packing.pad(packed * torch.cat([torch.ones(22, 1), torch.full((10, 1), 1e30)]))
    assert torch.equal(rows, states * mask[..., None])
    packed.square().sum().backward()  # reads the blanks, too
    assert torch.equal(states.grad, 2 * states.detach() * mask[..., None])


@pytest.mark.parametrize("counted", [True, False])
def test_sizes(counted):
    """They are multiples, whatever the lengths; attention's rows are longer, and the places the same."""
    sizes = []
    for lengths in (LENGTHS, [5, 2, 2, 9], [1, 1, 1, 1], [0, 0, 1, 0]):
        mask = ragged(lengths)[1]
        packing = BucketPacking.of_bucket(note_counts(mask, lengths) if counted else mask, 16)
        inside, plain = packing.inside, Packing.of(mask)
        sizes.append((len(packing.index_T), inside.mask_NL.shape[1]))
        assert torch.equal(packing.index_T[: sum(lengths)], plain.index_T)
        assert torch.equal(packing.positions()[:, : sum(lengths)], plain.positions())
        states = torch.randn(len(packing.index_T), 3)
        assert torch.equal(inside.pad(states)[:, : max(lengths)], packing.pad(states))
        assert torch.equal(inside.pack(inside.pad(states))[: sum(lengths)], states[: sum(lengths)])
        assert inside.inside is inside
    assert sizes == [(32, 16), (32, 16), (16, 8), (16, 8)]


def test_wrong_counts_are_found():
    with pytest.raises(RuntimeError, match="token_counts are not those of attention_mask"):
        BucketPacking.of_bucket(note_counts(torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]), [2, 2]), 16)


def test_dropout_has_its_rate(checkpoint):
    """Regression: attention's own function on CPU reads rows by index, which blanks have none of."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.1).train()
    fill(model, 16)
    ids, mask = ragged()
    losses = [model(ids[:, None], mask[:, None]).loss for _ in range(2)]
    losses[0].backward()
    assert losses[0] != losses[1] and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_evaluation_has_no_blanks(checkpoint):
    model, seen = SimCSEModel.from_backbone(checkpoint("bert")).eval(), []
    assert compile_layers(model, backend="eager", bucket=16) == 1
    model.backbone.embeddings.register_forward_hook(lambda *args: seen.append(args[2].shape[1]))
    for _ in range(2):
        with uncompiled(model), torch.no_grad():
            model(*ragged())
    with torch.compiler.set_stance("force_eager"):
        model(*ragged())
    assert seen == [22, 22, 32]


def test_an_encoder_whose_batches_stay_padded_is_refused(checkpoint):
    model = CSEModel.from_backbone(checkpoint("mpnet"))
    with pytest.raises(ValueError, match="compile_bucket must be 0, got 512: MPNetModel's batches stay padded"):
        compile_layers(model, backend="eager", bucket=512)
    assert compile_layers(CSEModel.from_backbone(checkpoint("mpnet")), backend="eager") == 2


def test_a_step_begins_where_graphs_are_recorded(monkeypatch):
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    for mode in (None, "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"):
        begin_step(mode)
    assert marks == [1, 1]
