"""DCLR, GISTEmbed and ESimCSE: what changes the contrast, against loops over float64, in value and gradient."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from csekit.modeling import CSEModel
from csekit.modeling.random_streams import own_stream, state_seed

CPU, TAU = torch.device("cpu"), 0.2


def build(checkpoint, dropout=0.0, **fields) -> CSEModel:
    return CSEModel.from_backbone(checkpoint("bert", dropout), **{"temperature": TAU, **fields}).train()


def cos(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt())


def naive_contrast(
    queries, keys, kept=lambda i, k: True, further=(), weight=1.0, kept_further=lambda i, m: True, angle=0.0
):
    """The mean over rows of −log of the positive's share, further keys weighted; ``kept`` names the negatives.
    ``angle`` is added to that between a row and its positive."""
    total = queries.new_zeros(())
    for i, query in enumerate(queries):
        own = ((cos(query, keys[i]).acos() + angle).cos() / TAU).exp()
        rest = [(cos(query, keys[k]) / TAU).exp() for k in range(len(keys)) if k != i and kept(i, k)]
        more = [weight * (cos(query, key) / TAU).exp() for m, key in enumerate(further) if kept_further(i, m)]
        total = total - (own / (own + sum(rest) + sum(more))).log()
    return total / len(queries)


def with_guide(batch: dict, columns: int = 2) -> tuple[dict, list[Tensor]]:
    """The batch with a guide's vectors of each column."""
    names = ["teacher_0", *(f"teacher_0_{column}" for column in range(1, columns))]
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(len(batch["input_ids"]), 3, generator=generator)
    vectors = [base + 0.9 * torch.randn(base.shape, generator=generator) for _ in names]
    return batch | dict(zip(names, vectors, strict=True)), [each.double() for each in vectors]


def same_gradients(model: CSEModel, twin: CSEModel, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)
    for each, loss in ((model, found), (twin, expected)):
        each.zero_grad()
        loss.backward()
    theirs = dict(twin.named_parameters())
    pairs = [(p.grad, theirs[n].grad) for n, p in model.named_parameters() if p.requires_grad]
    assert max(ours.abs().max() for ours, _ in pairs) > 1e-3
    for ours, other in pairs:
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


# A guide

RULES = [
    {"guided_threshold": 0.5},
    {"guided_rule": "margin"},
    {"guided_rule": "margin", "guided_margin": 0.3},
    {"guided_rule": "relative_margin", "guided_margin": 0.5},
    {"guided_rule": "margin", "angular_margin": 0.4},
    {"guided_rule": "margin", "guided_margin": 0.3, "angular_margin": 0.4},
]


@pytest.mark.parametrize("fields", RULES, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_guide_leaves_out_false_negatives(checkpoint, batch_of, fields, symmetric):
    model = build(checkpoint, guided_weight=1.0, symmetric=symmetric, **fields).double()
    batch, (t1, t2) = with_guide(batch_of(model))
    twin = copy.deepcopy(model)

    def kept(queries, keys):
        def negative(i, k):
            bound, margin = cos(t1[i], t2[i]), fields.get("guided_margin", 0.0)
            if "guided_threshold" in fields:
                return cos(queries[i], keys[k]) < 0.5
            if fields["guided_rule"] == "relative_margin":
                margin = margin * abs(bound)
            return cos(queries[i], keys[k]) <= bound - margin

        return negative

    z1, z2 = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    angle = fields.get("angular_margin", 0.0)
    expected = naive_contrast(z1, z2, kept(t1, t2), angle=angle)
    if symmetric:
        expected = (expected + naive_contrast(z2, z1, kept(t2, t1), angle=angle)) / 2
    output = model(**batch)
    left_out = sum(not kept(t1, t2)(i, k) for i in range(5) for k in range(5) if i != k)
    assert 0 < left_out < 20
    assert output.metrics["guided_left_out"].item() == pytest.approx(left_out / 5)
    assert output.loss_dict.keys() == {"contrastive"}
    same_gradients(model, twin, output.loss, expected)


def test_a_guide_judges_hard_negatives_too_and_one_text_has_one_vector(checkpoint, make_batch):
    model = build(checkpoint, guided_weight=0.25, guided_rule="margin").double()
    batch, (t1, t2, t3) = with_guide(make_batch(5, 3), 3)
    z1, z2, z3 = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    keys, t = torch.cat([z2, z3]), torch.cat([t2, t3])
    false = [[cos(t1[i], t[k]) > cos(t1[i], t2[i]) for k in range(10)] for i in range(5)]
    assert any(row[5 + i] for i, row in enumerate(false))  # a sentence's own hard negative may be a false one
    terms = []
    for i in range(5):
        own = (cos(z1[i], keys[i]) / TAU).exp()
        rest = [(0.75 if false[i][k] else 1) * (cos(z1[i], keys[k]) / TAU).exp() for k in range(10) if k != i]
        terms.append(-(own / (own + sum(rest))).log())
    torch.testing.assert_close(model(**batch).loss.double(), sum(terms) / 5, rtol=1e-5, atol=1e-6)
    single = make_batch(5, 1)
    found = model(**single, teacher_0=batch["teacher_0"])
    assert found.metrics["guided_left_out"] == 0  # no sentence is closer than the sentence itself
    with pytest.raises(ValueError, match="needs the guide's vectors 'teacher_0_2' in the batch"):
        model(**{name: value for name, value in batch.items() if name != "teacher_0_2"})


@pytest.mark.parametrize(("rule", "strategy"), [("margin", "absolute"), ("relative_margin", "relative")])
@pytest.mark.parametrize("margin", [0.0, 0.25])
def test_the_rules_are_those_of_sentence_transformers(checkpoint, batch_of, rule, strategy, margin):
    losses = pytest.importorskip("sentence_transformers.losses", reason="needs the extra 'st'")

    class Given(torch.nn.Module):
        """An encoder whose embeddings are in its input."""

        tokenizer, max_seq_length = AutoTokenizer.from_pretrained(checkpoint("bert")), 32

        def __init__(self, name):
            super().__init__()
            self.name = name

        def __getitem__(self, place):
            return self

        def forward(self, features):
            return {"sentence_embedding": features[self.name]}

    fields = {"guided_rule": rule, "guided_margin": margin}
    model = build(checkpoint, guided_weight=1.0, **fields)
    batch, (t1, t2) = with_guide(batch_of(model))
    z1, z2 = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    theirs = losses.GISTEmbedLoss(
        Given("z"), Given("t"), TAU, strategy, margin, contrast_anchors=False, contrast_positives=False
    )
    expected = theirs([{"z": z1, "t": t1}, {"z": z2, "t": t2}], None)
    output = model(**batch)
    torch.testing.assert_close(output.loss, expected)
    assert output.metrics["guided_left_out"] > 0


def test_bounds_hold_within_rounding(checkpoint, make_batch):
    """A cosine of 1 is one up to rounding: a false negative at φ = 1, none by GISTEmbed's rule."""
    vectors = torch.randn(1, 67, generator=torch.Generator().manual_seed(0)).repeat(5, 1)
    for fields, expected in (({"guided_threshold": 1.0}, 4.0), ({"guided_rule": "margin"}, 0.0)):
        model = build(checkpoint, guided_weight=1.0, **fields)
        found = model(**make_batch(5, 1), teacher_0=vectors * torch.tensor([[1], [3], [7], [0.1], [9]]))
        assert found.metrics["guided_left_out"] == expected


def test_a_row_without_negatives_has_a_finite_gradient(checkpoint, make_batch):
    model = build(checkpoint, guided_weight=1.0, guided_threshold=-0.999)
    output = model(**make_batch(5, 1), teacher_0=torch.eye(5) + 1)
    assert output.loss == 0
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Noise


def naive_noise(z1: Tensor, z2: Tensor, noise: Tensor, steps: int, step_size: float, tau_u: float, against: str):
    """The ascent of DCLR's §4.1, the gradient of the cosine by hand."""
    z1, z2, noise = z1.detach().double(), z2.detach().double(), noise.double()
    for _ in range(steps):
        moved = []
        for j, e in enumerate(noise):
            g = torch.zeros_like(e)
            for h in z1:
                total = sum((cos(h, other) / tau_u).exp() for other in noise)
                total = total + (sum((cos(h, k) / tau_u).exp() for k in z2) if against == "batch" else 0)
                slope = h / (h.norm() * e.norm()) - cos(h, e) * e / e.norm() ** 2
                g = g + (cos(h, e) / tau_u).exp() / total / tau_u * slope
            moved.append(noise[j] + step_size * g / g.norm())
        noise = torch.stack(moved)
    return noise


@pytest.mark.parametrize("against", ["noise", "batch"])
def test_noise_climbs_and_joins_the_denominator(checkpoint, batch_of, against):
    fields = {"noise_times": 1.4, "noise_steps": 3, "noise_step_size": 0.3, "noise_temperature": 0.1}
    model = build(checkpoint, noise_weight=0.5, noise_against=against, **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    with own_stream("noise", state_seed(CPU), CPU):
        drawn = torch.randn(7, 16)  # 1.4 times five sentences
    z1, z2 = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    noise = naive_noise(z1, z2, drawn, 3, 0.3, 0.1, against)
    expected = naive_contrast(z1, z2, further=noise, weight=0.5)
    output = model(**batch)
    cosines = torch.stack([cos(h, e) for h in z1.detach() for e in noise])
    torch.testing.assert_close(output.metrics["noise_cosine"].double(), cosines.mean(), rtol=1e-4, atol=1e-5)
    before = torch.stack([cos(h, e) for h in z1.detach() for e in drawn])
    assert cosines.mean() > before.mean()
    same_gradients(model, twin, output.loss, expected)


def test_an_angular_margin_is_the_positive_s_alone(checkpoint, batch_of):
    """Neither noise nor its diagnostic gets it."""
    model = build(checkpoint, noise_weight=0.5, noise_steps=0, angular_margin=0.4).double()
    batch = batch_of(model)
    with own_stream("noise", state_seed(CPU), CPU):
        noise = torch.randn(5, 16).double()
    output = model(**batch)
    z1, z2 = model.encode_views(batch["input_ids"], batch["attention_mask"]).z
    expected = naive_contrast(z1, z2, further=noise, weight=0.5, angle=0.4)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    cosines = torch.stack([cos(h, e) for h in z1 for e in noise])
    torch.testing.assert_close(output.metrics["noise_cosine"].double(), cosines.mean(), rtol=1e-4, atol=1e-5)


def test_noise_is_drawn_anew_and_leaves_the_encoder_s_dropout_as_it_is(checkpoint, make_batch):
    plain, noisy = build(checkpoint, 0.2), build(checkpoint, 0.2, noise_weight=1.0, noise_steps=0)
    noisy.projector.load_state_dict(plain.projector.state_dict())
    batch, found = make_batch(5, 1), []
    for model in (plain, noisy):
        torch.manual_seed(5)
        found.append([model(**batch).metrics for _ in range(3)])
    for ours, theirs in zip(*found, strict=True):
        assert ours["positive_cosine"] == theirs["positive_cosine"]
    assert len({float(metrics["noise_cosine"]) for metrics in found[1]}) == 3


# A queue


def states(backbone, batch: dict) -> Tensor:
    """The [CLS] states of the first view, a sentence at a time and without padding."""
    rows = zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], strict=True)
    return torch.cat([backbone(input_ids=ids[None, : mask.sum()]).last_hidden_state[:, 0] for ids, mask in rows])


@pytest.mark.parametrize("mask_identical", [False, True])
def test_a_queue_of_a_momentum_copy(checkpoint, make_batch, mask_identical):
    """Four steps, the fourth with the batch of the second; a queue of eight keys for five sentences a step."""
    fields = {"queue_weight": 0.5, "queue_size": 8, "queue_momentum": 0.6, "mask_identical": mask_identical}
    model = build(checkpoint, **fields).double()
    slow, queue = copy.deepcopy(model.backbone), []
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for step, seed in enumerate((1, 2, 3, 2)):
        batch = make_batch(5, 2, seed=seed)
        if step:
            for old, new in zip(slow.parameters(), model.backbone.parameters(), strict=True):
                old.data = 0.6 * old.data + 0.4 * new.data
        twin = copy.deepcopy(model)
        z1, z2 = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
        sources = [source for _, source in queue]

        def kept(i, m, seed=seed, sources=sources):
            return not mask_identical or sources[m] != (seed, i)

        expected = naive_contrast(z1, z2, further=[k for k, _ in queue], weight=0.5, kept_further=kept)
        output = model(**batch)
        found = [float(cos(h, k)) for h in z1.detach() for k, _ in queue]
        mean = sum(found) / max(len(found), 1)
        if not mask_identical:
            assert output.metrics["queue_cosine"].item() == pytest.approx(mean, abs=1e-5)
        same_gradients(model, twin, output.loss, expected)
        with torch.no_grad():
            keys = model.projector(states(slow.eval(), batch))
        queue = [*queue, *zip(keys, [(seed, i) for i in range(5)], strict=True)][-8:]
        optimiser.step()
    torch.testing.assert_close(model.objectives["queue"].keys_MH, torch.stack([k for k, _ in queue]))


def test_only_steps_that_train_the_encoder_move_the_queue(checkpoint, make_batch):
    """The copy has no dropout and no gradient; its batch statistics and the projector's stay as they are."""
    model = build(checkpoint, 0.3, queue_weight=1.0, queue_size=8, projector="batchnorm")
    batch = make_batch(5, 1)
    with torch.no_grad():
        model(**batch)
    model.eval()(**batch)
    assert model.objectives["queue"].count == 0
    model.train()(**batch).loss.backward()
    queue, running = model.objectives["queue"], model.projector[1].running_mean.clone()
    assert queue.count == 5
    with torch.no_grad():
        expected = model.eval().projector(states(model.backbone, batch))
    torch.testing.assert_close(queue.keys_MH[3:], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(queue.keys_MH[:3], torch.zeros(3, 16))
    assert [name for name, p in queue.named_parameters() if p.grad is not None or p.requires_grad] == []
    assert torch.equal(model.projector[1].running_mean, running)
    assert model.projector[1].num_batches_tracked == 1 + 1  # both training passes, with and without gradient
    assert model.train().projector.training
    assert not queue.encoder.training


def test_a_queue_is_reloaded_and_not_exported(checkpoint, make_batch, tmp_path):
    model = build(checkpoint, objectives=["queue", "noise", "guided"], queue_size=7)
    guided = {"teacher_0": torch.randn(5, 3)}
    model(**make_batch(5, 1), **guided)
    model.save_pretrained(tmp_path / "training")
    again = CSEModel.from_pretrained(tmp_path / "training").train()
    found = []
    for each in (model, again):
        torch.manual_seed(5)  # the noise follows from it
        found.append(each(**make_batch(5, 1, seed=2), **guided).loss)
    assert torch.equal(found[0], found[1])
    assert not any(p.requires_grad for p in again.objectives.parameters())
    assert again.objectives["queue"].count == 7
    plain = CSEModel.from_backbone(checkpoint("bert", 0.0))
    assert again.backbone.state_dict().keys() == plain.backbone.state_dict().keys()


def test_every_trainable_parameter_moves_with_all_three(checkpoint, make_batch):
    model = build(checkpoint, 0.1, objectives=["guided", "noise", "queue"], queue_size=8, guided_threshold=0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for seed in range(3):
        optimiser.zero_grad()
        model(**make_batch(5, 1, seed=seed), teacher_0=torch.randn(5, 3)).loss.backward()
        optimiser.step()
    assert [name for name, p in model.named_parameters() if name in before and torch.equal(p, before[name])] == []
    slow, fast = model.objectives["queue"].encoder, model.backbone
    starts = [before[f"backbone.{name}"] for name, _ in fast.named_parameters()]
    for start, copied, now in zip(starts, slow.parameters(), fast.parameters(), strict=True):
        assert (copied - start).norm() < 0.02 * (now - start).norm()  # λ = 0.995: three small steps


def test_a_weight_of_0_changes_nothing(checkpoint, make_batch):
    batch = make_batch(5, 1) | {"teacher_0": torch.ones(5, 2)}
    plain = build(checkpoint)
    model = build(checkpoint, guided_weight=0.0, noise_weight=0.0, queue_weight=0.0)
    model.projector.load_state_dict(plain.projector.state_dict())
    for _ in range(2):
        assert torch.equal(model(**batch).loss, plain(**batch).loss)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"guided_threshold": -1.0}, "guided_threshold must be a number greater than -1 and at most 1, got -1.0"),
        ({"guided_threshold": 1.5}, "guided_threshold must be a number greater than -1 and at most 1, got 1.5"),
        ({"guided_weight": 1.5}, "guided_weight must be a number of at least 0 and at most 1, got 1.5"),
        ({"guided_rule": "gist"}, "guided_rule must be one of 'threshold', 'margin', 'relative_margin', got 'gist'"),
        ({"guided_margin": -0.1}, "guided_margin must be a number of at least 0 and at most 2, got -0.1"),
        ({"guided_teacher": -1}, "guided_teacher must be a number of at least 0, got -1"),
        ({"noise_times": 0.0}, "noise_times must be a number greater than 0, got 0.0"),
        ({"noise_steps": -1}, "noise_steps must be a number of at least 0, got -1"),
        ({"noise_temperature": 0.0}, "noise_temperature must be a number greater than 0, got 0.0"),
        ({"noise_against": "all"}, "noise_against must be one of 'noise', 'batch', got 'all'"),
        ({"queue_size": 0}, "queue_size must be a number of at least 1, got 0"),
        ({"queue_size": 2.5}, "queue_size must be a whole number, got 2.5"),
        ({"queue_momentum": 1.0}, "queue_momentum must be a number of at least 0 and below 1, got 1.0"),
        ({"queue_momentum": -0.5}, "queue_momentum must be a number of at least 0 and below 1, got -0.5"),
        ({"contrastive_weight": 0.0}, "contrastive_weight must be greater than 0 with the objective 'guided'"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["guided", "noise", "queue"], **fields)
