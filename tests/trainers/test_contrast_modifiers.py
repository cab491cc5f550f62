"""Guides, noise and queues in training: vectors of every column, the log, a resumed run, what is refused."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csekit.encoding import load_encoder
from csekit.trainers import load_corpus
from csekit.trainers.data import teachers
from csekit.trainers.data.teachers import Teachers

ALL = {"objectives": ["guided", "noise", "queue"], "guided_threshold": 0.5, "queue_size": 20, "noise_step_size": 0.1}


def columns_of(path: Path) -> list[list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [list(column) for column in zip(*rows, strict=True)]


def test_a_guide_has_a_vector_for_every_text_of_a_pair(small_run: Any, small_backbone: Path, tmp_path: Path) -> None:
    trainer = small_run(
        tmp_path / "run",
        method="joint",
        columns=2,
        fields={"objectives": ["guided", "rank"], "guided_rule": "margin"},
        teachers=[f"{small_backbone}:mean"],
        max_steps=2,
    )
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    encoder = load_encoder(small_backbone, "mean")
    (texts,) = tmp_path.glob("*.tsv")
    for name, column in zip(("teacher_0", "teacher_0_1"), columns_of(texts), strict=True):
        expected = encoder.encode(column)[batch["index"].numpy()]
        np.testing.assert_allclose(batch[name].numpy(), expected, atol=1e-6)
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"] + entry["loss/rank"], abs=1e-4)
    assert 0 < entry["metrics/guided_left_out"] < 7


def test_vectors_of_pairs_are_continued_in_the_middle_of_a_row(
    small: Any, small_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = load_corpus(small.write_texts(tmp_path / "texts.tsv", 12, 2), cache_dir=tmp_path / "cache")
    (whole,) = Teachers(corpus, [f"{small_backbone}:cls"], tmp_path / "one", 2).vectors(progress=False)
    monkeypatch.setattr(teachers, "CHUNK", 5)
    (chunked,) = Teachers(corpus, [f"{small_backbone}:cls"], tmp_path / "two", 2).vectors(progress=False)
    assert whole.shape == (12, 2, 32)
    np.testing.assert_allclose(chunked, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((40, 4), "for each of the corpus's 40 rows and 2 columns, got an array of shape (40, 4)"),
        ((39, 2, 4), "for each of the corpus's 40 rows and 2 columns, got an array of shape (39, 2, 4)"),
        ((40, 3, 4), "for each of the corpus's 40 rows and 2 columns, got an array of shape (40, 3, 4)"),
    ],
)
def test_a_guide_without_a_vector_for_a_sentence_is_refused(
    small_run: Any, tmp_path: Path, shape: tuple[int, ...], words: str
) -> None:
    path = tmp_path / "guide.npy"
    np.save(path, np.ones(shape, np.float32))
    fields = {"guided_weight": 1.0}
    with pytest.raises(ValueError, match=re.escape(words)):
        small_run(tmp_path / "run", fields=fields, columns=2, teachers=[str(path)])
    with pytest.raises(ValueError, match="teachers must name as many encoders as the objectives read, 2, got"):
        small_run(tmp_path / "run", fields=fields | {"guided_teacher": 1}, columns=2, teachers=[str(path)])


@pytest.mark.slow
def test_a_resumed_run_has_the_queue_the_copy_and_the_noise_of_one_that_went_on(
    small_run: Any, small_backbone: Path, tmp_path: Path
) -> None:
    """Cached gradients and accumulated batches as well; the last checkpoint of the copied run is taken away."""
    options = {
        "method": "joint",
        "fields": ALL,
        "teachers": [f"{small_backbone}:cls"],
        "max_steps": 4,
        "eval_steps": 2,
        "logging_steps": 1,
        "label_free_samples": 0,
        "gradient_accumulation_steps": 2,
        "cache_chunk_size": 5,
    }
    straight = small_run(tmp_path / "run", **options)
    straight.train()
    expected = {name: value.clone() for name, value in straight.model.state_dict().items()}
    logs = [entry for entry in straight.state.log_history if "loss" in entry]
    shutil.rmtree(tmp_path / "run" / "training" / "checkpoint-4")
    resumed = small_run(tmp_path / "run", **options)
    resumed.train(resume_from_checkpoint=True)
    found = resumed.model.state_dict()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert [entry for entry in resumed.state.log_history if "loss" in entry] == logs
    assert found["objectives.queue.count"] == 20
    assert {"metrics/guided_left_out", "metrics/noise_cosine", "metrics/queue_cosine"} <= logs[-1].keys()
    assert logs[0]["metrics/queue_cosine"] != 0  # the second of two accumulated batches has a queue
    folder = resumed.save_run()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"`teachers`: ['{small_backbone.name}:cls']" in card
    assert "'name': 'queue', 'weight': 1.0, 'size': 20" in card
    exported = load_encoder(folder, "cls").encode(["the dog runs ."])
    np.testing.assert_allclose(exported, resumed.embed(["the dog runs ."]), atol=1e-5)
