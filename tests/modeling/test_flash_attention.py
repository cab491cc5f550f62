"""Packed batches with Transformers' flash attention: it is told where rows begin, in the terms of flash-attn's API.

On CPU flash-attn itself is replaced by loops in float64 that take the same arguments; all between is the real thing.
"""

import copy
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash_utils

from csekit.modeling import CSEModel, SimCSEConfig, SimCSEModel
from csekit.modeling.fast_buckets import use_buckets
from csekit.modeling.fast_packing import run_encoder

FAMILIES = ["bert", "roberta", "modernbert"]
LENGTHS = [3, 12, 1, 7]


def ragged(pad=0, lengths=LENGTHS):
    ids = torch.randint(8, 90, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return ids.masked_fill(mask == 0, pad), mask


@pytest.fixture
def flash(monkeypatch):
    """A flash-attn of loops, installed. ``flash.calls``: the boundaries and the longest row of each call."""
    calls = []

    def varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, block_table=None,
    ):  # fmt: skip
        if q.dtype == torch.float32:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert isinstance(max_seqlen_q, int)
        assert max_seqlen_q == max_seqlen_k
        assert not causal
        assert q.dim() == 3
        starts = cu_seqlens_q.tolist()
        calls.append((starts, max_seqlen_q))
        assert starts[-1] == len(q) and max(b - a for a, b in pairwise(starts)) <= max_seqlen_q
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        rows = []
        for start, end in pairwise(starts):
            for i in range(start, end):
                near = [j for j in range(start, end) if window_size[0] < 0 or abs(i - j) <= window_size[0]]
                scores_AJ = torch.einsum("ad,jad->aj", q[i].double(), k[near].double()) * scale
                rows.append(torch.einsum("aj,jad->ad", scores_AJ.softmax(1), v[near].double()).to(q.dtype))
        return torch.stack(rows)

    def rows_of_one_length(q, k, v, **options):
        N, L = q.shape[:2]
        starts = torch.arange(0, N * L + 1, L, dtype=torch.int32)
        flat = [states.flatten(0, 1) for states in (q, k, v)]
        return varlen(*flat, starts, starts, L, L, **options).view_as(q)

    package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = rows_of_one_length, varlen
    package.flash_attn_with_kvcache = rows_of_one_length
    padding.pad_input, padding.unpad_input = flash_utils._pad_input, flash_utils._unpad_input
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
    monkeypatch.setattr(flash_utils, "is_flash_attn_2_available", lambda: True)
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_pad_fn", "_unpad_fn"):
        monkeypatch.setattr(flash_utils, name, getattr(flash_utils, name))
    for name in [name for name in vars(flash_utils) if name.startswith("_process_") and name.endswith("kwargs_fn")]:
        monkeypatch.setattr(flash_utils, name, getattr(flash_utils, name))
    flash_utils._loaded_implementation = None
    return SimpleNamespace(calls=calls, choose=lambda model: choose(model.backbone))


def choose(encoder):
    """As ``attn_implementation="flash_attention_2"``, without the check that there is a GPU."""
    encoder.config._attn_implementation = "flash_attention_2"


@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_gradients_of_padded_batches(name, flash, checkpoint, encoder_config):
    model = SimCSEModel.from_backbone(checkpoint(name), dropout=0.0, attn_implementation="sdpa").double()
    model.backbone.set_attn_implementation("sdpa")
    twin = copy.deepcopy(model)
    flash.choose(model)
    ids, mask = ragged(encoder_config(name).pad_token_id)
    weights = torch.randn(len(LENGTHS), max(LENGTHS), model.config.hidden_size).double() * mask.unsqueeze(-1)
    found = []
    for each in (model, twin):
        states = run_encoder(each.backbone, mask, ids).last_hidden_state * mask[..., None]
        (states * weights).sum().backward()
        found.append(states.detach())
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    for (path, ours), theirs in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert (ours.grad is None) == (theirs[1].grad is None), path
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs[1].grad, rtol=1e-8, atol=1e-8, msg=path)
    starts = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    assert flash.calls == [(starts, max(LENGTHS))] * model.config.encoder_config.num_hidden_layers


@pytest.mark.parametrize("name", ["mlm", "rtd", "edited"])
def test_a_step(name, flash, checkpoint, batch_of):
    """Every objective's own networks too; those that have another attention keep it."""
    fields = {f"{name}_weight": 0.7} | ({f"{name}_edit_sampling": "argmax"} if name != "mlm" else {})
    model = CSEModel.from_backbone(checkpoint("bert"), dropout=0.0, **fields).double().train()
    batch, twin = batch_of(model), copy.deepcopy(model)
    flash.choose(model)
    for each in (model, twin):
        each(**batch, return_loss=True).loss.backward()
    assert flash.calls
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_a_batch_without_padding_has_no_mask(flash, checkpoint):
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).double()
    ids, mask = ragged(lengths=[5, 5])
    expected = run_encoder(model.backbone, mask, ids).last_hidden_state
    flash.choose(model)
    torch.testing.assert_close(run_encoder(model.backbone, mask, ids).last_hidden_state, expected)
    assert {starts[-1] for starts, _ in flash.calls} == {10}


def test_float32_is_computed_by_sdpa(flash, checkpoint):
    """Regression: the dev set, embedded without autocast, ended a training by flash attention."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), dropout=0.0).eval()
    twin = copy.deepcopy(model)
    flash.choose(model)
    ids, mask = ragged()
    ours, theirs = (each(ids, mask).sentence_embedding for each in (model, twin))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not flash.calls and model.backbone.config._attn_implementation == "flash_attention_2"
    with torch.autocast("cpu", torch.bfloat16):
        half = model(ids, mask).sentence_embedding
    assert flash.calls
    torch.testing.assert_close(half.float(), theirs, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_blanks_are_a_row_of_their_own(name, flash, checkpoint, encoder_config):
    model = SimCSEModel.from_backbone(checkpoint(name), dropout=0.0).double()
    flash.choose(model)
    ids, mask = ragged(encoder_config(name).pad_token_id)
    found = []
    for filled in (False, True):
        if filled:
            use_buckets(model.backbone, 16)
        model.zero_grad()
        states = run_encoder(model.backbone, mask, ids).last_hidden_state * mask[..., None]
        states.square().sum().backward()
        found.append((states.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)
    starts = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    assert flash.calls[0] == (starts, 12) and flash.calls[-1] == ([*starts, 32], 16)


@pytest.mark.gpu
@pytest.mark.parametrize("bucket", [0, 64])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_the_real_one(name, bucket, encoder_config):
    """In bf16 as close to float32 as padded attention is in bf16."""
    config = encoder_config(name, 0.0, hidden_size=64)  # flash-attn wants heads of a multiple of 8
    exact = SimCSEModel(SimCSEConfig(encoder_config=config)).cuda().eval()
    model = copy.deepcopy(exact)
    try:
        model.backbone.set_attn_implementation("flash_attention_2")
    except (ImportError, OSError, ValueError) as error:
        pytest.skip(f"needs flash_attn or its kernel: {error}")
    if bucket:
        use_buckets(model.backbone, bucket)
    ids, mask = (tensor.cuda() for tensor in ragged(config.pad_token_id))
    expected = run_encoder(exact.backbone, mask, ids).last_hidden_state[mask == 1]
    with torch.autocast("cuda", torch.bfloat16):
        padded = run_encoder(exact.backbone, mask, ids).last_hidden_state[mask == 1]
        ours = run_encoder(model.backbone, mask, ids).last_hidden_state[mask == 1]
    assert (ours - expected).abs().max() <= 3 * (padded - expected).abs().max() + 1e-3
    ours.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.backbone.parameters() if p.grad is not None)
