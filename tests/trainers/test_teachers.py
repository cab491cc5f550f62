"""The vectors of frozen teachers: encoded once, matched to their rows, and refused if they do not fit."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

from csekit.encoding import load_encoder
from csekit.trainers import Corpus, load_corpus
from csekit.trainers.data import teachers
from csekit.trainers.data.teachers import Teachers

FIELDS = {"objectives": ["consistency", "rank"]}


def vectors_of(corpus: Corpus, names: list[str], folder: Path) -> list[np.ndarray]:
    return Teachers(corpus, names, folder).vectors(progress=False)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_every_batch_holds_the_vectors_of_its_rows(small_run: Any, small_backbone: Path, tmp_path: Path) -> None:
    trainer = small_run(
        tmp_path / "run", method="joint", fields=FIELDS, teachers=[f"{small_backbone}:mean"], max_steps=2
    )
    expected = load_encoder(small_backbone, "mean").encode(lines(tmp_path / "texts.txt"))
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    np.testing.assert_allclose(batch["teacher_0"].numpy(), expected[batch["index"].numpy()], atol=1e-6)
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(
        entry["loss/contrastive"] + entry["loss/consistency"] + entry["loss/rank"], abs=1e-4
    )
    assert -1 <= entry["metrics/rank_agreement"] <= 1


def test_a_warm_up_of_the_objectives_takes_the_vectors_of_the_run(
    small_run: Any, small_backbone: Path, tmp_path: Path
) -> None:
    """Regression: it encoded the corpus a second time, into a folder of its own that stayed."""
    fields = FIELDS | {"objectives": [*FIELDS["objectives"], "icm"], "icm_weight": 1.0}
    teachers = [f"{small_backbone}:mean"]
    trainer = small_run(
        tmp_path / "run", method="joint", fields=fields, teachers=teachers, max_steps=2, objective_warmup_steps=2
    )
    trainer.train()
    assert [path.parent for path in (tmp_path / "run").rglob("*.npy")] == [tmp_path / "run" / "teachers"]


def test_two_teachers_one_of_them_from_a_file(small_run: Any, small_backbone: Path, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float16)
    np.save(tmp_path / "mine.npy", vectors)
    trainer = small_run(
        tmp_path / "run",
        method="joint",
        fields=FIELDS | {"rank_teachers": 2},
        teachers=[f"{small_backbone}:cls", str(tmp_path / "mine.npy")],
    )
    trainer.data_collator.teachers = trainer.teachers.vectors()
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["teacher_1"].dtype == torch.float32
    np.testing.assert_array_equal(batch["teacher_1"].numpy(), vectors[batch["index"].numpy()].astype(np.float32))


def test_a_second_teacher_that_no_distillation_reads_may_have_another_size(small_run: Any, tmp_path: Path) -> None:
    for name, size in (("first", 32), ("second", 48)):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(size).normal(size=(40, size)).astype(np.float32))
    fields = {"objectives": ["distill", "guided"], "guided_teacher": 1, "projector": "none"}
    given = {"teachers": [str(tmp_path / "first.npy"), str(tmp_path / "second.npy")], "max_steps": 2}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, **given)
    trainer.train()
    assert trainer.state.global_step == 2
    with pytest.raises(ValueError, match=r"must have vectors of 32 dimensions with 'distill', .*second.npy has 48"):
        small_run(tmp_path / "other", method="joint", fields=fields, **given | {"teachers": given["teachers"][::-1]})


def test_hard_negatives_are_no_translations(small_run: Any, tmp_path: Path) -> None:
    """All texts of a row get one vector, which contradicts a contrast with the third column."""
    np.save(tmp_path / "t.npy", np.ones((40, 32), dtype=np.float32))
    fields = {"objectives": ["distill"], "projector": "none"}
    given = {"method": "joint", "columns": 3, "teachers": [str(tmp_path / "t.npy")]}
    with pytest.raises(
        ValueError, match="'distill' gives every text of a row the same vector, and the contrast takes"
    ):
        small_run(tmp_path / "run", fields=fields, **given)
    small_run(tmp_path / "run", fields=fields | {"contrastive_weight": 0.0}, **given)


def test_vectors_are_computed_once_and_continued(
    small: Any, small_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "CHUNK", 16)
    corpus = load_corpus(small.write_texts(tmp_path / "texts.txt", 40), cache_dir=tmp_path / "cache")
    name, folder = f"{small_backbone}:cls", tmp_path / "teachers"
    (whole,) = vectors_of(corpus, [name], tmp_path / "other")

    class KilledError(Exception):
        pass

    written = 0

    def killed_after_one_chunk(path: Path, record: dict[str, Any]) -> None:
        nonlocal written
        teachers_write(path, record)
        written += 1
        if written == 2:
            raise KilledError

    teachers_write = teachers.write_record
    with monkeypatch.context() as patch:
        patch.setattr(teachers, "write_record", killed_after_one_chunk)
        with pytest.raises(KilledError):
            vectors_of(corpus, [name], folder)
    record = folder / "0.npy.json"
    assert json.loads(record.read_text(encoding="utf-8"))["done"] == 16
    encoded: list[int] = []
    monkeypatch.setattr(
        teachers,
        "chunks",
        lambda corpus, start=0, columns=1, real=teachers.chunks: (encoded.append(start), real(corpus, start))[1],
    )
    (found,) = vectors_of(corpus, [name], folder)
    assert max(encoded) == 16
    np.testing.assert_allclose(found, whole, atol=1e-6)
    before = (folder / "0.npy").stat().st_mtime_ns
    vectors_of(corpus, [name], folder)
    assert (folder / "0.npy").stat().st_mtime_ns == before
    (tmp_path / "other").mkdir(exist_ok=True)
    other = load_corpus(small.write_texts(tmp_path / "other" / "texts.txt", 41), cache_dir=tmp_path / "cache")
    with pytest.raises(ValueError, match=r"input\.rows was 40 there and is 41 now"):
        vectors_of(other, [name], folder)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((39, 4), np.float32), "for each of the corpus's 40 rows, got an array of shape (39, 4)"),
        (np.zeros((40, 4), np.int64), "vector of floating-point numbers"),
        (np.full((40, 4), np.nan, np.float32), "row 0 has values that are not finite"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(small_run: Any, tmp_path: Path, array: np.ndarray, words: str) -> None:
    np.save(tmp_path / "mine.npy", array)
    with pytest.raises(ValueError, match=re.escape(words)):
        small_run(tmp_path / "run", method="joint", fields=FIELDS, teachers=[str(tmp_path / "mine.npy")])


def test_the_number_of_teachers_is_that_of_the_objective(small_run: Any, small_backbone: Path, tmp_path: Path) -> None:
    for fields, names in ((FIELDS, None), ({"objectives": []}, [str(small_backbone)])):
        with pytest.raises(ValueError, match=r"teachers must name as many encoders as the objectives read, \d, got"):
            small_run(tmp_path / "run", method="joint", fields=fields, teachers=names)
    with pytest.raises(ValueError, match="teachers must be left out with streaming"):
        small_run(
            tmp_path / "run",
            method="joint",
            fields=FIELDS,
            teachers=[str(small_backbone)],
            streaming=True,
            max_steps=2,
        )


def test_references_are_rows_of_the_corpus_by_the_teacher(
    small_run: Any, small_backbone: Path, tmp_path: Path
) -> None:
    fields = {"objectives": ["rank"], "rank_loss": "mse", "rank_low": -1.0, "rank_references": 10}
    options = {"method": "joint", "teachers": [f"{small_backbone}:mean"], "max_steps": 2}
    trainer = small_run(tmp_path / "run", fields=fields, **options)
    trainer.train()
    texts = lines(tmp_path / "texts.txt")
    chosen = [texts[place * len(texts) // 10] for place in range(10)]
    expected = torch.nn.functional.normalize(torch.tensor(load_encoder(small_backbone, "mean").encode(chosen)))
    (found,) = trainer.model.objectives["rank"].reference_vectors
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=0)
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss/rank"] > 0
    with pytest.raises(ValueError, match=r"^rank_references must be at most the corpus's rows, 40, got 41"):
        small_run(tmp_path / "more", fields=fields | {"rank_references": 41}, **options)


def test_margins_of_an_earlier_tokenizer_are_not_taken(small: Any, small_backbone: Path, tmp_path: Path) -> None:
    """Regression: a cross-encoder whose tokenizer was changed had the margins of the earlier one."""
    config = AutoConfig.from_pretrained(small_backbone, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "cross")
    tokenizer = AutoTokenizer.from_pretrained(small_backbone)
    tokenizer.save_pretrained(tmp_path / "cross")
    texts = small.write_texts(tmp_path / "texts.tsv", 40, 3)
    corpus = load_corpus(texts, cache_dir=tmp_path / "cache")

    def margins() -> np.ndarray:
        return Teachers(corpus, [str(tmp_path / "cross")], tmp_path / "teachers", margins=True).vectors(False)[0]

    first = np.array(margins())
    np.testing.assert_array_equal(margins(), first)
    vocabulary = tokenizer.get_vocab()
    swapped = {"dog": vocabulary["cat"], "cat": vocabulary["dog"]}
    BertTokenizer(vocab=vocabulary | swapped, model_max_length=32).save_pretrained(tmp_path / "cross")
    with pytest.raises(ValueError, match=r"encoder\.tokenizer was .* there and is"):
        margins()
