"""MaskedLM against the family's own ForMaskedLM, logits of all positions, in value and gradient."""

import copy
import logging

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from csekit.modeling import Encode, MaskedLM, MaskedLMConfig, SimCSEConfig, SimCSEModel, Views
from csekit.modeling.masked_lm_head import MaskedLMHead

B, L = 3, 9


def terms(model, batch):
    """The objective alone, in eval mode: no dropout."""
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight)
    return model.objectives["mlm"](views, batch, encode)


def test_equals_the_family_s_own(family, checkpoint, make_batch, add_copies, encoder_config):
    weight = 0.3
    model = SimCSEModel.from_backbone(checkpoint(family), mlm_weight=weight)
    batch = add_copies(make_batch(B, 1, L, pad=encoder_config(family).pad_token_id))
    found, metrics = terms(model, batch)
    found["mlm"].backward()

    plain = AutoModelForMaskedLM.from_pretrained(checkpoint(family)).double().eval()
    ids, mask = batch["mlm_input_ids"], batch["attention_mask"].squeeze(1).repeat(2, 1)
    logits = plain(input_ids=ids, attention_mask=mask).logits
    rows = logits.flatten(0, 1)[batch["mlm_positions"]]
    chosen = [rows[t].log_softmax(-1)[label] for t, label in enumerate(batch["mlm_labels"])]
    expected = -weight * sum(chosen) / len(chosen)
    expected.backward()
    assert len(chosen) > 5
    torch.testing.assert_close(found["mlm"].double(), expected, rtol=1e-5, atol=1e-6)
    assert metrics["mlm_accuracy"].item() == pytest.approx(
        (rows.argmax(-1) == batch["mlm_labels"]).float().mean().item()
    )
    theirs = {name: value.grad for name, value in plain.base_model.named_parameters()}
    compared = 0
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), theirs[name], rtol=1e-3, atol=1e-5, msg=name)
        compared += 1
    heads = {name: value.grad for name, value in plain.named_parameters()}
    for name, parameter in model.objectives["mlm"].head.model.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), heads[name], rtol=1e-3, atol=1e-5, msg=name)
        compared += 1
    bias = model.objectives["mlm"].head.bias
    if bias is not None:
        decoder = plain.get_output_embeddings()
        torch.testing.assert_close(bias.grad.double(), decoder.bias.grad, rtol=1e-3, atol=1e-5)
        compared += 1
    assert compared == sum(1 for name, _ in model.named_parameters() if not name.startswith("projector"))


def test_no_masked_token_gives_zero(family, checkpoint, make_batch, add_copies, encoder_config):
    model = SimCSEModel.from_backbone(checkpoint(family), mlm_weight=0.3).train()
    output = model(**add_copies(make_batch(B, 1, L, pad=encoder_config(family).pad_token_id), share=0.0))
    output.loss.backward()
    assert output.loss_dict["mlm"] == 0 and output.metrics["mlm_accuracy"] == 0
    lacking = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not lacking
    assert all((p.grad == 0).all() for p in model.objectives.parameters())


@pytest.mark.parametrize("views", [1, 2])
def test_views(checkpoint, make_batch, add_copies, views):
    """Copies of the first view alone, or of both; a hard negative is never masked."""
    model = SimCSEModel.from_backbone(checkpoint("bert"), mlm_weight=1.0, mlm_views=views)
    assert model.batch_specs["mlm"].views == views
    batch = add_copies(make_batch(B, 3, L), views=views)
    found, _ = terms(model, batch)
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint("bert")).eval()
    mask = batch["attention_mask"].transpose(0, 1).flatten(0, 1)[: views * B]
    labels = torch.full_like(batch["mlm_input_ids"], -100).flatten()
    labels[batch["mlm_positions"]] = batch["mlm_labels"]
    expected = plain(input_ids=batch["mlm_input_ids"], attention_mask=mask, labels=labels.view(views * B, L)).loss
    torch.testing.assert_close(found["mlm"], expected)


def test_the_contrastive_input_is_not_touched(checkpoint, make_batch, add_copies):
    model = SimCSEModel.from_backbone(checkpoint("bert"), mlm_weight=1.0)
    batch = make_batch(B, 2, L)
    with_copies = model(**add_copies(batch))
    alone = SimCSEModel.from_backbone(checkpoint("bert"))
    alone.projector.load_state_dict(model.projector.state_dict())
    assert with_copies.loss_dict["contrastive"] == alone(**batch).loss_dict["contrastive"]


def test_head_is_copied_from_the_checkpoint(family, checkpoint, caplog):
    with caplog.at_level(logging.WARNING):
        model = SimCSEModel.from_backbone(checkpoint(family), mlm_weight=0.1)
    assert "no masked-LM head" not in caplog.text
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint(family))
    head = model.objectives["mlm"].head
    states = torch.randn(5, 16)
    with torch.no_grad():
        ours = head.logits(states, model.backbone.get_input_embeddings().weight)
        setattr(plain, plain.base_model_prefix, copy.deepcopy(getattr(head.model, plain.base_model_prefix)))
        torch.testing.assert_close(ours, plain(inputs_embeds=states[None]).logits[0])


def test_checkpoint_without_head_warns(family, encoder_config, tmp_path, caplog):
    AutoModel.from_config(encoder_config(family)).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = SimCSEModel.from_backbone(tmp_path, mlm_weight=0.1)
    assert "no masked-LM head" in caplog.text and "starts random" in caplog.text
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_new_head_is_initialised_by_the_seed_alone(family, encoder_config):
    """The head is built without memory and filled later: nothing of that memory may remain."""
    heads = []
    for _ in range(2):
        junk = [torch.full((size,), float("nan")) for size in (8, 16, 97, 128, 256) for _ in range(20)]
        del junk
        torch.manual_seed(5)
        heads.append(
            SimCSEModel(SimCSEConfig(encoder_config=encoder_config(family), mlm_weight=0.1)).objectives["mlm"]
        )
    left, right = (head.state_dict() for head in heads)
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
        if value.dim() == 2:
            assert 0.1 < value.std() < 0.4, name  # initializer_range is 0.2
        elif "bias" in name:
            assert (value == 0).all(), name
        else:
            assert (value == 1).all(), name


def test_an_untied_output_matrix_is_refused(encoder_config, tmp_path):
    config = encoder_config("bert", tie_word_embeddings=False)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not tied to the word embeddings"):
        SimCSEModel.from_backbone(tmp_path, mlm_weight=0.1)


def test_a_vocabulary_as_large_as_the_hidden_size(encoder_config):
    """The output bias is found by identity or name, not by a length that a norm may share."""
    config = encoder_config("bert", vocab_size=16)
    with torch.no_grad():
        head = MaskedLMHead(config)
        plain = AutoModelForMaskedLM.from_config(config)
    assert {name for name, _ in head.model.named_parameters()} == {
        name for name, _ in plain.named_parameters() if "transform" in name
    }


def test_no_bias_where_the_family_has_none(encoder_config):
    assert MaskedLMHead(encoder_config("modernbert", decoder_bias=False)).bias is None
    assert MaskedLMHead(encoder_config("bert")).bias.shape == (97,)


def test_forward_reads_only_its_own_copies(encoder_config, make_batch):
    objective = MaskedLM(MaskedLMConfig(), encoder_config("bert"))
    h = torch.zeros(2, B, 16)
    ids = torch.zeros(2 * B, L, dtype=torch.int64)
    views = Views(h=h, z=h, input_ids=ids, attention_mask=ids)
    with pytest.raises(KeyError, match="mlm_input_ids"):
        objective(views, {}, Encode(lambda **_: None, torch.zeros(97, 16)))


def test_an_untied_head_trains_a_copy_of_the_output_matrix(checkpoint, make_batch, add_copies, tmp_path):
    """It starts from the checkpoint's matrix; the word embeddings get no gradient from it."""
    batch = add_copies(make_batch(B, 1, L))
    tied, untied = (
        SimCSEModel.from_backbone(checkpoint("bert", 0.0), mlm_weight=1.0, tied=on) for on in (True, False)
    )
    words = untied.backbone.get_input_embeddings().weight
    matrix = untied.objectives["mlm"].head.decoder.weight
    assert torch.equal(matrix, words)
    losses = {}
    for name, model in (("tied", tied), ("untied", untied)):
        found, _ = terms(model, batch)
        found["mlm"].backward()
        losses[name] = found["mlm"].detach()
    assert torch.equal(losses["tied"], losses["untied"])
    summed = tied.backbone.get_input_embeddings().weight.grad
    torch.testing.assert_close(words.grad + matrix.grad, summed, rtol=1e-4, atol=1e-6)
    unread = sorted(set(range(97)) - set(batch["mlm_input_ids"].flatten().tolist()))
    assert unread
    assert (words.grad[unread] == 0).all()
    assert (matrix.grad[unread] != 0).any()

    matrix.data.add_(1.0)
    untied.save_pretrained(tmp_path)
    again = SimCSEModel.from_pretrained(tmp_path)
    assert again.config.mlm_tied is False
    assert torch.equal(again.objectives["mlm"].head.decoder.weight, matrix)
    assert torch.equal(again.backbone.get_input_embeddings().weight, words)
