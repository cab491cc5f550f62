"""Stage 1 of InfoCSE against its formulas written as loops over float64, and through every family."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from csekit.modeling import InfoCSEForPreTraining, InfoCSEPretrainingConfig
from csekit.modeling.auxiliary_head import FOLDER
from csekit.modeling.backbone import layer_list

REFUSED = ("modernbert", "albert")  # a norm behind the last layer; one layer shared by all
B, L, V = 3, 9, 97


@pytest.fixture
def batch(masked_batch):
    return lambda pad=0: masked_batch(B, L, pad)[0]


@pytest.fixture
def model_of(checkpoint, disturb):
    """A model with noise on every weight: no head equals the layers it was copied from."""

    def make(family="bert", **fields):
        return disturb(InfoCSEForPreTraining.from_backbone(checkpoint(family, dropout=0.0), **fields), seed=5)

    return make


def token_loss(naive, states, head, words, bias, batch):
    """Full logits over all positions, one token after the other; the mean over those that are masked."""
    total, count = states.new_zeros(()), 0
    chosen = dict(zip(batch["masked_positions"].tolist(), batch["labels"].tolist(), strict=True))
    for row in range(states.shape[0]):
        logits = torch.stack([words @ transformed + bias for transformed in head(states[row])])
        for place in range(states.shape[1]):
            label = chosen.get(row * states.shape[1] + place)
            if label is not None:
                total, count = total + naive.token_loss(logits[place : place + 1], torch.tensor([label])), count + 1
    return total / count


# The two losses, in value and gradient


def test_the_losses_are_those_of_the_paper_in_value_and_gradient(model_of, batch, naive):
    """BERT, float64, layer by layer: h^N, h^k, [h^N_CLS; h^k_1..], two more layers, one output matrix."""
    model = model_of(head_layers=2, split_layer=1).double()
    data = batch()
    output = model(**data)
    output.loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()

    bert, transform = model.backbone, model.mlm_head.model.cls.predictions.transform
    words, bias = bert.embeddings.word_embeddings.weight, model.mlm_head.bias
    hidden = bert.embeddings(input_ids=data["input_ids"])
    keep = data["attention_mask"][:, None, None, :].bool()
    states = [hidden]
    for layer in bert.encoder.layer:
        states.append(layer(states[-1], keep))
    last, lower = states[-1], states[1]
    rows = []
    for row in range(B):
        rows.append(torch.stack([last[row][0], *(lower[row][place] for place in range(1, L))]))
    mixed = torch.stack(rows)
    for layer in model.auxiliary_head.layers:
        mixed = layer(mixed, keep)
    late = token_loss(naive, last, transform, words, bias, data)
    early = token_loss(naive, mixed, transform, words, bias, data)
    (late + early).backward()

    torch.testing.assert_close(output.loss_dict["mlm"].double(), late.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(output.loss_dict["aux_mlm"].double(), early.detach(), rtol=1e-6, atol=1e-6)
    compared = 0
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
        compared += parameter.grad.abs().max() > 1e-8
    assert compared > 60


def test_the_loss_is_the_sum_of_its_terms(model_of, batch):
    output = model_of()(**batch())
    assert list(output.loss_dict) == ["mlm", "aux_mlm"]
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    assert not any(value.requires_grad for value in (*output.loss_dict.values(), *output.metrics.values()))
    assert set(output.metrics) == {"mlm_accuracy", "aux_mlm_accuracy"}


def states_of(model, data):
    """The states of the masked positions that each term predicts from."""
    return model.states(data["input_ids"], data["attention_mask"], data["masked_positions"])


def predictions(model, states):
    """The logits of states."""
    return model.mlm_head.logits(states, model.backbone.get_input_embeddings().weight)


def test_the_accuracies_are_shares_of_masked_tokens(model_of, batch):
    model, data = model_of(), batch()
    states = states_of(model, data)
    metrics = model(**data).metrics
    for name in ("mlm", "aux_mlm"):
        best = predictions(model, states[name]).argmax(-1)
        assert metrics[f"{name}_accuracy"].item() == pytest.approx((best == data["labels"]).double().mean().item())


def test_the_head_reads_cls_of_the_last_layer_and_the_rest_of_layer_k(model_of, batch):
    """∂ aux/∂h: through layers above k the gradient arrives by [CLS] alone, below k by every position."""
    model, data = model_of(split_layer=1), batch()
    kept = {}
    layer_list(model.backbone)[1].register_forward_hook(lambda module, inputs, output: kept.update(last=output))
    states = states_of(model, data)["aux_mlm"]
    kept["last"].retain_grad()
    states.square().sum().backward()
    gradient = kept["last"].grad
    wanted = B + len(data["masked_positions"])  # no other state of the last layer is made but copies
    assert gradient.shape[:2] == (1, 1 << (wanted - 1).bit_length())
    rows = (data["masked_positions"] // L).unique()
    assert (gradient[0, rows].abs().sum(-1) > 0).all() and (gradient[0, B:] == 0).all()


def test_one_output_matrix_shared_and_tied(model_of, batch):
    model = model_of()
    words = model.backbone.get_input_embeddings().weight
    assert sum(parameter.shape == words.shape for parameter in model.parameters()) == 1
    assert sum(tuple(value.shape) == tuple(words.shape) for value in model.state_dict().values()) == 1
    data = batch()
    absent = next(i for i in range(5, V) if i not in data["input_ids"])
    for term in ("mlm", "aux_mlm"):
        model.zero_grad()
        states = states_of(model, data)[term]
        logits = predictions(model, states)
        torch.nn.functional.cross_entropy(logits, data["labels"]).backward()
        assert words.grad[absent].abs().sum() > 0  # as output row: it was never an input


def test_mlm_has_no_auxiliary_head(model_of, batch):
    model, data = model_of(objective="mlm"), batch()
    assert model.auxiliary_head is None and not [name for name in model.state_dict() if "auxiliary" in name]
    output = model(**data)
    assert list(output.loss_dict) == ["mlm"] and output.loss == output.loss_dict["mlm"]


def test_no_masked_token_gives_zero(model_of, batch):
    model = model_of().train()
    nothing = torch.zeros(0, dtype=torch.int64)
    output = model(**{**batch(), "masked_positions": nothing, "labels": nothing})
    output.loss.backward()
    assert output.loss == 0 and output.metrics["mlm_accuracy"] == 0
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


# Where weights come from


def test_weights_start_from_the_checkpoint(checkpoint):
    model = InfoCSEForPreTraining.from_backbone(checkpoint("bert"), head_layers=1)
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint("bert"))
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, plain.base_model.state_dict()[name]), name
    for name, value in model.mlm_head.model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    assert torch.equal(model.mlm_head.bias, plain.get_output_embeddings().bias)
    top = model.backbone.encoder.layer[-1].state_dict()
    (head,) = model.auxiliary_head.layers
    assert all(torch.equal(value, top[name]) for name, value in head.state_dict().items())
    assert not model.training


def test_a_new_head_on_request(checkpoint, tmp_path):
    """As Condenser's; the masked-LM head still comes from the checkpoint."""
    model = InfoCSEForPreTraining.from_backbone(checkpoint("bert"), head_init="new")
    top = InfoCSEForPreTraining.from_backbone(checkpoint("bert"))
    for name, value in model.auxiliary_head.named_parameters():
        if value.dim() == 2:
            assert not torch.equal(value, top.auxiliary_head.get_parameter(name)), name
            assert 0.15 < value.std() < 0.25, name  # initializer_range is 0.2
    for name, value in model.mlm_head.named_parameters():
        assert torch.equal(value, top.mlm_head.get_parameter(name)), name
    model.save_pretrained(tmp_path)
    again = InfoCSEForPreTraining.from_pretrained(tmp_path)
    assert again.config.head_init == "new"
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_relative_positions_come_with_the_layers(checkpoint):
    model = InfoCSEForPreTraining.from_backbone(checkpoint("deberta-v2"))
    theirs, own = model.backbone.state_dict(), model.auxiliary_head.model.state_dict()
    assert any("rel_embeddings" in name for name in own)
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())


@pytest.mark.parametrize(
    ("layers", "given", "expected"),
    [(1, None, 1), (2, None, 1), (7, None, 3), (12, None, 6), (24, None, 6), (4, 4, 4)],
)
def test_the_default_layer_k(encoder_config, layers, given, expected):
    config = InfoCSEPretrainingConfig(
        encoder_config=encoder_config("bert", num_hidden_layers=layers), split_layer=given
    )
    assert config.split_layer == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective": "rtd"}, "objective must be one of 'condenser', 'mlm', got 'rtd'"),
        ({"head_layers": 0}, "head_layers must be at least 1, got 0"),
        ({"split_layer": 3}, r"split_layer must be one of the encoder's layers 1\.\.2, got 3"),
        ({"head_init": "random"}, "head_init must be one of 'top_layers', 'new', got 'random'"),
        ({"head_layers": 3}, "a head of 3 layers cannot start from the 2 of the encoder"),
        ({"layers": 2}, "InfoCSEPretrainingConfig has no field 'layers'"),
    ],
)
def test_errors_name_the_field(checkpoint, fields, message):
    with pytest.raises(ValueError, match=message):
        InfoCSEForPreTraining.from_backbone(checkpoint("bert"), **fields)


def test_a_training_checkpoint_is_no_backbone(model_of, tmp_path):
    model_of().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="reload it with from_pretrained"):
        InfoCSEForPreTraining.from_backbone(tmp_path)
    assert isinstance(AutoModelForPreTraining.from_pretrained(tmp_path), InfoCSEForPreTraining)


def test_inference_is_refused(model_of):
    with pytest.raises(ValueError, match="AutoModel loads its export"):
        model_of()(torch.ones(1, 3, dtype=torch.int64))


# Every family


@pytest.mark.parametrize("objective", ["condenser", "mlm"])
def test_families_train_save_reload_and_export(
    family, objective, checkpoint, batch, encoder_config, tokenizer_of, tmp_path: Path
):
    if family in REFUSED and objective == "condenser":
        with pytest.raises(ValueError, match="an auxiliary head is not possible; objective 'mlm' trains every family"):
            InfoCSEForPreTraining.from_backbone(checkpoint(family), objective=objective)
        return
    data = batch(encoder_config(family).pad_token_id)
    model = InfoCSEForPreTraining.from_backbone(checkpoint(family), objective=objective).train()
    model(**data).loss.backward()
    lacking = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not lacking
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.eval()

    model.save_pretrained(tmp_path / "training")
    again = InfoCSEForPreTraining.from_pretrained(tmp_path / "training")
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert torch.equal(model(**data).loss, again(**data).loss)

    model.export_checkpoint(tmp_path / "stage1", tokenizer_of(family))
    encoder = AutoModel.from_pretrained(tmp_path / "stage1")
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path / "stage1")
    loaded = encoder.state_dict()
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, loaded[name]) and torch.equal(value, plain.base_model.state_dict()[name]), name
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    with torch.no_grad():
        states = states_of(model, data)["mlm"]
        expected = predictions(model, states)
        logits = plain(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits
    torch.testing.assert_close(logits.flatten(0, 1)[data["masked_positions"]], expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "stage1").mask_token_id == 4
    assert (tmp_path / "stage1" / FOLDER).is_dir() == (objective == "condenser")


def test_a_stage_1_folder_gives_its_head_back(model_of, tokenizer_of, tmp_path):
    model = model_of()
    model.export_checkpoint(tmp_path, tokenizer_of("bert"))
    again = InfoCSEForPreTraining.from_backbone(tmp_path)
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    saved = load_file(tmp_path / FOLDER / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in model.auxiliary_head.model.state_dict().items())
    model_of(objective="mlm").export_checkpoint(tmp_path, tokenizer_of("bert"))
    assert not (tmp_path / FOLDER).exists()  # the earlier head does not belong to these weights


def test_export_draws_no_random_number(model_of, tokenizer_of, tmp_path):
    model = model_of()
    state = torch.get_rng_state()
    model.export_checkpoint(tmp_path, tokenizer_of("bert"))
    assert torch.equal(state, torch.get_rng_state())


def test_an_untied_checkpoint_of_equal_matrices_is_exported_tied(encoder_config, tokenizer_of, tmp_path):
    plain = AutoModelForMaskedLM.from_config(encoder_config("bert", tie_word_embeddings=False))
    plain.get_output_embeddings().weight.data.copy_(plain.get_input_embeddings().weight.data)
    plain.save_pretrained(tmp_path / "untied")
    model = InfoCSEForPreTraining.from_backbone(tmp_path / "untied")
    model.backbone.get_input_embeddings().weight.data.add_(0.1)
    model.export_checkpoint(tmp_path / "tied", tokenizer_of("bert"))
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "tied")
    assert torch.equal(loaded.get_output_embeddings().weight, model.backbone.get_input_embeddings().weight)


def test_new_weights_are_fixed_by_the_seed(encoder_config):
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(
            InfoCSEForPreTraining(InfoCSEPretrainingConfig(encoder_config=encoder_config("bert"))).state_dict()
        )
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    head = states[0]["auxiliary_head.model.encoder.layer.0.intermediate.dense.weight"]
    assert 0.1 < head.std() < 0.4  # initializer_range is 0.2
