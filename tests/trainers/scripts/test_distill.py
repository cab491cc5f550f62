"""``csekit distill``: a student gets the vectors of its teacher, from sentences and from parallel text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import TrainerCallback
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder

FEW = ("--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--learning_rate", "0.02",
       "--per_device_train_batch_size", "16", "--label_free_samples", "0", "--max_seq_length", "24")  # fmt: skip


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def distill(*words: str | Path) -> Any:
    return CliRunner().invoke(main, ["distill", *map(str, words)])


@pytest.fixture
def texts(small: Any, tmp_path: Path) -> Path:
    return small.write_texts(tmp_path / "texts.txt", 60)


def test_a_student_of_one_layer_moves_to_a_teacher_of_another_size(
    small_backbone: Path, texts: Path, tmp_path: Path
) -> None:
    """The teacher is a file here: the vectors of an encoder, in 20 dimensions."""
    sentences = texts.read_text().splitlines()
    own = load_encoder(small_backbone, "mean", device="cpu").encode(sentences)
    wanted = own @ np.random.default_rng(0).normal(size=(32, 20)).astype(np.float32) / 6
    np.save(tmp_path / "teacher.npy", wanted)
    output = tmp_path / "student"
    words = ("--teachers", tmp_path / "teacher.npy", "--model_name_or_path", small_backbone, "--layers", 0)
    words += ("--train_file", texts, "--output_dir", output, "--max_steps", 24, *FEW)
    found = distill(*words)
    assert found.exit_code == 0, found.output
    student = load_encoder(output, device="cpu").encode(sentences)
    assert student.shape == (60, 20)
    assert np.square(student - wanted).mean() < 0.2 * np.square(wanted).mean()
    results = json.loads((output / "results.json").read_text())
    assert results["config"]["projector_size"] == 20
    assert json.loads((output / "config.json").read_text())["num_hidden_layers"] == 1
    assert "`teachers`: ['teacher.npy']" in (output / "README.md").read_text()


@pytest.mark.slow
def test_parallel_text_brings_a_translation_to_its_sentence(small: Any, small_backbone: Path, tmp_path: Path) -> None:
    pairs = small.write_texts(tmp_path / "pairs.tsv", 40, 2)
    output = tmp_path / "student"
    words = ("--teachers", f"{small_backbone}:mean", "--model_name_or_path", small_backbone, "--train_file", pairs)
    found = distill(*words, "--output_dir", output, "--max_steps", 24, *FEW)
    assert found.exit_code == 0, found.output
    rows = [line.split("\t") for line in pairs.read_text().splitlines()[1:]]
    teacher = load_encoder(small_backbone, "mean", device="cpu")
    student = load_encoder(output, device="cpu")
    vectors = teacher.encode([first for first, _ in rows])
    before, after = (np.square(e.encode([second for _, second in rows]) - vectors).mean() for e in (teacher, student))
    assert after < 0.5 * before
    assert student.encode(["a"]).shape == (1, 32)


def test_a_killed_distillation_is_resumed(small_run: Callable[..., Any], small_backbone: Path, tmp_path: Path) -> None:
    fields = {"objectives": ["distill"], "contrastive_weight": 0.0, "projector": "none"}
    options = {"method": "joint", "fields": fields, "teachers": [f"{small_backbone}:mean"], "eval_steps": 2}
    whole = small_run(tmp_path / "whole", max_steps=4, **options)
    whole.train()
    stopped = small_run(tmp_path / "part", max_steps=4, **options)
    stopped.add_callback(StopAt(2))
    stopped.train()
    resumed = small_run(tmp_path / "part", max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--teachers must name one teacher, got none"),
        (("--teachers", "a", "b"), "--teachers must name one teacher, got a b"),
        (
            ("--teachers", "{wide}", "--projector", "none"),
            "teachers must have vectors of 32 dimensions with 'distill'",
        ),
    ],
)
def test_what_is_refused(
    small_backbone: Path, texts: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    np.save(tmp_path / "wide.npy", np.ones((60, 48), dtype=np.float32))
    given = [word.format(wide=tmp_path / "wide.npy") for word in words]
    found = distill(
        "--model_name_or_path", small_backbone, "--train_file", texts, "--output_dir", tmp_path / "run", *FEW, *given
    )
    assert found.exit_code == 2
    assert message in found.output


@pytest.mark.parametrize("kind", ["empty", "text", "number"])
def test_a_file_without_vectors_is_told_by_its_name(
    texts: Path, small_backbone: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "teacher.npy"
    file.write_bytes(b"" if kind == "empty" else b"hello")
    if kind == "number":
        np.save(file, np.float32(3))
    words = ("--teachers", file, "--model_name_or_path", small_backbone, "--train_file", texts)
    found = distill(*words, "--output_dir", tmp_path / "run", *FEW)
    assert found.exit_code == 2
    assert f"error: {file}: " in found.output


def test_overwrite_replaces_the_teachers_vectors_too(
    small: Any, small_backbone: Path, texts: Path, tmp_path: Path
) -> None:
    """Before, the old run's checkpoints were deleted, and then its teachers' vectors were refused."""
    other = small.write_texts(tmp_path / "other.txt", 50)
    words = ("--teachers", f"{small_backbone}:mean", "--model_name_or_path", small_backbone, "--max_steps", 2, *FEW)
    words += ("--projector", "none", "--output_dir", tmp_path / "run")
    assert distill(*words, "--train_file", texts).exit_code == 0
    refused = distill(*words, "--train_file", other)
    assert refused.exit_code == 2 and "already holds a run" in " ".join(refused.output.split())
    found = distill(*words, "--train_file", other, "--overwrite")
    assert found.exit_code == 0, found.output
    kept = tmp_path / "run" / "teachers" / "0.npy"
    assert np.load(kept).shape == (50, 32)
    words = ("--teachers", kept, *words[2:])  # its own vectors, which must stay
    assert distill(*words, "--train_file", other, "--overwrite").exit_code == 0
    assert kept.is_file()


def test_another_file_of_vectors_is_not_resumed_with(
    small_run: Callable[..., Any], small_backbone: Path, tmp_path: Path
) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    np.save(tmp_path / "vec.npy", vectors)
    fields = {"objectives": ["distill"], "contrastive_weight": 0.0, "projector": "none"}
    options = {"method": "joint", "fields": fields, "teachers": [str(tmp_path / "vec.npy")], "eval_steps": 2}
    stopped = small_run(tmp_path / "run", max_steps=4, **options)
    stopped.add_callback(StopAt(2))
    stopped.train()
    np.save(tmp_path / "vec.npy", vectors[::-1])
    with pytest.raises(ValueError, match="teachers"):
        small_run(tmp_path / "run", max_steps=4, **options).train(resume_from_checkpoint=True)
    np.save(tmp_path / "vec.npy", vectors)
    resumed = small_run(tmp_path / "run", max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
