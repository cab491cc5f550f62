"""RankCSE's two terms against loops over float64, and their invariances."""

import copy
import math

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel, Encode
from csekit.modeling.objective_consistency import jensen_shannon
from csekit.modeling.objective_rank import list_mle, list_net
from tests.modeling.gradients import same_gradients


def cos(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt())


def softmax(values: list[Tensor]) -> list[Tensor]:
    total = sum(value.exp() for value in values)
    return [value.exp() / total for value in values]


def naive_consistency(z1: Tensor, z2: Tensor, tau: float) -> Tensor:
    """The mean over sentences of JS(P ‖ Q), one probability after the other."""
    rows = []
    for i in range(len(z1)):
        P = softmax([cos(z1[i], z2[k]) / tau for k in range(len(z1))])
        Q = softmax([cos(z2[i], z1[k]) / tau for k in range(len(z1))])
        M = [(p + q) / 2 for p, q in zip(P, Q, strict=True)]
        to_M = [sum(d * (d / m).log() for d, m in zip(D, M, strict=True)) for D in (P, Q)]
        rows.append(sum(to_M) / 2)
    return sum(rows) / len(rows)


def naive_rank(z1: Tensor, z2: Tensor, teachers: list[Tensor], shares: list[float], loss: str) -> Tensor:
    """ListNet without the own sentence, or ListMLE with it; τ₂ = 0.05, τ₃ = 0.025."""
    rows, B = [], len(z1)
    for i in range(B):
        S = [cos(z1[i], z2[k]) / 0.05 for k in range(B)]
        T = [sum(a * cos(t[i], t[k]) for a, t in zip(shares, teachers, strict=True)) for k in range(B)]
        if loss == "listnet":
            others = [k for k in range(B) if k != i]
            p, q = softmax([S[k] for k in others]), softmax([T[k] / 0.025 for k in others])
            rows.append(-sum(b * a.log() for a, b in zip(p, q, strict=True)))
        else:
            order = sorted(range(B), key=lambda k: -float(T[k]))
            likelihood = [S[k].exp() / sum(S[j].exp() for j in order[r:]) for r, k in enumerate(order)]
            rows.append(-sum(each.log() for each in likelihood))
    return sum(rows) / B


def found_and_views(model: CSEModel, batch: dict, name: str) -> tuple[dict, dict, Tensor]:
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    encode = Encode(model.backbone, model.backbone.get_input_embeddings().weight, model.project)
    return (*model.objectives[name](views, batch, encode), views.z)


def teacher_batch(batch_of, model, number: int) -> dict:
    batch = batch_of(model)
    for place in range(number):
        generator = torch.Generator().manual_seed(place)
        batch[f"teacher_{place}"] = torch.randn(len(batch["input_ids"]), 6 + place, generator=generator).double()
    return batch


def test_consistency_against_the_formula(checkpoint, batch_of):
    fields = {"objectives": ["consistency"], "consistency_weight": 0.7, "consistency_temperature": 0.1}
    model = CSEModel.from_backbone(checkpoint("bert"), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    terms, _, _ = found_and_views(model, batch, "consistency")
    z = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    expected = 0.7 * naive_consistency(z[0], z[1], 0.1)
    torch.testing.assert_close(terms["consistency"].double(), expected, rtol=1e-4, atol=1e-7)
    same_gradients(model, twin, terms["consistency"], expected)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("loss", ["listnet", "listmle"])
def test_rank_against_the_formula(checkpoint, batch_of, loss, number):
    fields = {"objectives": ["rank"], "rank_weight": 0.7, "rank_loss": loss, "rank_teachers": number}
    model = CSEModel.from_backbone(checkpoint("bert"), rank_mixture=0.3, **fields).double()
    twin, batch = copy.deepcopy(model), teacher_batch(batch_of, model, number)
    terms, metrics, _ = found_and_views(model, batch, "rank")
    z = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    teachers = [batch[f"teacher_{place}"] for place in range(number)]
    shares = [1.0] if number == 1 else [0.3, 0.7]
    expected = 0.7 * naive_rank(z[0], z[1], teachers, shares, loss)
    torch.testing.assert_close(terms["rank"].double(), expected, rtol=1e-4, atol=1e-6)
    assert -1 <= metrics["rank_agreement"] <= 1
    same_gradients(model, twin, terms["rank"], expected)


def ranks(values: list[float]) -> list[int]:
    return [sum(other < value for other in values) for value in values]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("references", [0, 9])
def test_the_mean_squared_difference_of_similarities_against_the_formula(checkpoint, batch_of, number, references):
    """RankEncoder's student: T is the correlation of the ranks that a teacher gives to nine reference sentences."""
    fields = {"rank_loss": "mse", "rank_low": -0.3, "rank_high": 0.4, "rank_references": references}
    fields |= {"objectives": ["rank"], "rank_weight": 0.7, "rank_teachers": number, "rank_mixture": 0.3}
    model = CSEModel.from_backbone(checkpoint("bert"), **fields).double()
    twin, batch = copy.deepcopy(model), teacher_batch(batch_of, model, number)
    corpus = [torch.randn(references, 6 + place).double() for place in range(number)]
    model.objectives["rank"].set_references(corpus)
    terms, _, _ = found_and_views(model, batch, "rank")
    z = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    T = torch.zeros(5, 5, dtype=torch.float64)
    for place, share in enumerate([1.0] if number == 1 else [0.3, 0.7]):
        t = batch[f"teacher_{place}"]
        if references:
            t = torch.tensor([ranks([float(cos(row, c)) for c in corpus[place]]) for row in t]).double() - 4
        T += share * torch.stack([torch.stack([cos(a, b) for b in t]) for a in t])
    counted = [(i, k) for i in range(5) for k in range(5) if -0.3 <= T[i, k] <= 0.4]
    assert 0 < len(counted) < 20
    expected = 0.7 * sum((cos(z[0, i], z[1, k]) - T[i, k]) ** 2 for i, k in counted) / len(counted)
    torch.testing.assert_close(terms["rank"].double(), expected, rtol=1e-4, atol=1e-6)
    same_gradients(model, twin, terms["rank"], expected)


def test_references_must_be_set_and_bounds_without_a_pair_give_nothing(checkpoint, batch_of):
    """Three references have correlations of 1, 0.5, −0.5 or −1."""
    fields = {"objectives": ["rank"], "rank_loss": "mse", "rank_low": 0.6, "rank_high": 0.9, "rank_references": 3}
    model = CSEModel.from_backbone(checkpoint("bert"), **fields)
    batch = {
        name: value.float() if "teacher" in name else value
        for name, value in teacher_batch(batch_of, model, 1).items()
    }
    with pytest.raises(ValueError, match="rank_references must be 0 outside a trainer"):
        model(**batch)
    model.objectives["rank"].set_references([torch.randn(3, 6)])
    assert model(**batch).loss_dict["rank"] == 0
    with pytest.raises(ValueError, match="rank_references must be 0 or at least 3, got 2"):
        CSEModel.from_backbone(checkpoint("bert"), **fields | {"rank_references": 2})


def test_the_divergence_of_equal_and_of_disjoint_distributions():
    P = torch.randn(3, 5).log_softmax(-1)
    assert jensen_shannon(P, P).abs().max() < 1e-6
    far = torch.tensor([[0.0, -80.0]])
    torch.testing.assert_close(jensen_shannon(far, far.flip(-1)), torch.tensor([math.log(2)]))


def test_a_perfect_student_and_one_that_contradicts():
    T = torch.rand(4, 4, dtype=torch.float64)
    own = torch.eye(4, dtype=torch.bool)
    nothing = torch.zeros_like(T)
    assert list_mle(20 * T, T) < list_mle(nothing, T) < list_mle(-20 * T, T)
    assert list_net(9 * T, 9 * T, own) < list_net(nothing, 9 * T, own) < list_net(-9 * T, 9 * T, own)
    # ListMLE reads only the order of the teacher's similarities, ListNet their size as well
    torch.testing.assert_close(list_mle(T, T), list_mle(T, T**3))
    assert not torch.isclose(list_net(T, T, own), list_net(T, 9 * T**3, own))


def test_the_agreement_is_one_with_the_student_s_own_similarities(checkpoint, batch_of):
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), objectives=["rank"], projector="none")
    batch = batch_of(model)
    batch["input_ids"][:, 1], batch["attention_mask"][:, 1] = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    batch["teacher_0"] = model.pooled(batch["input_ids"][:, 0], batch["attention_mask"][:, 0]).detach()
    _, metrics, _ = found_and_views(model, batch, "rank")
    torch.testing.assert_close(metrics["rank_agreement"], torch.tensor(1.0))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank_loss": "listfold"}, "rank_loss must be one of 'listmle', 'listnet', 'mse', got 'listfold'"),
        ({"rank_teachers": 0}, "rank_teachers must be a number of at least 1, got 0"),
        ({"rank_temperature": 0.0}, "rank_temperature must be a number greater than 0, got 0.0"),
        ({"rank_mixture": 1.5}, "rank_mixture must be a number of at least 0 and at most 1, got 1.5"),
        (
            {"rank_loss": "mse", "rank_low": 1.0, "rank_high": 0.9},
            "rank_low must be at most rank_high, 0.9, got 1.0: the term would be 0",
        ),
        ({"consistency_temperature": -1.0}, "consistency_temperature must be a number greater than 0, got -1.0"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["consistency", "rank"], **fields)


def test_a_row_without_other_keys_counts_nothing():
    """The last batch of an epoch may hold one sentence. Its softmax over no key was NaN."""
    S, own = torch.zeros(1, 1, requires_grad=True), torch.ones(1, 1, dtype=torch.bool)
    loss = list_net(S, torch.zeros(1, 1), own)
    loss.backward()
    assert loss.item() == 0 and torch.equal(S.grad, torch.zeros(1, 1))
