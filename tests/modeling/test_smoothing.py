"""IS-CSE's smoothed positives and their memory, against loops over float64."""

import copy
import math

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel
from tests.modeling.gradients import same_gradients


def naive_smoothed(z1: Tensor, z2: Tensor, memory: list[Tensor], k: int, beta: float) -> list[Tensor]:
    """The memory's last vectors are those of the batch. One sentence after the other, by sorting."""
    found, first = [], len(memory) - len(z2)
    for i, anchor in enumerate(z2):
        others = [vector for place, vector in enumerate(memory) if place != first + i]
        nearest = sorted(others, key=lambda vector: -(anchor * vector).sum().item())[:k]
        group = [anchor, *nearest]
        scores = [((anchor * vector).sum() / beta).exp() for vector in group]
        found.append(sum(score / sum(scores) * vector for score, vector in zip(scores, group, strict=True)))
    return found


def vectors(model: CSEModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    texts = [(batch["input_ids"][:, c], batch["attention_mask"][:, c]) for c in (0, 1)]
    return tuple(model.projector(model.pooled(*rows)) for rows in texts)


def model_of(checkpoint, **fields) -> CSEModel:
    fields = {"smoothing_weight": 0.7, "smoothing_size": 12, "smoothing_neighbors": 3} | fields
    return CSEModel.from_backbone(checkpoint("bert", 0.0), temperature=0.2, **fields).double().train()


def moved(model: CSEModel) -> None:
    """Change the encoder a little, as a step does."""
    torch.manual_seed(int(model.objectives["smoothing"].batches))
    for parameter in model.backbone.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize("fields", [{}, {"smoothing_temperature": 0.1, "smoothing_ramp_steps": 4}])
def test_the_term_against_the_formula(checkpoint, batch_of, naive, fields):
    """Five sentences a step: the third step fills a memory of twelve, the fourth has more than it."""
    model, remembered = model_of(checkpoint, **fields), []
    batch = batch_of(model)
    for step in range(4):
        twin = copy.deepcopy(model)
        z1, z2 = vectors(twin, batch)
        z2 = torch.stack([row / (row * row).sum().sqrt() for row in z2])
        remembered = [*remembered, *z2.detach()][-12:]
        found = naive_smoothed(z1, z2, remembered, 3, fields.get("smoothing_temperature", 2.0))
        alpha = 0.7
        if fields:
            alpha = 0.7 + (0.005 - 0.7) * math.cos(math.pi / 2 * step / 4)
        expected = alpha * naive.info_nce(z1, torch.stack(found), 0.2)
        model.zero_grad()
        output = model(**batch)
        if step < 2:
            assert output.loss_dict["smoothing"] == 0
            assert output.metrics["smoothing_cosine"] == 0
            moved(model)
            continue
        torch.testing.assert_close(output.loss_dict["smoothing"].double(), expected, rtol=1e-5, atol=1e-6)
        same_gradients(model, twin, output.loss, expected + naive.info_nce(z1, z2, 0.2))
        moved(model)


def test_without_weight_the_ramp_has_no_start(checkpoint, batch_of):
    """The preset iscse-bert-large says that its part is turned off by --smoothing_weight 0."""
    model = model_of(checkpoint, smoothing_weight=0.0, smoothing_ramp_steps=9)
    batch = batch_of(model)
    assert not any("smoothing" in model(**batch).loss_dict for _ in range(4))
    assert model.objectives["smoothing"].count == 0


def test_neighbours_are_those_of_the_memory_and_not_the_sentence_itself(checkpoint):
    objective = model_of(checkpoint, smoothing_neighbors=1, smoothing_size=4).objectives["smoothing"]
    memory = torch.nn.functional.normalize(torch.tensor([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0], [0.1, 1.0]]), dim=-1)
    nearest, cosine = objective.nearest(memory[2:], memory)
    assert torch.equal(nearest[:, 0], memory[:2])
    assert cosine.min() < 1


def test_scoring_a_batch_remembers_nothing_and_a_checkpoint_holds_the_memory(checkpoint, batch_of, tmp_path):
    model = model_of(checkpoint)
    batch = batch_of(model)
    model.eval()(**batch)
    with torch.no_grad():
        model.train()(**batch)
    assert model.objectives["smoothing"].count == 0
    for _ in range(3):
        model(**batch)
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path)
    for name, buffer in model.objectives["smoothing"].named_buffers():
        assert torch.equal(again.objectives["smoothing"].get_buffer(name).double(), buffer.double()), name
    assert again.objectives["smoothing"].count == 12


def test_a_size_of_matryoshka_reads_the_same_memory_and_keeps_nothing_of_its_own(checkpoint, batch_of, naive):
    model = model_of(checkpoint, matryoshka_dims=[6], projector="none")
    batch = batch_of(model)
    for _ in range(2):
        model(**batch)
    twin = copy.deepcopy(model)
    output = model(**batch)
    assert model.objectives["smoothing"].batches == 3
    z1, z2 = vectors(twin, batch)
    memory, expected = [*twin.objectives["smoothing"].memory_MH, *z2][-12:], 0.0
    for size in (6, 16):
        unit = [vector[:size] / (vector[:size] ** 2).sum().sqrt() for vector in memory]
        found = naive_smoothed(z1[:, :size], torch.stack(unit[-5:]), unit, 3, 2.0)
        expected = expected + 0.7 * naive.info_nce(z1[:, :size], torch.stack(found), 0.2)
    torch.testing.assert_close(output.loss_dict["smoothing"].double(), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"smoothing_size": 1}, "smoothing_size must be a number of at least 2, got 1"),
        ({"smoothing_neighbors": 0}, "smoothing_neighbors must be a number of at least 1, got 0"),
        (
            {"smoothing_neighbors": 9, "smoothing_size": 9},
            "smoothing_neighbors must be below smoothing_size, 9, .* got 9",
        ),
        ({"smoothing_size": 3}, "smoothing_neighbors must be below smoothing_size, 3, .* got 3"),
        ({"smoothing_temperature": 0.0}, "smoothing_temperature must be a number greater than 0, got 0.0"),
        ({"smoothing_start": -0.1}, "smoothing_start must be a number of at least 0, got -0.1"),
        ({"smoothing_ramp_steps": -1}, "smoothing_ramp_steps must be a number of at least 0, got -1"),
        ({"matryoshka_dims": [4]}, "with matryoshka_dims and the objective 'smoothing', which holds projected"),
    ],
)
def test_values_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words):
        model_of(checkpoint, **fields)
