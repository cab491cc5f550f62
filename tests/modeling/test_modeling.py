"""The model: shapes, the whole loss against loops in float64, what trains, what is saved."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import csekit.modeling.modeling_cse as modeling_cse
from csekit.modeling import (
    CSEModel,
    InforMinModel,
    SimCSEConfig,
    SimCSEModel,
)

B, L, H = 4, 9, 16


@pytest.fixture
def informin(encoder_config):
    """``informin(dropout=0.1, **fields)``: InforMin-CL with MLM over a tiny BERT."""

    def build(dropout: float = 0.1, kind: type = InforMinModel, **fields: Any) -> CSEModel:
        fields = {"mlm_weight": 0.1, **fields} if kind is InforMinModel else fields
        return kind(kind.config_class(encoder_config=encoder_config("bert", dropout), **fields)).train()

    return build


# Inference


def test_inference_shapes(informin, make_batch):
    model = informin().eval()
    output = model(**make_batch(B, 0, L))
    assert output.sentence_embedding.shape == (B, H) and output.last_hidden_state.shape == (B, L, H)
    assert torch.equal(output.sentence_embedding, output.last_hidden_state[:, 0])
    ids = make_batch(B, 0, L)["input_ids"]
    torch.testing.assert_close(model(ids), model(ids, torch.ones_like(ids)))


def test_projector_at_inference(informin, make_batch):
    model = informin(projector_at_inference=True).eval()
    output = model(**make_batch(B, 0, L))
    assert torch.equal(output.sentence_embedding, model.projector(output.last_hidden_state[:, 0]))


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last_mean", "top2_mean"])
def test_amount_of_padding_does_not_matter(informin, make_batch, naive, disturb, pooling):
    model = disturb(informin(pooling=pooling)).eval()
    batch = make_batch(B, 0, L)
    embeddings = model(**batch).sentence_embedding
    wider = {name: nn.functional.pad(value, (0, 5)) for name, value in batch.items()}
    torch.testing.assert_close(model(**wider).sentence_embedding, embeddings, rtol=1e-4, atol=1e-5)
    for ids, mask, embedding in zip(*batch.values(), embeddings, strict=True):
        states = model.backbone(input_ids=ids[None, : mask.sum()], output_hidden_states=True).hidden_states
        expected = naive.pool(pooling, tuple(state[0] for state in states))
        torch.testing.assert_close(embedding, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_left_padding_where_positions_follow_the_tokens(encoder_config, make_batch, pooling):
    """RoBERTa counts its positions from the first real token: there the side of the padding must not matter."""
    config = SimCSEConfig(encoder_config=encoder_config("roberta"), pooling=pooling)
    model, batch = SimCSEModel(config).eval(), make_batch(B, 0, L, pad=1)
    left = {name: value.clone() for name, value in batch.items()}
    for row, n in enumerate(batch["attention_mask"].sum(1).tolist()):
        left = {name: value.index_put((torch.tensor(row),), value[row].roll(L - n)) for name, value in left.items()}
    assert not torch.equal(left["input_ids"], batch["input_ids"])
    torch.testing.assert_close(model(**left).sentence_embedding, model(**batch).sentence_embedding)


def test_mask_pooling_from_backbone(checkpoint, tokenizer_of):
    template = '"{sentence}" means {mask}.'.replace('"', ' " ').replace(".", " . ")
    model = SimCSEModel.from_backbone(checkpoint("bert"), pooling="mask", prompt_template=template).eval()
    assert model.config.prompt_mask_offset == -3
    tokenizer = tokenizer_of("bert")
    texts = [template.format(sentence=s, mask="[MASK]") for s in ("w1 w2 [MASK] w3", "w1")]  # a mask in the text too
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    output = model(**batch)
    for row in range(2):
        last = batch["attention_mask"][row].sum() - 3
        assert batch["input_ids"][row, last] == tokenizer.mask_token_id
        assert torch.equal(output.sentence_embedding[row], output.last_hidden_state[row, last])


# Training


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_training_output(informin, make_batch, add_copies, columns):
    output = informin()(**add_copies(make_batch(B, columns, L)), return_loss=True)
    assert list(output.loss_dict) == ["contrastive", "reconstruction", "mlm"]
    torch.testing.assert_close(output.loss.detach(), sum(output.loss_dict.values()), rtol=1e-7, atol=0)
    assert output.sentence_embedding.shape == (max(columns, 2), B, H)
    detached = [*output.loss_dict.values(), *output.metrics.values(), output.sentence_embedding]
    assert output.loss.requires_grad and not any(value.requires_grad for value in detached)
    assert {value.dim() for value in [*output.loss_dict.values(), *output.metrics.values()]} == {0}
    expected = {"positive_cosine", "negative_cosine", "alignment", "uniformity", "identical_texts", "mlm_accuracy"}
    assert output.metrics.keys() == expected


def test_one_row(informin, make_batch, add_copies):
    output = informin()(**add_copies(make_batch(1, 1, L)))
    output.loss.backward()
    assert output.loss_dict["contrastive"] == 0 and all(m.isfinite() for m in output.metrics.values())


def test_a_single_column_is_two_dropout_views_of_the_same_ids(informin, make_batch):
    batch = make_batch(B, 1, L)
    views = informin().encode_views(**{f"{name}_BCL": value for name, value in batch.items()})
    assert torch.equal(views.input_ids, batch["input_ids"].squeeze(1).repeat(2, 1))
    assert not torch.allclose(views.h[0], views.h[1])
    views = informin(dropout=0.0).encode_views(batch["input_ids"], batch["attention_mask"])
    assert torch.equal(views.h[0], views.h[1])


def test_views_are_the_columns(informin, make_batch):
    model, batch = informin(dropout=0.0, projector="linear"), make_batch(B, 3, L)
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    for column in range(3):
        one = model(batch["input_ids"][:, column], batch["attention_mask"][:, column]).sentence_embedding
        torch.testing.assert_close(views.h[column], one)
        torch.testing.assert_close(views.z[column], model.projector(one))


def naive_projection(model: CSEModel, h: Tensor) -> Tensor:
    """All views together: (V·B, H) → (V·B, H), batch statistics by hand."""
    if model.config.projector != "batchnorm":
        return model.projector(h)
    first, norm, _, second, _ = model.projector
    for linear, weight, bias in ((first, norm.weight, norm.bias), (second, None, None)):
        h = h @ linear.weight.T
        mean = sum(h) / len(h)
        variance = sum((row - mean) ** 2 for row in h) / len(h)
        h = torch.stack([(row - mean) / (variance + 1e-5).sqrt() for row in h])
        if weight is not None:
            h = (h * weight + bias).clamp_min(0)
    return h


def naive_loss(model: CSEModel, batch: dict[str, Tensor], naive: SimpleNamespace) -> Tensor:
    """The paper's loss, a sentence at a time and without padding."""
    config, rows = model.config, len(batch["input_ids"])
    h = []
    for column in range(batch["input_ids"].shape[1]):
        for ids, mask in zip(batch["input_ids"][:, column], batch["attention_mask"][:, column], strict=True):
            states = model.backbone(input_ids=ids[None, : mask.sum()], output_hidden_states=True).hidden_states
            h.append(naive.pool(config.pooling, tuple(state[0] for state in states)))
    z = naive_projection(model, torch.stack(h))
    z1, z2, negatives = z[:rows], z[rows : 2 * rows], z[2 * rows :]
    bonus = {(i, rows + i): config.hard_negative_weight for i in range(rows)}
    loss = naive.info_nce(z1, torch.cat([z2, negatives]), config.temperature, bonus=bonus)
    if config.symmetric:
        loss = (loss + naive.info_nce(z2, z1, config.temperature)) / 2
    scale = {"squared_norm": 1.0, "mse": 2 / H}[config.reconstruction]
    return loss + config.reconstruction_weight * scale * naive.squared_norm(z1, z2)


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (2, {}),
        (2, {"symmetric": True, "reconstruction": "mse", "reconstruction_weight": 4.0, "projector": "linear"}),
        (2, {"projector": "batchnorm", "pooling": "mean", "temperature": 0.2}),
        (3, {"hard_negative_weight": 0.7, "pooling": "first_last_mean", "projector": "none"}),
        (3, {"projector": "batchnorm", "symmetric": True, "pooling": "top2_mean"}),
    ],
)
def test_whole_loss_and_gradients_equal_the_loops(informin, make_batch, naive, disturb, columns, fields):
    model = disturb(informin(dropout=0.0, **{"mlm_weight": 0.0, "objectives": ["reconstruction"], **fields}))
    del model.objectives["mlm"]
    batch = make_batch(B, columns, L)
    reference = copy.deepcopy(model).double()
    expected = naive_loss(reference, batch, naive)
    expected.backward()
    output = model(**batch)
    output.loss.backward()
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-5)
    theirs = {name: parameter.grad for name, parameter in reference.named_parameters()}
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    for name, parameter in model.named_parameters():
        atol = 1e-4 * max(theirs[name].abs().max().item(), 0.1 * largest)
        torch.testing.assert_close(parameter.grad.double(), theirs[name], rtol=1e-3, atol=atol, msg=name)


def test_every_trainable_parameter_moves(informin, make_batch, add_copies):
    model = informin(projector="batchnorm")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimiser.zero_grad()
        model(**add_copies(make_batch(B, 1, L, seed=step), seed=step)).loss.backward()
        assert all(value.grad is not None for value in model.parameters())
        optimiser.step()
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert not still


def test_forward_never_waits_for_the_device(informin, make_batch, add_copies, host_waits):
    """The model's own code reads no number from a tensor (each would stall a GPU)."""
    model = informin(projector="batchnorm", mask_identical=True, symmetric=True)
    batch = add_copies(make_batch(B, 3, L))
    with host_waits() as waits:
        model(**batch).loss.backward()
    assert waits.ours == []


def test_bf16_autocast_keeps_the_contrast_in_fp32(informin, make_batch, add_copies, monkeypatch):
    seen = []
    real = modeling_cse.cosine_logits
    monkeypatch.setattr(modeling_cse, "cosine_logits", lambda *args: seen.append(real(*args)) or seen[-1])
    model, batch = informin(dropout=0.0, projector="batchnorm"), add_copies(make_batch(B, 2, L))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch)
    output.loss.backward()
    assert seen[0].dtype == torch.float32
    assert {value.dtype for value in (output.loss, *output.loss_dict.values())} == {torch.float32}
    exact = model(**batch)
    assert output.loss.item() == pytest.approx(exact.loss.item(), rel=0.2)
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


def test_gradient_checkpointing_changes_nothing(informin, make_batch, add_copies, whole_layers):
    model, batch = informin(), add_copies(make_batch(B, 1, L))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(  # the name of the lowest supported version
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        torch.manual_seed(3)
        model.zero_grad()
        model(**batch).loss.backward()
        gradients.append({name: value.grad.clone() for name, value in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


# Identical texts


def repeated(make_batch, columns: int) -> dict[str, Tensor]:
    """A batch whose rows 0 and 2 hold the same text, with id 0 among its tokens and different padding."""
    batch = make_batch(B, columns, L)
    batch["input_ids"][[0, 2]], batch["attention_mask"][[0, 2]] = 0, 0
    text = torch.tensor([1, 30, 0, 31, 0])
    batch["input_ids"][:3:2, :, :5], batch["attention_mask"][:3:2, :, :5] = text, 1
    batch["input_ids"][2, :, 5:] = 7  # padding may hold anything
    return batch


@pytest.mark.parametrize("side", ["right", "left"])
def test_identical_texts_are_counted(informin, make_batch, side):
    model, batch = informin(kind=SimCSEModel), repeated(make_batch, 1)
    if side == "left":
        batch = {name: value.index_put((torch.tensor(2),), value[2].roll(4, -1)) for name, value in batch.items()}
    assert model(**batch).metrics["identical_texts"] == 2
    assert model(**make_batch(B, 1, L)).metrics["identical_texts"] == 0
    batch["attention_mask"][2, :, -5:] = torch.tensor([1, 1, 1, 1, 0] if side == "right" else [0, 1, 1, 1, 1])
    assert model(**batch).metrics["identical_texts"] == 0


@pytest.mark.parametrize("symmetric", [False, True])
def test_identical_texts_leave_the_denominator(informin, make_batch, naive, symmetric):
    fields = {"kind": SimCSEModel, "dropout": 0.0, "projector": "none", "symmetric": symmetric}
    batch = repeated(make_batch, 2)
    model = informin(**fields)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    for masked, excluded in ((False, set()), (True, {(0, 2), (2, 0)})):
        model.config.mask_identical = masked
        expected = naive.info_nce(z[0], z[1], 0.05, excluded=excluded)
        if symmetric:
            expected = (expected + naive.info_nce(z[1], z[0], 0.05, excluded=excluded)) / 2
        torch.testing.assert_close(model(**batch).loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_symmetric_masks_by_the_texts_of_the_column(informin, make_batch, naive):
    """Two rows share the query and have positives of their own: backwards, the other query is the row's own text."""
    batch = make_batch(B, 2, L)
    for value in batch.values():
        value[2, 0] = value[0, 0]
    model = informin(kind=SimCSEModel, dropout=0.0, projector="none", symmetric=True, mask_identical=True)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    backwards = naive.info_nce(z[1], z[0], 0.05, excluded={(0, 2), (2, 0)})
    expected = (naive.info_nce(z[0], z[1], 0.05) + backwards) / 2
    torch.testing.assert_close(model(**batch).loss.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_hard_negative_equal_to_the_query_is_masked(informin, make_batch, naive):
    batch = make_batch(B, 3, L)
    for value in batch.values():
        value[1, 2] = value[3, 0]
    model = informin(kind=SimCSEModel, dropout=0.0, projector="none", mask_identical=True)
    output = model(**batch)
    z = model.encode_views(batch["input_ids"], batch["attention_mask"]).z.double()
    expected = naive.info_nce(z[0], torch.cat([z[1], z[2]]), 0.05, excluded={(3, B + 1)})
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-4, atol=1e-5)
    assert output.metrics["identical_texts"] == 1
