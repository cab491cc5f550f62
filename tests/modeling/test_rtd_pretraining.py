"""Replaced-token pre-training against the paper's formulas as loops over float64, and through every family."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, GPT2Config, GPT2Model

from csekit.modeling import DiffCSEModel, InfoCSEForPreTraining, RTDForPreTraining, RTDPretrainingConfig
from csekit.trainers.objective_warmup import load_objectives, save_objectives

B, L, V = 3, 9, 97


@pytest.fixture
def batch(masked_batch):
    """All but a row's first token are scored."""

    def make(pad=0):
        masked, scored = masked_batch(B, L, pad, first=False)
        return {**masked, "scored_positions": scored}

    return make


@pytest.fixture
def model_of(checkpoint, disturb):
    """A model with noise on every weight that trains: generator and discriminator differ."""

    def make(family="bert", **fields):
        return disturb(RTDForPreTraining.from_backbone(checkpoint(family, dropout=0.0), **fields), seed=5)

    return make


# The loss, in value and gradient


def naive_loss(naive, model, plain, data):
    """The terms one token after the other, and the shares of tokens. ``plain`` is a frozen generator, else None."""
    ids, mask = data["input_ids"], data["attention_mask"]
    chosen = dict(zip(data["masked_positions"].tolist(), data["labels"].tolist(), strict=True))
    if plain is None:
        generator = model.generator
        words, bias = generator.backbone.embeddings.word_embeddings.weight, generator.mlm_head.bias
        states = generator.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = generator.mlm_head.model.cls.predictions.transform(states) @ words.T + bias
    else:
        with torch.no_grad():
            logits = plain(input_ids=ids, attention_mask=mask).logits
    uniform = torch.rand(len(chosen), 1)
    edited, mlm, guessed, replaced = ids.clone(), 0.0, 0, 0
    for m, (place, label) in enumerate(chosen.items()):
        score = logits[place // L, place % L]
        mlm = mlm + naive.token_loss(score[None], torch.tensor([label])) / len(chosen)
        guessed += int(score.argmax() == label)
        cumulative = itertools.accumulate(score.softmax(-1).tolist())
        drawn = sum(share <= uniform[m].item() for share in cumulative)
        edited[place // L, place % L] = drawn
        replaced += drawn != label
    states = model.backbone(input_ids=edited, attention_mask=mask).last_hidden_state
    rtd, hits = 0.0, {0: [], 1: []}
    for place in data["scored_positions"].tolist():
        row, column = divmod(place, L)
        label = int(place in chosen and int(edited[row, column]) != chosen[place])
        scores = model.head.weight @ states[row, column] + model.head.bias
        rtd = rtd - (scores[label].exp() / (scores[0].exp() + scores[1].exp())).log()
        hits[label].append(float((scores[1] > scores[0]).item() == bool(label)))
    terms = {"mlm": mlm} if plain is None else {}
    terms["rtd"] = model.config.discriminator_weight * rtd / len(data["scored_positions"])
    shares = {f"rtd_accuracy_{kind}": sum(hits[i]) / len(hits[i]) for i, kind in enumerate(("kept", "replaced"))}
    shares["replaced"] = replaced / len(chosen)
    return terms, shares | ({"mlm_accuracy": guessed / len(chosen)} if plain is None else {})


@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_is_that_of_the_paper_in_value_and_gradient(checkpoint, model_of, batch, naive, trained):
    model = model_of(train_generator=trained, discriminator_weight=7.0).double()
    twin, data, plain = copy.deepcopy(model), batch(), None
    data["labels"][0] = 23
    if not trained:
        plain = AutoModelForMaskedLM.from_pretrained(checkpoint("bert", dropout=0.0))
    torch.manual_seed(3)
    output = model(**data)
    torch.manual_seed(3)
    terms, shares = naive_loss(naive, twin, plain, data)
    output.loss.backward()
    sum(terms.values()).backward()
    assert output.loss_dict.keys() == terms.keys()
    for name, value in terms.items():
        torch.testing.assert_close(output.loss_dict[name].double(), value.detach(), rtol=1e-6, atol=1e-6, msg=name)
    assert {name: value.item() for name, value in output.metrics.items()} == pytest.approx(shares)
    theirs, moved = dict(twin.named_parameters()), set()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6, msg=name)
        moved |= {name.split(".")[0]} if parameter.grad.abs().max() > 1e-8 else set()
    assert moved == {"backbone", "head"} | ({"generator"} if trained else set())


def test_a_drawn_token_that_is_the_original_counts_as_kept(model_of, batch, monkeypatch):
    """The generator draws what stood there: nothing is replaced."""
    model, data = model_of(), batch()
    monkeypatch.setattr("csekit.modeling.modeling_rtd_pretraining.draw", lambda logits: data["labels"])
    output = model(**data)
    assert output.metrics["replaced"] == 0 and output.counts["rtd_accuracy_replaced"] == 0
    assert output.counts["rtd_accuracy_kept"] == len(data["scored_positions"])


@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_is_the_sum_of_its_terms_and_says_what_each_is_a_mean_of(model_of, batch, trained):
    output = model_of(train_generator=trained)(**batch())
    assert list(output.loss_dict) == (["mlm", "rtd"] if trained else ["rtd"])
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    assert not any(value.requires_grad for value in (*output.loss_dict.values(), *output.metrics.values()))
    assert output.counts.keys() == {*output.loss_dict, *output.metrics}
    S = len(batch()["scored_positions"])
    assert (
        int(output.counts["rtd_accuracy_replaced"] + output.counts["rtd_accuracy_kept"]) == S == output.counts["rtd"]
    )


def test_no_masked_token_leaves_the_discriminator_s_term(model_of, batch):
    model, nothing = model_of().train(), torch.zeros(0, dtype=torch.int64)
    output = model(**{**batch(), "masked_positions": nothing, "labels": nothing})
    output.loss.backward()
    assert output.loss_dict["mlm"] == 0 and output.loss_dict["rtd"] > 0 and output.metrics["replaced"] == 0
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


# Where weights come from, and where they go


def test_both_networks_start_from_checkpoints(checkpoint, encoder_config, tokenizer_of, tmp_path):
    small = AutoModelForMaskedLM.from_config(encoder_config("bert", num_hidden_layers=1))
    small.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    model = RTDForPreTraining.from_backbone(checkpoint("bert"), generator_name_or_path=tmp_path)
    alone = InfoCSEForPreTraining.from_backbone(tmp_path, objective="mlm").state_dict()
    assert alone.keys() == model.generator.state_dict().keys()
    assert all(torch.equal(value, alone[name]) for name, value in model.generator.state_dict().items())
    plain = AutoModel.from_pretrained(checkpoint("bert")).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in model.backbone.state_dict().items())
    assert not model.training
    assert RTDForPreTraining.from_backbone(checkpoint("bert")).config.generator_name_or_path == str(checkpoint("bert"))


def test_a_frozen_generator_is_in_no_checkpoint_and_comes_back(checkpoint, model_of, batch, tmp_path):
    model, data = model_of(train_generator=False), batch()
    assert not [name for name in model.state_dict() if "generator" in name]
    model.save_pretrained(tmp_path)
    again = RTDForPreTraining.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"call load_frozen\(\)"):
        again(**data)
    again.load_frozen()
    losses = []
    for each in (model, again):
        torch.manual_seed(5)
        losses.append(each(**data).loss)
    assert torch.equal(*losses)


def test_families_train_save_reload_export_and_start_diffcse(
    family, checkpoint, batch, encoder_config, tokenizer_of, tmp_path: Path
):
    data = batch(encoder_config(family).pad_token_id)
    model = RTDForPreTraining.from_backbone(checkpoint(family)).train()
    model(**data).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    model.eval()

    model.save_pretrained(tmp_path / "training")
    again = AutoModelForPreTraining.from_pretrained(tmp_path / "training")
    left, right = model.state_dict(), again.state_dict()
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    losses = []
    for each in (model, again):
        torch.manual_seed(5)
        losses.append(each(**data).loss)
    assert torch.equal(*losses)

    state = torch.get_rng_state()
    model.export_checkpoint(tmp_path / "rtd", tokenizer_of(family))
    assert torch.equal(state, torch.get_rng_state())
    plain, info = AutoModel.from_pretrained(tmp_path / "rtd", output_loading_info=True)
    assert not info["missing_keys"] and AutoTokenizer.from_pretrained(tmp_path / "rtd").mask_token_id == 4
    trained = model.backbone.state_dict()
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in trained.items())

    save_objectives(model.objective_weights(), tmp_path / "rtd" / "objectives", {})
    start = DiffCSEModel.from_backbone(checkpoint(family))
    before = {name: value.clone() for name, value in start.state_dict().items()}
    load_objectives(start, tmp_path / "rtd")
    rtd = start.objectives["rtd"]
    assert all(torch.equal(value, trained[name]) for name, value in rtd.discriminator.model.state_dict().items())
    assert torch.equal(rtd.head.weight, model.head.weight) and torch.equal(rtd.head.bias, model.head.bias)
    changed = {name for name, value in start.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all(
        name.startswith(("objectives.rtd.discriminator.model.", "objectives.rtd.head.")) for name in changed
    )


def test_a_discriminator_of_another_width_starts_another_encoder_s_diffcse(
    checkpoint, encoder_config, tokenizer_of, tmp_path, caplog
):
    """Its map from the sentence's vector stays new, with a warning."""
    wide = AutoModelForMaskedLM.from_config(encoder_config("bert", hidden_size=24))
    wide.save_pretrained(tmp_path / "wide")
    tokenizer_of("bert").save_pretrained(tmp_path / "wide")
    model = RTDForPreTraining.from_backbone(tmp_path / "wide", train_generator=False)
    model.export_checkpoint(tmp_path / "rtd", tokenizer_of("bert"))
    save_objectives(model.objective_weights(), tmp_path / "rtd" / "objectives", {})
    start = DiffCSEModel.from_backbone(checkpoint("bert"), discriminator=str(tmp_path / "rtd"))
    before = start.objectives["rtd"].discriminator.condition.weight.clone()
    load_objectives(start, tmp_path / "rtd")
    assert torch.equal(start.objectives["rtd"].head.weight, model.head.weight)
    assert torch.equal(start.objectives["rtd"].discriminator.condition.weight, before)
    assert "rtd.discriminator.condition.weight: these weights start new" in caplog.text


# Refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"discriminator_weight": -1.0}, "discriminator_weight must be a number of at least 0, got -1.0"),
        ({"train_generator": "no"}, "train_generator must be True or False, got 'no'"),
        ({"head_layers": 2}, "RTDPretrainingConfig has no field 'head_layers'"),
    ],
)
def test_errors_name_the_field(checkpoint, fields, message):
    with pytest.raises(ValueError, match=message):
        RTDForPreTraining.from_backbone(checkpoint("bert"), **fields)


def test_a_generator_that_does_not_fit_is_refused(checkpoint, encoder_config, tokenizer_of, tmp_path):
    with pytest.raises(ValueError, match="generator_name_or_path must have the vocabulary of the encoder"):
        RTDForPreTraining.from_backbone(checkpoint("bert"), generator_name_or_path=checkpoint("roberta"))
    GPT2Model(GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path / "headless")
    for name in ("gpt2", "headless"):
        tokenizer_of("bert").save_pretrained(tmp_path / name)
    with pytest.raises(
        ValueError, match=r"must name a masked LM, got .*gpt2': Transformers has none of the family 'gpt2'"
    ):
        RTDForPreTraining.from_backbone(checkpoint("bert"), generator_name_or_path=tmp_path / "gpt2")
    nameless = RTDPretrainingConfig(encoder_config=encoder_config("bert"), train_generator=False)
    with pytest.raises(ValueError, match="generator_name_or_path must name a masked LM, got None"):
        RTDForPreTraining(nameless).load_frozen()


def test_inference_is_refused(model_of):
    with pytest.raises(ValueError, match="AutoModel loads its export"):
        model_of()(torch.ones(1, 3, dtype=torch.int64))
