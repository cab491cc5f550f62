"""DistillCSE: distillation of several teachers' shuffled similarities, against loops over float64."""

import copy
import math

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from csekit.modeling.objective_rank import shuffled_in_groups
from tests.modeling.gradients import same_gradients


def softmax(values: list[Tensor]) -> list[Tensor]:
    total = sum(value.exp() for value in values)
    return [value.exp() / total for value in values]


def naive_order(T: list[Tensor], i: int, p: float, tau: float, draws: list[float]) -> list[int]:
    """The keys of sentence i in the order of T, each group in the order of its draws."""
    order = sorted((k for k in range(len(T)) if k != i), key=lambda k: -float(T[k]))
    probabilities, count = softmax([T[k] / tau for k in order]), math.ceil(1 / p)
    groups: list[list[int]] = [[] for _ in range(count)]
    for r in range(len(order)):
        groups[min(int(float(sum(probabilities[: r + 1])) / p), count - 1)].append(r)
    return [order[r] for group in groups for r in sorted(group, key=lambda r: draws[r])]


def naive_loss(z: Tensor, T: list[list[Tensor]], draws: list[list[float]], p: float, tau: float) -> Tensor:
    """−(1/B) Σ_i Σ_r softmax_r(T in its order / 0.0125) · log softmax_r(S in the shuffled order / 0.025)."""
    rows, B = [], len(z)
    for i in range(B):
        S = [torch.nn.functional.cosine_similarity(z[i], z[k], dim=0) / 0.025 for k in range(B)]
        ordered = sorted((T[i][k] for k in range(B) if k != i), reverse=True)
        q = softmax([value / 0.0125 for value in ordered])
        student = softmax([S[k] for k in naive_order(T[i], i, p, tau, draws[i])])
        rows.append(-sum(a * b.log() for a, b in zip(q, student, strict=True)))
    return sum(rows) / B


@pytest.mark.parametrize(("p", "tau"), [(0.1, 1.0), (0.4, 0.2)])
@pytest.mark.parametrize("teachers", [1, 3])
def test_the_loss_against_the_formula(checkpoint, batch_of, drawn, teachers, p, tau):
    """Three teachers are averaged by a share of a third."""
    fields = {"rank_loss": "listnet", "rank_against": "first", "rank_shuffle": p, "rank_shuffle_temperature": tau}
    temperatures = {"rank_temperature": 0.025, "rank_teacher_temperature": 0.0125, "rank_teachers": teachers}
    fields |= temperatures | {"rank_weight": 0.7, "contrastive_weight": 0.0}
    model = CSEModel.from_backbone(checkpoint("bert", 0.0), **fields).double()
    twin, batch = copy.deepcopy(model), batch_of(model)
    for place in range(teachers):
        batch[f"teacher_{place}"] = torch.randn(5, 6 + place).double()
    output = model(**batch)
    vectors = [torch.nn.functional.normalize(batch[f"teacher_{place}"]) for place in range(teachers)]
    T = [[sum(t[i] @ t[k] for t in vectors) / teachers for k in range(5)] for i in range(5)]
    z = twin.encode_views(batch["input_ids"], batch["attention_mask"]).z
    expected = 0.7 * naive_loss(z[0], T, drawn[0].tolist(), p, tau)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-4, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


def test_a_small_p_leaves_every_value_in_its_place_and_values_stay_in_their_groups():
    T, own = torch.rand(6, 6), torch.eye(6, dtype=torch.bool)
    assert torch.equal(shuffled_in_groups(T, own, 0.01, 1.0, torch.rand(6, 6)), T)  # five keys of about a fifth each
    found = [shuffled_in_groups(T, own, 0.5, 1.0, torch.rand(6, 6)) for _ in range(50)]
    for each in found:
        assert torch.equal(each.sort(dim=-1).values, T.sort(dim=-1).values)
        assert torch.equal(each.diagonal(), T.diagonal())
    moved = (torch.stack(found) != T).float().mean(0)
    assert moved[~own].max() > 0.3
    first, last = T.masked_fill(own, -1.0).argmax(1), T.masked_fill(own, 2.0).argmin(1)
    rows = torch.arange(6)
    assert all((each[rows, first] > each[rows, last]).all() for each in found)  # they lie in different groups


def test_every_step_shuffles_anew_and_the_encoder_s_dropout_stays(checkpoint, batch_of):
    fields = {"rank_loss": "listnet", "rank_weight": 1.0}
    models = [CSEModel.from_backbone(checkpoint("bert", 0.3), **fields, rank_shuffle=p).train() for p in (0.0, 0.9)]
    models[1].load_state_dict(models[0].state_dict())
    batch, found = batch_of(models[0]) | {"teacher_0": torch.randn(5, 6)}, []
    for model in models:
        torch.manual_seed(4)
        found.append([model(**batch).loss_dict for _ in range(2)])
    for plain, shuffled in zip(*found, strict=True):
        assert plain["contrastive"] == shuffled["contrastive"]
        assert plain["rank"] != shuffled["rank"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank_against": "third"}, "rank_against must be one of 'first', 'second', got 'third'"),
        ({"rank_shuffle": 1.0}, "rank_shuffle must be a number of at least 0 and below 1, got 1.0"),
        ({"shuffle_temperature": 0.0}, "rank_shuffle_temperature must be a number greater than 0, got 0.0"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        CSEModel.from_backbone(checkpoint("bert"), objectives=["rank"], **fields)
