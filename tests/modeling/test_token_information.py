"""IS-BERT's mutual information of a sentence and its tokens, against loops over tokens and sentences."""

import copy
import math

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from csekit.modeling import CSEModel
from tests.modeling.gradients import same_gradients


def build(folder, **fields) -> CSEModel:
    sizes = {"token_information_channels": 8, "token_information_kernels": "1+5", "pooling": "mean"}
    return CSEModel.from_backbone(
        folder, objectives=["token_information"], **{"contrastive_weight": 0.0} | sizes | fields
    )


def tokens_of(model: CSEModel, ids: Tensor, relu: bool) -> Tensor:
    """c of one text, (n, 16): each token's window by hand, zeros beside the text."""
    states = model.backbone(ids[None]).last_hidden_state[0]
    rows = []
    for t in range(len(ids)):
        parts = []
        for convolution in model.objectives["token_information"].convolutions:
            weight, half = convolution.weight, convolution.weight.shape[-1] // 2
            total = convolution.bias
            for offset in range(-half, half + 1):
                if 0 <= t + offset < len(ids):
                    total = total + weight[:, :, offset + half] @ states[t + offset]
            parts.append(total)
        c = torch.cat(parts)
        rows.append(c.clamp_min(0) if relu else c)
    return torch.stack(rows)


def naive(model: CSEModel, batch: dict[str, Tensor], relu: bool, pooled: bool) -> Tensor:
    """E_neg − E_pos, as the released code sums them over tokens and sentences."""
    texts = [
        ids[mask.bool()] for ids, mask in zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], strict=True)
    ]
    c = [tokens_of(model, ids, relu) for ids in texts]
    g = [each.mean(0) for each in c]
    if pooled:
        g = [model.backbone(ids[None]).last_hidden_state[0].mean(0) for ids in texts]
    M, K = sum(map(len, c)), len(c)
    E_pos = sum(math.log(2) - (1 + (-(token @ g[i])).exp()).log() for i in range(K) for token in c[i]) / M
    E_neg = 0.0
    for i in range(K):
        for token in c[i]:
            E_neg = E_neg + sum((1 + (token @ g[k]).exp()).log() - math.log(2) for k in range(K) if k != i)
    return E_neg / (M * (K - 1)) - E_pos


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("sentence", ["tokens", "h"])
def test_the_loss_and_its_gradient_against_the_formula(checkpoint, batch_of, disturb, activation, sentence):
    fields = {"weight": 0.7, "activation": activation, "sentence": sentence}
    model = build(checkpoint("bert", 0.0), **{f"token_information_{k}": v for k, v in fields.items()}).double()
    disturb(model.objectives)
    twin, batch = copy.deepcopy(model), batch_of(model)
    output = model(**batch)
    expected = 0.7 * naive(twin, batch, activation == "relu", sentence == "h")
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert output.loss_dict.keys() == {"token_information"}
    same_gradients(model, twin, output.loss, expected)


def test_padding_and_other_columns_do_not_count(checkpoint, batch_of, family):
    model = build(checkpoint(family, 0.0))
    batch = batch_of(model, family)
    batch.pop("token_counts")
    wider = batch | {name: torch.nn.functional.pad(batch[name], (0, 3), value=0) for name in ("attention_mask",)}
    wider["input_ids"] = torch.nn.functional.pad(batch["input_ids"], (0, 3), value=7)
    torch.testing.assert_close(model(**wider).loss, model(**batch).loss, rtol=1e-3, atol=1e-4)
    other = batch | {
        name: torch.cat([batch[name][:, :1], batch[name][:, :1]], 1) for name in ("input_ids", "attention_mask")
    }
    torch.testing.assert_close(model(**other).loss, model(**batch).loss, rtol=1e-5, atol=1e-6)


def test_the_accuracy_counts_tokens_whose_own_sentence_is_nearest(checkpoint, batch_of):
    model = build(checkpoint("bert", 0.0), token_information_sentence="h")
    batch = batch_of(model)
    for convolution in model.objectives["token_information"].convolutions:
        convolution.weight.data.zero_()
        convolution.bias.data.zero_()
    output = model(**batch)
    tokens = batch["attention_mask"][:, 0].sum(1)
    assert output.loss_dict["token_information"].item() == pytest.approx(0, abs=1e-6)  # every product is 0
    expected = tokens[0].item() / tokens.sum().item()  # the first sentence wins a tie
    assert output.metrics["token_information_accuracy"].item() == pytest.approx(expected)


def test_every_weight_trains_and_the_pooled_state_in_the_other_form(checkpoint, batch_of, tmp_path, tokenizer_of):
    for sentence in ("tokens", "h"):
        model = build(checkpoint("bert"), token_information_sentence=sentence).train()
        assert model.auxiliaries()[0].reads_vectors == (sentence == "h")
        model(**batch_of(model)).loss.backward()
        trained = [*model.objectives.named_parameters(), *model.backbone.named_parameters()]
        assert [n for n, p in trained if p.grad is None or (p.grad.abs().max() == 0 and "position" not in n)] == []
    model.save_pretrained(tmp_path / "training")
    again = CSEModel.from_pretrained(tmp_path / "training")
    batch = batch_of(model)
    assert torch.equal(again(**batch).loss, model.eval()(**batch).loss)
    folder = model.export(tmp_path / "export", tokenizer_of("bert"))
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        assert [name for name in weights.keys() if "convolution" in name] == []  # noqa: SIM118


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kernels": "1+4"}, r"token_information_kernels must be odd numbers joined by '\+', got '1\+4'"),
        ({"kernels": ""}, r"token_information_kernels must be odd numbers joined by '\+', got ''"),
        ({"channels": 0}, "token_information_channels must be a number of at least 1, got 0"),
        ({"activation": "gelu"}, "token_information_activation must be one of 'none', 'relu', got 'gelu'"),
        ({"sentence": "z"}, "token_information_sentence must be one of 'tokens', 'h', got 'z'"),
        (
            {"sentence": "h", "channels": 5},
            "token_information_channels times the number of kernels must be the hidden size, 16, .* got 5 times 2",
        ),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        build(checkpoint("bert"), **{f"token_information_{name}": value for name, value in fields.items()})
