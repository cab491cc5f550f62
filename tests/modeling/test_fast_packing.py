"""Packed batches: the states and gradients of padded ones, in every family that can."""

import copy
import types

import pytest
import torch
from transformers import AutoModel

from csekit.modeling import CSEModel, SimCSEModel, fast_packing
from csekit.modeling.fast_counts import note_counts
from csekit.modeling.fast_packing import (
    PACKED_ATTENTION,
    Packing,
    PaddedRows,
    pack_batches,
    run_encoder,
    warn_padded,
)
from tests.modeling.gradients import same_states

CAN = {"bert", "roberta", "xlm-roberta", "distilbert", "electra", "modernbert", "albert"}
LENGTHS = [3, 12, 1, 7]


def ragged(vocabulary=90, pad=0):
    ids = torch.randint(8, vocabulary, (len(LENGTHS), max(LENGTHS)))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return ids.masked_fill(mask == 0, pad), mask


def padded_twin(model):
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if hasattr(module, "set_attn_implementation") and module.config._attn_implementation == PACKED_ATTENTION:
            module.set_attn_implementation("sdpa")
    return twin


@pytest.fixture
def model(family, checkpoint):
    return SimCSEModel.from_backbone(checkpoint(family), dropout=0.0)


def test_which_families_pack(family, model):
    expected = PACKED_ATTENTION if family in CAN else model.backbone.config._attn_implementation
    assert model.backbone.config._attn_implementation == expected
    assert (expected == PACKED_ATTENTION) is (family in CAN)


def test_states_and_gradients_of_padded_batches(family, model, encoder_config):
    twin = padded_twin(model)
    ids, mask = ragged(pad=encoder_config(family).pad_token_id)
    same_states(model, twin, ids, mask)


@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6, 6]])
def test_large_batches_are_filled(family, model, encoder_config, lengths, monkeypatch):
    """Copies of the last token change no state, and the number of tokens has few values."""
    if family not in CAN:
        pytest.skip(f"{family} stays padded")
    seen = []
    layers = [module for module in model.backbone.modules() if isinstance(module, torch.nn.Linear)]
    layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2]))
    ids = torch.randint(8, 90, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = ids.masked_fill(mask == 0, encoder_config(family).pad_token_id)
    places = torch.arange(len(lengths)) * max(lengths)

    def run(**options):
        states = "places_M" not in options
        output = run_encoder(model.eval().backbone, mask, ids, output_hidden_states=states, **options)
        real = mask.bool() if states else slice(None)
        return [each[real] for each in (output.last_hidden_state, *(output.hidden_states or ()))]

    forms = ({}, {"places_M": places}, {"places_M": places, "each_row": True})
    with torch.no_grad():
        plain = [run(**form) for form in forms]
        monkeypatch.setattr("csekit.modeling.fast_packing.FILLED", 8)
        monkeypatch.setattr("csekit.modeling.fast_packing.FILL", 16)
        seen.clear()
        torch.testing.assert_close([run(**form) for form in forms], plain, rtol=1e-4, atol=1e-5)
    assert set(seen) == {32}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6, 6]])
def test_copies_that_fill_have_no_gradient(family, model, encoder_config, lengths, training, monkeypatch):
    """Filled batches have the gradients of padded ones, also those of the token embeddings, for all ways to read."""
    if family not in CAN:
        pytest.skip(f"{family} stays padded")
    monkeypatch.setattr("csekit.modeling.fast_packing.FILLED", 8)
    monkeypatch.setattr("csekit.modeling.fast_packing.FILL", 16)
    model.train(training)
    twin = padded_twin(model)
    N, L, H = len(lengths), max(lengths), model.config.hidden_size
    mask = (torch.arange(L) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(8, 90, (N, L)).masked_fill(mask == 0, encoder_config(family).pad_token_id)
    weights_NLH, seen = torch.randn(N, L, H) * mask[..., None], []
    for layer in [module for module in model.backbone.modules() if isinstance(module, torch.nn.Linear)][:2]:
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2]))
    states = []
    for each, places in ((model, torch.arange(N) * L), (twin, None)):
        words = each.backbone.get_input_embeddings()(ids).detach().requires_grad_()
        both = [run_encoder(each.backbone, mask, ids), run_encoder(each.backbone, mask, inputs_embeds_NLH=words)]
        loss = sum((output.last_hidden_state * weights_NLH).sum() for output in both)
        first = run_encoder(each.backbone, mask, ids, places_M=places, each_row=places is not None).last_hidden_state
        (loss + (first if places is not None else first[:, 0]).square().sum()).backward()
        states.append((loss.detach(), words.grad * mask[..., None]))
    assert set(seen) == {32}
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-4)
    for (name, ours), theirs in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs[1].grad, rtol=1e-4, atol=1e-4, msg=name)


def test_padding_is_not_computed(checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert"))
    seen = []
    model.backbone.encoder.layer[0].output.register_forward_hook(lambda *args: seen.append(args[2].shape))
    ids, mask = ragged()
    output = run_encoder(model.backbone, mask, ids).last_hidden_state
    assert seen == [(1, sum(LENGTHS), 16)]
    assert not output[mask == 0].any()
    run_encoder(model.backbone, mask, ids, packed=False)
    assert seen[1] == (len(LENGTHS), max(LENGTHS), 16)


def test_what_the_caller_asks_for_stays(checkpoint, tmp_path):
    model = SimCSEModel.from_backbone(checkpoint("bert"), attn_implementation="eager")
    assert model.backbone.config._attn_implementation == "eager"
    packed = SimCSEModel.from_backbone(checkpoint("bert"))
    packed.save_pretrained(tmp_path / "training")
    packed.backbone.save_pretrained(tmp_path / "plain")
    for folder in ("training", "plain"):
        assert PACKED_ATTENTION not in (tmp_path / folder / "config.json").read_text()
    assert AutoModel.from_pretrained(tmp_path / "plain").config._attn_implementation == "sdpa"
    again = SimCSEModel.from_pretrained(tmp_path / "training")
    assert again.backbone.config._attn_implementation == PACKED_ATTENTION


def test_a_family_whose_attention_sees_other_rows_stays_padded(checkpoint, monkeypatch, caplog):
    backbone = AutoModel.from_pretrained(checkpoint("bert"))
    forward = backbone.embeddings.forward
    monkeypatch.setattr(backbone.embeddings, "forward", lambda **kw: forward(**{**kw, "position_ids": None}))
    warn_padded.cache_clear()
    pack_batches(backbone)
    pack_batches(backbone)
    assert backbone.config._attn_implementation == "sdpa"
    assert caplog.text.count("BertModel cannot compute packed batches") == 1


def test_gradient_checkpointing(checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).train()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    ids, mask = ragged()
    for each in (model, twin):
        each(ids[:, None], mask[:, None]).loss.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


OBJECTIVES = ["reconstruction", "mlm", "aux_mlm", "rtd", "edited", "conditional_mlm", "corrective_lm"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective(name, checkpoint, batch_of):
    fields = {f"{name}_weight": 0.7} | ({"aux_mlm_head_init": "top_layers"} if name == "aux_mlm" else {})
    fields |= {f"{name}_edit_sampling": "argmax"} if name in ("rtd", "edited", "corrective_lm") else {}
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, **fields)
    batch = batch_of(model)
    twin = padded_twin(model)
    for each in (model, twin):
        each.train()
        each(**batch, return_loss=True).loss.backward()
    ours, theirs = (each(**batch, return_loss=True).loss_dict for each in (model, twin))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    for (parameter, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=parameter)


@pytest.mark.slow
def test_dropout_has_the_distribution_of_padded_batches(checkpoint):
    """Mean and variance over many draws; attention's own dropout alone, then that of the hidden states alone."""
    ids, mask = ragged()
    for chosen in ("attention.self.dropout", "output.dropout"):
        model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0)
        for path, module in model.backbone.named_modules():
            if path.endswith(chosen):
                module.p = 0.3
        model.backbone.train()
        moments = []
        for packed in (True, False):
            with torch.no_grad():
                draws = torch.stack(
                    [run_encoder(model.backbone, mask, ids, packed=packed)[0][mask == 1] for _ in range(600)]
                )
            moments.append((draws.mean(0), draws.std(0)))
        (mean, spread), (other_mean, other_spread) = moments
        error = (spread**2 + other_spread**2).sqrt() / 600**0.5
        assert spread.mean() > 0.02
        assert ((mean - other_mean).abs() <= 5 * error + 1e-6).all()
        torch.testing.assert_close(spread.mean(), other_spread.mean(), rtol=0.03, atol=0)


def test_packing_and_back():
    _, mask = ragged()
    packing = Packing.of(mask)
    states = torch.randn(len(LENGTHS), max(LENGTHS), 5, requires_grad=True)
    packed = packing.pack(states)
    assert torch.equal(packed, torch.cat([row[:length] for row, length in zip(states, LENGTHS, strict=True)]))
    assert torch.equal(packing.pad(packed), states * mask[..., None])
    weights = torch.randn_like(packed)
    (packed * weights).sum().backward()
    assert torch.equal(states.grad, packing.pad(weights))
    assert packing.positions(2).tolist() == [[2 + i for length in LENGTHS for i in range(length)]]
    assert not packing.full and Packing.of(torch.ones(2, 3)).full


@pytest.mark.parametrize("full", [False, True])
def test_states_padded_together_are_those_padded_one_by_one(full: bool) -> None:
    torch.manual_seed(0)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2:] = full
    packing = Packing.of(mask)
    states = [torch.randn(1, 2, len(packing.index_T), 5, requires_grad=True) for _ in range(3)]
    weights = [torch.randn(3, 2, 4, 5) for _ in states]
    found = {}
    for together in (False, True):
        padded = packing.pad_states(*states, together=together)
        assert all(each.shape == (3, 2, 4, 5) for each in padded)
        loss = sum((each * weight).sum() for each, weight in zip(padded, weights, strict=True))
        found[together] = [*padded, *torch.autograd.grad(loss, states)]
    for alone, one_piece in zip(found[False], found[True], strict=True):
        assert torch.equal(alone, one_piece)
    assert (found[True][0][~mask[:, None].expand(3, 2, 4)] == 0).all()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Let the branch of a GPU run on the CPU: what pays there, and numbers in place of a bool in attention."""
    pays = fast_packing.packing_pays
    on_gpu = types.SimpleNamespace(type="cuda")

    def told(model, mask):
        fake = types.SimpleNamespace(device=on_gpu, numel=mask.numel, counts=fast_packing.counts_of(mask))
        with monkeypatch.context() as inner:
            inner.setattr(fast_packing, "counts_of", lambda rows: rows.counts)
            return pays(model, fake)

    monkeypatch.setattr(fast_packing, "packing_pays", told)
    monkeypatch.setattr(fast_packing, "own_attention", lambda _: False)
    monkeypatch.setattr(fast_packing, "reads_numbers", lambda _: True)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("least", [1, 1 << 21])
def test_on_a_gpu_little_padding_is_computed_and_much_is_not(
    family, model, encoder_config, as_on_a_gpu, monkeypatch, least, counted
):
    """Both kinds of batch have the states and gradients of Transformers' own padded one."""
    monkeypatch.setattr("csekit.modeling.fast_packing.PADDING", least)
    twin, tokens = padded_twin(model), []
    layers = [module for module in model.backbone.modules() if isinstance(module, torch.nn.Linear)]
    layers[-1].register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0].shape[:-1].numel()))
    ids, mask = ragged(pad=encoder_config(family).pad_token_id)
    same_states(model, twin, ids, note_counts(mask, LENGTHS) if counted else mask)
    if family in CAN:
        assert set(tokens) == {sum(LENGTHS) if least == 1 else ids.numel()}


def test_inference_mode_leaves_nothing_behind_on_a_gpu(checkpoint, as_on_a_gpu):
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0)
    ids, mask = ragged()
    with torch.inference_mode():
        expected = model(ids, mask).sentence_embedding.clone()
        made_inside = mask.clone()
        assert torch.equal(model(ids, made_inside).sentence_embedding, expected)
    found = model.train()(ids, mask).sentence_embedding
    found.sum().backward()
    torch.testing.assert_close(found, expected.clone())


def test_networks_that_read_one_mask_share_its_rows():
    _, mask = ragged()
    rows = PaddedRows.of(mask)
    assert PaddedRows.of(mask) is rows
    assert rows.bias(False, None, torch.float32) is rows.bias(False, None, torch.float32)
    mask[0, 1] = 0  # the rows of the earlier mask would be wrong
    assert PaddedRows.of(mask) is not rows
    assert torch.equal(PaddedRows.of(mask).mask_NL, mask.bool())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2, 99])
def test_numbers_say_what_a_bool_says(causal, window):
    _, mask = ragged()
    rows = PaddedRows.of(mask)
    bias = rows.bias(causal, window, torch.float32)
    assert torch.equal(bias == 0, rows.read(causal, window))
    assert torch.equal(bias == torch.finfo(torch.float32).min, ~rows.read(causal, window))
    assert bias.stride(-2) % 8 == 0
