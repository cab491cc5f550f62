"""What the geometry of the dev set looks like in the log, and what it must not change."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csekit.trainers import CSETrainer
from csekit.trainers.run_record import history

SmallRun = Callable[..., CSETrainer]
NAMES = {"geometry/alignment", "geometry/uniformity", "geometry/mean_cosine", "geometry/effective_rank"}


class Counting(CSETrainer):
    """Counts the texts that are encoded."""

    texts = 0

    def embed(self, texts: list[str]) -> Any:
        self.texts += len(texts)
        return super().embed(texts)


def traces(trainer: CSETrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "geometry/alignment" in entry]


def naive(trainer: CSETrainer, threshold: float) -> dict[str, float]:
    """The formulas with loops, in float64, from embeddings made anew."""
    dev = trainer.dev
    assert dev is not None
    distinct = sorted({*dev.sentences1, *dev.sentences2})
    rows = dict(zip(distinct, np.asarray(trainer.embed(distinct), dtype=np.float64), strict=True))
    unit = {text: row / math.sqrt(sum(v * v for v in row)) for text, row in rows.items()}
    triples = zip(dev.sentences1, dev.sentences2, dev.scores, strict=True)
    near = [sum((unit[a] - unit[b]) ** 2) for a, b, score in triples if score > threshold]
    pairs = [(unit[a], unit[b]) for a in distinct for b in distinct if a != b]
    shares = np.linalg.svd(np.stack(list(rows.values())), compute_uv=False)
    shares = shares / shares.sum()
    return {
        "geometry/alignment": sum(near) / len(near),
        "geometry/uniformity": math.log(sum(math.exp(-2 * sum((a - b) ** 2)) for a, b in pairs) / len(pairs)),
        "geometry/mean_cosine": sum(float(a @ b) for a, b in pairs) / len(pairs),
        "geometry/effective_rank": math.exp(-sum(share * math.log(share) for share in shares)),
    }


def test_the_log_holds_the_geometry_of_every_evaluation(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(
        tmp_path / "run", dev=True, geometry=True, geometry_threshold=3.0, load_best_model_at_end=False, max_steps=6
    )
    trainer.train()
    found = traces(trainer)
    assert [entry["step"] for entry in found] == [4, 6]
    expected = naive(trainer, 3.0)  # the weights are still those of the last evaluation
    assert {name: found[-1][name] for name in NAMES} == pytest.approx(expected, abs=1e-6)
    assert found[0]["geometry/uniformity"] != found[1]["geometry/uniformity"]
    evaluations, log = history(trainer)
    assert [row["step"] for row in evaluations] == [4, 6]
    assert all(row.keys() >= NAMES | {"dev_spearman", "uniformity"} for row in evaluations)
    assert evaluations[-1]["geometry/alignment"] == found[-1]["geometry/alignment"]
    assert not any(NAMES & row.keys() for row in log)


def test_it_encodes_nothing_and_changes_nothing_else(small_run: SmallRun, tmp_path: Path) -> None:
    ends, logs, counts, drawn = [], [], [], []
    for geometry in (False, True):
        folder = tmp_path / str(geometry)
        folder.mkdir()
        trainer = small_run(folder / "run", dev=True, geometry=geometry, kind=Counting, max_steps=8)
        torch.manual_seed(3)
        trainer.train()
        drawn.append((torch.rand(3).tolist(), np.random.rand(3).tolist()))
        ends.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        rows = [e for e in trainer.state.log_history if not NAMES & e.keys() and "train_runtime" not in e]
        logs.append(rows)
        counts.append(trainer.texts)
        assert bool(traces(trainer)) is geometry
    assert drawn[0] == drawn[1]
    assert logs[0] == logs[1]
    assert counts[0] == counts[1]
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())


def test_the_first_evaluation_can_stand_before_training(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", dev=True, geometry=True, eval_on_start=True, max_steps=4)
    trainer.train()
    assert [entry["step"] for entry in traces(trainer)] == [0, 4]


@pytest.mark.parametrize(
    ("dev", "options", "message"),
    [
        (False, {}, "geometry needs a dev set of scored pairs, got none"),
        (True, {"geometry_threshold": 5.0}, r"geometry_threshold must leave pairs above it, got 5: the highest score"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    small_run: SmallRun, tmp_path: Path, dev: bool, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small_run(tmp_path / "run", dev=dev, geometry=True, **options)
