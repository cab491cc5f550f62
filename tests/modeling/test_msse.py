"""MSSE: its two terms against loops over float64, their invariances, and what trains."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModel, AutoTokenizer

from csekit.modeling import CSEModel, Encode, MSSEModel
from csekit.modeling.losses import dimension_contrast_balanced, dimension_contrast_released, dimension_contrast_sum
from csekit.modeling.objective_dcm import cross_correlation
from csekit.modeling.objective_icm import GAP_SENTENCES
from csekit.modeling.tokenization import sentence_frame

B, H = 5, 16
REDUCTIONS = {
    "sum": dimension_contrast_sum,
    "balanced": dimension_contrast_balanced,
    "released": dimension_contrast_released,
}
DECODERS = {
    "causal": {"word_dropout": 0.4},
    "two layers": {"decoder_layers": 2, "decoder_heads": 4, "icm_representation": "z"},
    "denoising": {"icm_decoder": "denoising", "decoder_layers": 3, "decoder_heads": 1, "icm_target": "positive"},
}


def term(model, batch, name):
    """One objective alone."""
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight, model.project)
    return model.objectives[name](views, batch, encode)


def same_gradients(model, twin, found, expected, touched):
    """Both losses give every parameter the same gradient; those under ``touched`` have one."""
    for each, loss in ((model, found), (twin, expected)):
        each.zero_grad()
        loss.backward()
    theirs, moved, atol = dict(twin.named_parameters()), set(), 1e-6 * max(1.0, float(expected.detach()))
    for name, parameter in model.named_parameters():
        ours, other = (torch.zeros_like(p) if p.grad is None else p.grad for p in (parameter, theirs[name]))
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
        if ours.abs().max() > 1e-6:
            moved.add(name)
    for prefix in touched:
        assert any(name.startswith(prefix) for name in moved), prefix


# L_DCM


def naive_dcm(h1: Tensor, h2: Tensor, reduction: str) -> Tensor:
    """Eqs. 3 and 4, one pair of dimensions after the other."""
    rows, size = h1.shape
    same, different = [], []
    for i in range(size):
        for j in range(size):
            x, y = h1[:, i] - sum(h1[:, i]) / rows, h2[:, j] - sum(h2[:, j]) / rows
            c = sum(a * b for a, b in zip(x, y, strict=True)) / (sum(x * x).sqrt() * sum(y * y).sqrt())
            (same if i == j else different).append((c - int(i == j)) ** 2)
    if reduction == "sum":
        return sum(same) + sum(different)
    if reduction == "released":
        return 2 * sum(same) + 0.05 * sum(different)
    return sum(same) / len(same) + sum(different) / len(different)


def pooled(model, batch, column):
    return model.pooled(batch["input_ids"][:, column], batch["attention_mask"][:, column])


@pytest.mark.parametrize("representation", ["h", "z"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_dcm_against_the_formula(checkpoint, batch_of, reduction, representation):
    fields = {"dcm_weight": 0.7, "dcm_reduction": reduction, "dcm_representation": representation}
    model = MSSEModel.from_backbone(checkpoint("bert"), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    found, metrics = term(model, batch, "dcm")
    vectors = [pooled(twin, batch, column) for column in range(2)]
    if representation == "z":
        vectors = [twin.projector(h) for h in vectors]
    expected = 0.7 * naive_dcm(*vectors, reduction)
    torch.testing.assert_close(found["dcm"].double(), expected, rtol=1e-5, atol=1e-7)
    same = [torch.corrcoef(torch.stack([vectors[0][:, i], vectors[1][:, i]]))[0, 1] for i in range(H)]
    torch.testing.assert_close(metrics["dcm_diagonal"].double(), sum(same) / H, rtol=1e-5, atol=1e-6)
    assert 0 < metrics["dcm_off_diagonal"] < 1
    touched = ["backbone.encoder", *(["projector."] if representation == "z" else [])]
    same_gradients(model, twin, found["dcm"], expected, touched)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_dcm_forms_to_machine_precision(reduction):
    rows = [torch.randn(7, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    losses = [REDUCTIONS[reduction](cross_correlation(*rows)), naive_dcm(*rows, reduction)]
    torch.testing.assert_close(*losses)
    for ours, theirs in zip(*(torch.autograd.grad(loss, rows) for loss in losses), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_dcm_does_not_see_order_shift_or_scale(reduction):
    x, y = (torch.randn(6, 4, dtype=torch.float64) for _ in range(2))
    loss = REDUCTIONS[reduction](cross_correlation(x, y))
    order = torch.randperm(6)
    torch.testing.assert_close(REDUCTIONS[reduction](cross_correlation(x[order], y[order])), loss)
    shift, scale = torch.randn(4, dtype=torch.float64) * 5, torch.rand(4, dtype=torch.float64) * 9 + 0.1
    torch.testing.assert_close(REDUCTIONS[reduction](cross_correlation(x * scale + shift, y - shift)), loss)
    assert not torch.isclose(REDUCTIONS[reduction](cross_correlation(-x, y)), loss)  # the sign of a scale matters
    assert not torch.isclose(REDUCTIONS[reduction](cross_correlation(x[order.roll(1)], y[order])), loss)  # and who
    torch.testing.assert_close(REDUCTIONS[reduction](cross_correlation(y, x)), loss)  # C is transposed


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("size", [1e-25, 1e-22, 1e-18, 1e-12, 0.0])
def test_a_dimension_without_life_gives_no_gradient_to_dcm(reduction: str, size: float) -> None:
    """Regression: all-MiniLM-L6-v2 has a dimension of some 1e-25, whose squares float32 barely holds: nan."""
    views = torch.randn(2, 7, 4)
    views[:, :, 2] *= size
    views.requires_grad_()
    loss = REDUCTIONS[reduction](cross_correlation(*views))
    (found,) = torch.autograd.grad(loss, views)
    assert not found[:, :, 2].any() and found.isfinite().all()
    without = views.detach()[:, :, [0, 1, 3]].double().requires_grad_()
    same, different = (2, 0.05) if reduction == "released" else (1, 1)
    C = cross_correlation(*without)
    weight = {"balanced": (1 / 4, 1 / 12)}.get(reduction, (same, different))
    parts = (C.diagonal() - 1).square().sum(), C.square().sum() - C.diagonal().square().sum()
    (expected,) = torch.autograd.grad(weight[0] * parts[0] + weight[1] * parts[1], without)
    torch.testing.assert_close(found[:, :, [0, 1, 3]].double(), expected, rtol=1e-3, atol=1e-5)


def test_training_with_dcm_lives_with_a_dead_dimension(checkpoint: Any, batch_of: Any) -> None:
    model = MSSEModel.from_backbone(checkpoint("bert"), icm_weight=0.0)
    last = model.backbone.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        last.weight[3], last.bias[3] = 1e-22, -1e-23
    model(**batch_of(model)).loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


class Largest(TorchDispatchMode):
    """The most elements that an operation gives."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


def test_dcm_holds_nothing_larger_than_its_matrix_and_the_batch():
    """Never a product for each sentence, (B, H, H), in forward or backward."""
    rows, size = 48, 40
    h1, h2 = torch.randn(2, rows, size, requires_grad=True)
    with Largest() as largest:
        dimension_contrast_balanced(cross_correlation(h1, h2)).backward(inputs=[h1, h2])
    assert size**2 <= largest.numel <= max(size**2 + 2 * size, 2 * rows * size) < rows * size**2 / 10


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_minimum_of_each_form(reduction):
    """Since rank(C) ≤ B − 1, the printed sum ends at H − (B − 1), with views that correlate by (B − 1)/H alone: at 513
    and a third for B = 256 and H = 768. The balanced form lets them correlate: by 0.997 there."""
    rows, size = 4, 9
    views = [torch.randn(rows, size, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.LBFGS(views, max_iter=800, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = REDUCTIONS[reduction](cross_correlation(*views))
        loss.backward()
        return loss.detach()

    optimizer.step(closure)
    correlation = cross_correlation(*views).detach()
    excess = (size / (rows - 1) - 1) / (size - 1)  # of the mean square off the diagonal, where the diagonal is 1
    light = 0.05 / 2 * (size - 1) * excess  # the same, of the sums that the released form weighs
    diagonal = {"sum": (rows - 1) / size, "balanced": 1 / (1 + excess), "released": 1 / (1 + light)}[reduction]
    least = {
        "sum": size - (rows - 1),
        "balanced": (1 - diagonal) ** 2 + excess * diagonal**2,
        "released": 2 * size * ((1 - diagonal) ** 2 + light * diagonal**2),
    }[reduction]
    assert REDUCTIONS[reduction](correlation).item() == pytest.approx(least, abs=1e-4)
    assert correlation.diagonal().mean().item() == pytest.approx(diagonal, abs=1e-4)
    assert torch.linalg.matrix_rank(correlation, tol=1e-6) == rows - 1


@pytest.mark.parametrize("level", [0.0, 3.1, 1e4])
def test_a_dimension_that_does_not_vary_correlates_with_nothing(level):
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    x[:, 1] = level + 1e-7 * torch.randn(6)
    if level == 0:
        x[:, 1] = 0
    x.requires_grad_()
    correlation = cross_correlation(x, y)
    assert (correlation[1] == 0).all() and (correlation[[0, 2, 3]] != 0).all()
    dimension_contrast_sum(correlation).backward()
    assert x.grad.isfinite().all()
    assert (x.grad[:, 1] == 0).all()
    assert x.grad.abs().max() < 1e3
    far = torch.randn(6, 4)
    torch.testing.assert_close(cross_correlation(far + 30, y), cross_correlation(far, y), rtol=0, atol=1e-4)


# L_ICM


def layer_norm(x: Tensor, module) -> Tensor:
    variance = ((x - x.mean()) ** 2).mean()
    return (x - x.mean()) / (variance + module.eps).sqrt() * module.weight + module.bias


def linear(x: Tensor, module) -> Tensor:
    return module.weight @ x + module.bias


def naive_layer(layer, states: list[Tensor], vector: Tensor, causal: bool) -> list[Tensor]:
    """One layer of the decoder over one sentence, place by place, head by head."""
    joint = [linear(layer_norm(x, layer.attention_norm), layer.attention_in).chunk(3) for x in states]
    split = [[part.chunk(layer.heads) for part in parts] for parts in joint]
    out = []
    for t, x in enumerate(states):
        heads = []
        for head in range(layer.heads):
            seen = [(split[s][1][head], split[s][2][head]) for s in range(t + 1 if causal else len(states))]
            query = split[t][0][head]
            scores = [((query * key).sum() / math.sqrt(len(query))).exp() for key, _ in seen]
            heads.append(sum(s * value for s, (_, value) in zip(scores, seen, strict=True)) / sum(scores))
        x = x + linear(torch.cat(heads), layer.attention_out) + linear(vector, layer.memory)
        norm, first, gelu, second = layer.feed_forward
        out.append(x + linear(gelu(linear(layer_norm(x, norm), first)), second))
    return out


def naive_sentence(decoder, words: Tensor, ids: list[int], vector: Tensor, causal: bool) -> list[Tensor]:
    """(V,) logits at each place of one sentence."""
    inputs = [linear(e, decoder.enter) if hasattr(decoder.enter, "weight") else e
              for e in (layer_norm(words[i].detach(), decoder.word_norm) for i in ids)]  # fmt: skip
    if causal:
        inputs = [decoder.start, *inputs[:-1]]
    states = []
    for t, x in enumerate(inputs):
        angles = [t / 10_000 ** (2 * (d // 2) / len(x)) for d in range(len(x))]
        waves = [math.cos(angle) if d % 2 else math.sin(angle) for d, angle in enumerate(angles)]
        states.append(x + x.new_tensor(waves))
    for layer in decoder.layers:
        states = naive_layer(layer, states, vector, causal)
    return [words @ linear(layer_norm(x, decoder.norm), decoder.leave) + decoder.bias for x in states]


def naive_icm(naive, model, batch, shift=0) -> tuple[Tensor, int]:
    """The summed cross-entropy and the number of tokens; sentence i from the vector of sentence i − shift."""
    objective = model.objectives["icm"]
    h = pooled(model, batch, 0)
    vectors = model.projector(h) if objective.config.representation == "z" else h
    words, K = model.backbone.get_input_embeddings().weight, batch["icm_input_ids"].shape[1]
    total, count = 0.0, 0
    for row in range(B):
        length = int(batch["icm_attention_mask"][row].sum())
        ids, vector = batch["icm_input_ids"][row, :length].tolist(), vectors[row - shift]
        logits = naive_sentence(objective.decoder, words, ids, vector, objective.config.decoder == "causal")
        own = [m for m, place in enumerate(batch["icm_positions"].tolist()) if place // K == row]
        chosen = torch.stack([logits[int(batch["icm_positions"][m]) % K] for m in own])
        total, count = total + naive.token_loss(chosen, batch["icm_labels"][own]), count + len(own)
    return total, count


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("encoder", ["bert", "electra"])
def test_icm_against_the_formula(checkpoint, batch_of, naive, disturb, encoder, kind):
    model = MSSEModel.from_backbone(checkpoint(encoder), icm_weight=0.7, **DECODERS[kind])
    disturb(model.objectives)
    twin, batch = copy.deepcopy(model.double()), batch_of(model, encoder)
    found, metrics = term(model, batch, "icm")
    total, count = naive_icm(naive, twin, batch)
    assert count == len(batch["icm_labels"])
    torch.testing.assert_close(found["icm"].double(), 0.7 * total / count, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(metrics["icm_cross_entropy"].double(), total / count, rtol=1e-5, atol=1e-7)
    other, _ = naive_icm(naive, twin, batch, shift=1)
    torch.testing.assert_close(metrics["icm_gap"].double(), (other - total) / count, rtol=1e-3, atol=1e-6)
    touched = [
        "backbone.encoder",
        "backbone.embeddings.word",
        "objectives.icm.decoder.layers",
        "objectives.icm.decoder.bias",
    ]
    touched += ["projector."] if "icm_representation" in DECODERS[kind] else []
    same_gradients(model, twin, found["icm"], 0.7 * total / count, touched)


def test_the_targets_are_the_sentences_own_words(checkpoint, batch_of, tokenizer_of):
    """Without template and special tokens; of the positive where that is the target."""
    tokenizer, batches = tokenizer_of("bert"), {}
    for target in ("original", "positive"):
        model = MSSEModel.from_backbone(checkpoint("bert"), icm_target=target, word_dropout=0.5)
        batches[target] = batch_of(model)
        frame = sentence_frame(tokenizer, model.config.prompt_template)
        column = batches[target]["input_ids"][:, int(target == "positive")]
        expected = []
        for ids, mask in zip(column, batches[target]["attention_mask"][:, int(target == "positive")], strict=True):
            own = ids[: mask.sum()].tolist()[len(frame.before) : -len(frame.after)]
            expected += [i for i in own if i not in tokenizer.all_special_ids]
        assert batches[target]["icm_labels"].tolist() == expected
        hidden = batches[target]["icm_input_ids"] == tokenizer.mask_token_id
        assert 0 < hidden.sum() < len(expected)
        assert not set(expected) & set(tokenizer.convert_tokens_to_ids(["means", '"', "."]))
    assert batches["original"]["icm_labels"].tolist() != batches["positive"]["icm_labels"].tolist()


def test_only_the_targets_meet_the_vocabulary(checkpoint, batch_of, monkeypatch):
    model = MSSEModel.from_backbone(checkpoint("bert")).train()
    batch, rows, own = batch_of(model), [], model.objectives["icm"].decoder.losses
    monkeypatch.setattr(
        model.objectives["icm"].decoder, "losses", lambda x, *y: rows.append((len(x), x.requires_grad)) or own(x, *y)
    )
    model(**batch)
    assert rows[0] == (len(batch["icm_labels"]), True)
    assert len(batch["icm_labels"]) < batch["icm_input_ids"].numel()
    real = int(batch["icm_attention_mask"][:GAP_SENTENCES].sum())
    assert rows[1:] == [(real, False)]  # the diagnostic, which sends no gradient


@pytest.mark.parametrize("kind", ["causal", "denoising"])
def test_the_embedding_is_the_only_memory(checkpoint, batch_of, kind):
    """Other sentences of the batch, padding and the tokens behind a causal place do not matter; the vector does."""
    model = MSSEModel.from_backbone(checkpoint("bert"), **DECODERS[kind])
    decoder, words = model.objectives["icm"].decoder, model.backbone.get_input_embeddings().weight
    ids, mask = torch.randint(8, 90, (3, 6)), torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
    memory = torch.randn(3, H)

    def states(ids, mask=mask, memory=memory):
        return decoder(decoder.queries(ids, words), memory, mask)

    plain = states(ids)
    other = ids.clone()
    other[0] += 1
    other[1, 4:] += 1  # padding
    torch.testing.assert_close(states(other)[1, :4], plain[1, :4])
    torch.testing.assert_close(states(ids[1:2, :4], mask[1:2, :4], memory[1:2])[0], plain[1, :4], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(states(ids, memory=memory + 1), plain, atol=1e-3)
    other = ids.clone()
    other[0, 3] += 1
    changed = (states(other)[0] - plain[0]).abs().amax(-1) > 1e-6
    assert changed.tolist() == ([False] * 4 + [True] * 2 if kind == "causal" else [True] * 6)


def test_element_dropout_is_for_training(checkpoint):
    decoder = MSSEModel.from_backbone(checkpoint("bert"), icm_decoder="denoising").objectives["icm"].decoder
    ids, words = torch.randint(8, 90, (8, 40)), torch.randn(97, H)
    plain = decoder.queries(ids, words)
    places = decoder.train().queries(ids, torch.zeros(97, H))  # the norm of nothing is nothing
    noisy = decoder.queries(ids, words) - places
    assert 0.78 < (noisy == 0).float().mean() < 0.87
    kept = noisy != 0
    torch.testing.assert_close(noisy[kept], ((plain - places) / (1 - 0.825))[kept], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["causal", "denoising"])
def test_the_decoder_comes_to_read_the_embedding(checkpoint, batch_of, kind):
    """A few sentences are soon told apart by their embeddings, and another's is then worse than its own."""
    model = MSSEModel.from_backbone(checkpoint("bert"), icm_decoder=kind, word_dropout=1.0, dropout=0.0).train()
    batch = batch_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    gaps = []
    for _ in range(60):
        terms, metrics = term(model, batch, "icm")
        gaps.append(metrics["icm_gap"].item())
        optimizer.zero_grad()
        terms["icm"].backward()
        optimizer.step()
    assert abs(gaps[0]) < 0.2 and gaps[-1] > 1.0


def test_a_sentence_without_a_word_of_its_own(checkpoint, batch_of):
    """Nothing but unknown words, in one sentence or in all: no token to predict, no division by zero."""
    for kind in ("causal", "denoising"):
        model = MSSEModel.from_backbone(checkpoint("bert"), **DECODERS[kind]).train()
        batch = batch_of(model)
        batch["icm_attention_mask"] = batch["icm_attention_mask"].clone()
        batch["icm_attention_mask"][1] = 0
        batch["icm_token_counts"] = batch["icm_attention_mask"].sum(1)
        assert model(**batch).loss.isfinite()
        for key in ("positions", "labels"):
            batch[f"icm_{key}"] = batch[f"icm_{key}"][:0]
        output = model(**batch)
        output.loss.backward()
        assert output.loss_dict["icm"] == 0 and output.metrics["icm_gap"] == 0
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


# The model


@pytest.mark.parametrize(
    "fields",
    [
        {},
        DECODERS["denoising"],
        {"contrastive_weight": 0.0},
        {"contrastive_weight": 0.0, "dcm_representation": "z"},
        {"pooling": "first_last_mean"},
        {"dcm_reduction": "sum", "projector": "batchnorm", "icm_representation": "z"},
    ],
    ids=["default", "denoising", "no contrast", "no contrast, z", "first_last_mean", "z"],
)
def test_everything_that_trains_moves_and_nothing_else(checkpoint, batch_of, fields):
    model = MSSEModel.from_backbone(checkpoint("bert"), **fields).train()
    batch = batch_of(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trained = [parameter for group in model.parameter_groups() for parameter in group["params"]]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    output = model(**batch)
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    expected = {"contrastive", "dcm", "icm"} - ({"contrastive"} if "contrastive_weight" in fields else set())
    assert output.loss_dict.keys() == expected and {"icm_gap", "dcm_diagonal"} <= output.metrics.keys()
    output.loss.backward()
    optimizer.step()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    still = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert still == frozen
    reads = "contrastive_weight" not in fields or "dcm_representation" in fields
    assert frozen == (set() if reads else {"projector.weight", "projector.bias"})


def test_each_term_of_table_4_can_be_off(checkpoint, batch_of):
    whole = MSSEModel.from_backbone(checkpoint("bert"))
    batch = batch_of(whole)
    full = whole(**batch).loss_dict
    for off in ({"dcm"}, {"icm"}, {"dcm", "icm"}, {"contrastive"}):
        model = MSSEModel.from_backbone(checkpoint("bert"), **{f"{name}_weight": 0.0 for name in off})
        model.load_state_dict(whole.state_dict())
        left = {name: value for name, value in model(**batch).loss_dict.items() if value != 0}
        assert left.keys() == full.keys() - off
        assert all(torch.equal(value, full[name]) for name, value in left.items())


@pytest.mark.parametrize("kind", ["causal", "denoising"])
def test_families(family, checkpoint, batch_of, tmp_path, kind):
    """Prompt pooling and both decoders: training, bitwise reload, export without the decoder."""
    model = MSSEModel.from_backbone(checkpoint(family), **DECODERS[kind])
    batch = batch_of(model, family)
    output = model.train()(**batch)
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(**batch).loss.isfinite()
    model.eval().save_pretrained(tmp_path / "one")
    again = MSSEModel.from_pretrained(tmp_path / "one")
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert again.config.objectives == model.config.objectives and torch.equal(model(**batch).loss, again(**batch).loss)
    model.export(tmp_path / "plain", AutoTokenizer.from_pretrained(checkpoint(family)))
    tokenizer, plain = (kind.from_pretrained(tmp_path / "plain") for kind in (AutoTokenizer, AutoModel))
    texts = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9 w1 w2", "w10"]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    last = encoded["attention_mask"].sum(1) + model.config.prompt_mask_offset
    assert (encoded["input_ids"][torch.arange(3), last] == tokenizer.mask_token_id).all()
    ours = model(encoded["input_ids"], encoded["attention_mask"]).sentence_embedding
    states = plain(**encoded).last_hidden_state
    torch.testing.assert_close(states[torch.arange(3), last], ours, rtol=0, atol=1e-5)


def test_joint_with_other_objectives(checkpoint, batch_of):
    model = CSEModel.from_backbone(checkpoint("bert"), objectives=["reconstruction", "dcm", "icm", "rtd", "mlm"])
    output = model.train()(**batch_of(model))
    assert list(output.loss_dict) == ["contrastive", "reconstruction", "dcm", "icm", "rtd", "mlm"]
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_heads_must_divide_the_hidden_size(checkpoint):
    with pytest.raises(ValueError, match="icm_decoder_heads must divide the hidden size, 16, got 3"):
        MSSEModel.from_backbone(checkpoint("bert"), decoder_heads=3)
