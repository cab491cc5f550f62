"""Replaced token detection against the paper's computation, as loops in float64, in value and gradient."""

import copy
import itertools

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from csekit.modeling import DiffCSEConfig, DiffCSEModel, Encode, ReplacedTokenDetectionConfig

B, H = 5, 16
RELEASED = {"edit_scope": "all", "edit_sampling": "argmax", "generator_dropout": True, "rtd_positions": "all"}
OPERATIONS = ["replace", "insert", "delete", "all"]


def edited_copy(objective, batch):
    """Its edited copies with their mask, and where they differ from the originals."""
    copied = objective.edited_copy(batch, Encode(None, None))
    return copied.ids, copied.mask, copied.changed


def term(model, batch):
    """The objective alone."""
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight, model.project, 0.05)
    (objective,) = model.objectives.values()
    return objective(views, batch, encode)


def naive_edit(plain, batch, config, dropout):
    """The copies edited with the logits of every position, one place after the other."""
    ids, mask = batch["rtd_input_ids"], batch["rtd_attention_mask"]
    with torch.no_grad():
        logits = plain.train(dropout)(input_ids=ids, attention_mask=mask).logits
    places = batch["rtd_positions"] if config.edit_scope == "masked" else batch["rtd_own"]
    uniform = torch.rand(len(places), 1) if config.edit_sampling == "sample" else None
    edited = ids.clone()
    for m, place in enumerate(places.tolist()):
        row, column = divmod(place, ids.shape[1])
        score = logits[row, column]
        cumulative = itertools.accumulate(score.softmax(-1).tolist())
        edited[row, column] = (
            score.argmax() if uniform is None else sum(share <= uniform[m].item() for share in cumulative)
        )
    return edited, mask


def naive_rtd(naive, model, plain, batch, dropout=False):
    """λ · mean over tokens of −log D(was it replaced? | x″, vector), and the accuracies."""
    objective, config = model.objectives["rtd"], model.objectives["rtd"].config
    columns = [
        model.backbone(input_ids=batch["input_ids"][:, c], attention_mask=batch["attention_mask"][:, c])
        for c in range(2)
    ]
    h = torch.cat([column.last_hidden_state[:, 0] for column in columns])
    vectors = model.projector(h) if config.condition == "z" else h
    edited, mask = naive_edit(plain, batch, config, dropout)
    total, count, hits = 0.0, 0, {0: [], 1: []}
    for row in range(len(edited)):
        states = naive.conditioned(objective.discriminator.model, edited[row], mask[row], vectors[row])
        for place in range(edited.shape[1]):
            counted = config.rtd_positions == "all" or row * edited.shape[1] + place in batch["rtd_scored"]
            if not counted:
                continue
            label = int(edited[row, place] != batch["rtd_originals"][row, place])
            scores = objective.head.weight @ states[place] + objective.head.bias
            total = total - (scores[label].exp() / (scores[0].exp() + scores[1].exp())).log()
            hits[label].append(float((scores[1] > scores[0]).item() == bool(label)))
            count += 1
    return config.weight * total / count, {label: sum(each) / max(len(each), 1) for label, each in hits.items()}


def exact(model):
    """Float64, no dropout but that of the generator, batch statistics of the batch."""
    model.double().eval()
    model.projector.train()
    model.objectives["rtd"].training = True
    return model


SETTINGS = {
    "default": {},
    "released": RELEASED,
    "h": {"condition": "h", "projector": "tanh"},
    "insert": {"edit_operation": "insert"},
    "delete": {"edit_operation": "delete", "probability": 0.4},
    "all": {"edit_operation": "all", "probability": 0.6},
    "argmax": {"edit_sampling": "argmax"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_against_the_paper_s_computation(checkpoint, batch_of, naive, setting, request):
    fields = {"rtd_weight": 0.7, **SETTINGS[setting]}
    model = exact(DiffCSEModel.from_backbone(checkpoint("bert"), **fields))
    twin = copy.deepcopy(model)
    batch = batch_of(model)
    plain = AutoModelForMaskedLM.from_pretrained(checkpoint("bert"))
    if setting == "released":  # its generator drops out: the draws of the naive form are those of padded, whole layers
        model.objectives["rtd"].generator.backbone.set_attn_implementation("sdpa")
        request.getfixturevalue("whole_layers")
    torch.manual_seed(3)
    found, metrics = term(model, batch)
    torch.manual_seed(3)
    expected, accuracies = naive_rtd(naive, twin, plain, batch, dropout=setting == "released")
    found["rtd"].backward()
    expected.backward()
    torch.testing.assert_close(found["rtd"].double(), expected, rtol=1e-6, atol=1e-8)  # the cross-entropy is in fp32
    for label, kind in enumerate(("kept", "replaced")):
        assert metrics[f"rtd_accuracy_{kind}"].item() == pytest.approx(accuracies[label])
    theirs = dict(twin.named_parameters())
    moved = set()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or theirs[name].grad is None:
            assert parameter.grad is None and theirs[name].grad is None, name
            continue
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-5, atol=1e-8, msg=name)
        if parameter.grad.abs().max() > 1e-9:
            moved.add(".".join(name.split(".")[:3]))
    wanted = {"backbone.embeddings.word_embeddings", "objectives.rtd.head", "objectives.rtd.discriminator"}
    assert moved >= wanted | (set() if setting == "h" else {"projector.0.weight"})


def test_the_released_settings_differ_from_the_default_as_they_say(checkpoint, batch_of):
    """All positions count, padding and specials included; every token is filled anew; special ones never."""
    model = DiffCSEModel.from_backbone(checkpoint("bert"), **RELEASED).train()
    batch, objective = batch_of(model), model.objectives["rtd"]
    edited, _, labels = edited_copy(objective, batch)
    again = edited_copy(objective, batch)[0]
    assert not torch.equal(edited, again)  # the generator's dropout
    flat = torch.zeros(edited.numel(), dtype=torch.bool)
    flat[batch["rtd_own"]] = True
    outside = ~flat.view_as(edited)
    assert torch.equal(edited[outside], batch["rtd_originals"][outside]) and not labels[outside].any()
    assert labels[~outside].float().mean() > 0.5
    model.eval()
    assert torch.equal(edited_copy(objective, batch)[0], edited_copy(objective, batch)[0])


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("scope", ["masked", "all"])
def test_labels_and_untouched_specials(checkpoint, batch_of, tokenizer_of, operation, scope):
    model = DiffCSEModel.from_backbone(checkpoint("bert"), edit_operation=operation, probability=0.5, edit_scope=scope)
    batch = batch_of(model)
    edited, mask, labels = edited_copy(model.objectives["rtd"], batch)
    special = set(tokenizer_of("bert").all_special_ids)
    fill = set(batch["rtd_positions" if scope == "masked" else "rtd_own"].tolist())
    for place in range(edited.numel()):
        row, column = divmod(place, edited.shape[1])
        before, now = batch["rtd_input_ids"][row, column], edited[row, column]
        if place not in fill:
            assert before == now
        original = batch["rtd_originals"][row, column].item()
        assert original not in special or now == original
        assert labels[row, column] == (0 if original == now.item() else 1)
    assert labels[mask == 0].sum() == 0
    if operation in ("insert", "delete"):
        assert (batch["rtd_originals"] == -100).any()


@pytest.mark.parametrize("condition", ["z", "h"])
def test_gradient_reaches_the_encoder_through_the_vector_alone(checkpoint, batch_of, condition):
    model = DiffCSEModel.from_backbone(checkpoint("bert"), condition=condition)
    batch = batch_of(model)
    term(model, batch)[0]["rtd"].backward()
    assert all(
        p.grad is not None and p.grad.abs().max() > 0 for p in model.backbone.encoder.parameters() if p.dim() > 1
    )
    assert all((p.grad is None) == (condition == "h") for p in model.projector.parameters())
    model.zero_grad()
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    views = type(views)(views.h.detach(), views.z.detach(), views.input_ids, views.attention_mask)
    model.objectives["rtd"](views, batch, Encode(None, None))[0]["rtd"].backward()
    assert all(p.grad is None for p in model.backbone.parameters())


def test_families(family, checkpoint, batch_of, tmp_path):
    """Position 0 is the vector's in every family; training, reloading and export work."""
    model = DiffCSEModel.from_backbone(checkpoint(family))
    batch, discriminator = batch_of(model, family), model.objectives["rtd"].discriminator
    ids, mask = batch["rtd_originals"], batch["rtd_attention_mask"]
    vectors = torch.randn(len(ids), H)
    places = mask.flatten().nonzero().squeeze(1)
    states = discriminator(ids, mask, vectors, places)
    torch.testing.assert_close(discriminator(ids, mask, vectors)[places], states, rtol=1e-4, atol=1e-5)
    other = ids.clone()
    other[:, 0] = 20
    torch.testing.assert_close(discriminator(other, mask, vectors, places), states)
    assert not torch.allclose(discriminator(ids, mask, vectors + 1, places), states, atol=1e-3)
    hidden = discriminator.model(ids, attention_mask=mask).last_hidden_state.flatten(0, 1)[places]
    assert not torch.allclose(hidden, states, atol=1e-3)  # the hook is gone
    output = model.train()(**batch)
    output.loss.backward()
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(**batch).loss.isfinite()
    assert (type(discriminator.condition) is torch.nn.Linear) == (family in ("electra", "albert"))

    model.eval().save_pretrained(tmp_path / "one")
    again = DiffCSEModel.from_pretrained(tmp_path / "one", training=True)
    again.save_pretrained(tmp_path / "two")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    losses = []
    for each in (model, again):
        torch.manual_seed(5)
        losses.append(each(**batch).loss)
    assert torch.equal(*losses)
    model.export(tmp_path / "plain", AutoTokenizer.from_pretrained(checkpoint(family)))
    plain = AutoModel.from_pretrained(tmp_path / "plain")
    assert {*plain.state_dict()} >= {*model.backbone.state_dict()}
    with safe_open(tmp_path / "plain" / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "discriminator" in name]  # noqa: SIM118


# Sentences, views, joint, settings


@pytest.mark.parametrize("sentence", ["next", "both"])
def test_next_sentence(checkpoint, batch_of, sentence):
    """The vector of a sentence conditions on the edited next one; the contrast sees dropout views alone."""
    model = DiffCSEModel.from_backbone(checkpoint("bert"), condition_sentence=sentence, edit_sampling="argmax")
    batch, seen = batch_of(model), []
    assert batch["input_ids"].shape[1] == 1
    discriminator = model.objectives["rtd"].discriminator
    discriminator.register_forward_pre_hook(lambda _, given: seen.append(given[2]))
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    found, _ = term(model, batch)
    z = views.z.flatten(0, 1)
    torch.testing.assert_close(seen[0], z if sentence == "next" else torch.cat([z, z]))
    assert len(batch["rtd_input_ids"]) == len(seen[0]) and found["rtd"].isfinite()


def test_one_view_or_two(checkpoint, batch_of):
    for views in (1, 2):
        model = DiffCSEModel.from_backbone(checkpoint("bert"), rtd_views=views)
        batch = batch_of(model)
        assert len(batch["rtd_input_ids"]) == views * B
        assert model(**batch).loss.isfinite()


def test_joint_objectives_with_their_own_rates(checkpoint, batch_of, tmp_path):
    from csekit.modeling import CSEModel

    model = CSEModel.from_backbone(
        checkpoint("bert"), objectives=["reconstruction", "rtd", "mlm"], rtd_probability=0.3, mlm_probability=0.4
    )
    batch = batch_of(model)
    assert {"mlm_positions", "rtd_positions"} <= batch.keys()
    assert not torch.equal(batch["mlm_positions"], batch["rtd_positions"])
    output = model.train()(**batch)
    assert list(output.loss_dict) == ["contrastive", "reconstruction", "rtd", "mlm"]
    torch.testing.assert_close(output.loss, sum(output.loss_dict.values()))
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    model.eval().save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path, training=True)
    assert again.config.objectives == model.config.objectives
    losses = []
    for each in (model, again):
        torch.manual_seed(2)
        losses.append(each(**batch).loss)
    assert torch.equal(*losses)
    alone = CSEModel.from_backbone(checkpoint("bert"), objectives=["rtd"], projector="none")
    assert torch.equal(batch_of(alone)["rtd_positions"], batch["rtd_positions"])  # its masks are its own


def test_settings():
    assert DiffCSEConfig().objectives == [ReplacedTokenDetectionConfig()]
    assert DiffCSEConfig().projector == "batchnorm"
    config = DiffCSEConfig(**RELEASED, rtd_weight=0.01)
    assert (config.edit_scope, config.rtd_rtd_positions, config.rtd_weight) == ("all", "all", 0.01)
    config = DiffCSEConfig(generator="some-masked-lm")
    assert config.get_text_config() is config  # regression: the Trainer took the name for a config
    for field, value, allowed in [
        ("edit_scope", "some", "'masked', 'all'"),
        ("edit_operation", "swap", "'replace', 'insert', 'delete', 'all'"),
        ("condition", "x", "'z', 'h'"),
        ("condition_sentence", "last", "'same', 'next', 'both'"),
        ("rtd_positions", "none", "'real', 'all'"),
    ]:
        with pytest.raises(ValueError, match=f"rtd_{field} must be one of {allowed}, got '{value}'"):
            DiffCSEConfig(**{field: value})
    with pytest.raises(ValueError, match=r"rtd_probability must lie between 0 and 1, got 1\.5"):
        DiffCSEConfig(probability=1.5)
