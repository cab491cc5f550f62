"""What commands used to answer with a traceback, or only after their work: one line each, at once."""

import copy
import json
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation.results import write_results

RESULTS: dict[str, Any] = {
    "name": "run",
    "method": "simcse",
    "backbone": "tiny-bert",
    "seed": 1,
    "corpus": {"name": "texts.txt", "used": 30},
    "config": {"pooling": "cls"},
    "arguments": {"learning_rate": 0.001},
    "dev": {"metric": "dev_spearman", "best": 50.0, "step": 4, "after": {"dev_spearman": 50.0}, "history": []},
    "before": None,
    "test": {"tasks": {"STS12": {"all": 50.0}}, "avg": 50.0, "text_form": "raw"},
    "transfer": {"tasks": {"MR": {"accuracy": 70.0}}, "avg": 70.0, "mode": "test"},
    "retrieval": {"scifact": {"metrics": {"ndcg@10": 30.0}, "queries": 3, "documents": 9}},
    "classification": {"banking77": {"accuracy": 60.0}},
    "clustering": {"set": "titles", "titles": 9, "clusters": 3, "v_measure": 30.0, "accuracy": 40.0},
    "log": [{"step": 2, "loss": 1.5}],
    "seconds": {"train": 2.0},
    "overlap": {"rows": 1, "filtered": False, "sets": {"STS12": {"sentences": 1}}},
    "run": {"encoder": {"pooling": "cls"}},
    "imports": [],
}
WRONG: list[tuple[str, Any]] = [
    ("name", 3),
    ("method", ["simcse"]),
    ("backbone", {}),
    ("seed", "one"),
    ("corpus", "texts.txt"),
    ("corpus.used", "many"),
    ("config", []),
    ("config.pooling", 1),
    ("arguments", []),
    ("dev", 5),
    ("dev.best", "high"),
    ("dev.step", 1.5),
    ("dev.after", [1]),
    ("dev.after.dev_spearman", "50"),
    ("dev.history", {"step": 1}),
    ("dev.history", [3]),
    ("before", 3),
    ("test", []),
    ("test.tasks", [1]),
    ("test.tasks.STS12", 50.0),
    ("test.tasks.STS12.all", "50"),
    ("test.tasks.STS12.all", True),
    ("test.avg", float("inf")),
    ("test.avg", 10**400),
    ("test.text_form", 3),
    ("transfer", "good"),
    ("transfer.tasks.MR.accuracy", "x"),
    ("retrieval", []),
    ("retrieval.scifact.metrics", 3),
    ("retrieval.scifact.metrics", {"ndcg@ten": 3.0}),
    ("classification.banking77", None),
    ("clustering.v_measure", None),
    ("log", {"step": 1}),
    ("log", ["step"]),
    ("log", [{"loss": 1.0}]),
    ("seconds", 3),
    ("seconds.train", "long"),
    ("overlap", True),
    ("overlap.sets", 3),
    ("run.encoder", {"pooling": []}),
    ("imports", "os"),
    ("similarities", {"file": "../other.npz", "sha256": "0"}),
]


def run(*words: object, typed: str | None = None) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words], input=typed, env={"CSEKIT_DATA": None})


def told(found: Any) -> str:
    """Return the one line of an error."""
    assert found.exit_code == 2, (found.output, found.exception)
    assert found.output.startswith("error: "), found.output
    assert found.output.count("\n") == 1, found.output
    return str(found.output)


def with_field(place: str, value: Any) -> dict[str, Any]:
    content = {"format": 1, **copy.deepcopy(RESULTS)}
    holder: Any = content
    *outer, last = place.split(".")
    for name in outer:
        holder = holder[name]
    holder[last] = value
    return content


@pytest.mark.parametrize(("place", "value"), WRONG)
def test_results_of_a_wrong_type(tmp_path: Path, place: str, value: Any) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(with_field(place, value)))
    for words in (["report", file, "-o", tmp_path / "a.html"], ["card", file, "-o", tmp_path / "a.md"]):
        assert f"run.json: {place}" in told(run(*words))
    assert "run.json: " in told(run("compare", file, file))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.parametrize("depth", [150, 100_000])
def test_deep_results(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"format": 1, "a": ' + "[" * depth + "]" * depth + "}")
    assert "run.json: not a JSON file: nested more than 100 levels deep" in told(run("report", file))


def test_a_card_needs_the_fields_of_a_run(tmp_path: Path) -> None:
    for name in ("seed", "backbone", "arguments", "corpus"):
        content = {"format": 1, **RESULTS}
        del content[name]
        (tmp_path / "run.json").write_text(json.dumps(content))
        line = told(run("card", tmp_path / "run.json", "-o", tmp_path / "a.md"))
        assert f"run.json: {name} is missing" in line


def test_damaged_similarities(tmp_path: Path) -> None:
    """The checksum is right, the file is none."""
    import hashlib

    path = write_results(tmp_path / "a.json", {"name": "a"}, {"STS12": (np.arange(4.0), np.arange(4.0))})
    (tmp_path / "a.similarities.npz").write_bytes(b"PK not an archive")
    content = json.loads(path.read_text())
    content["similarities"]["sha256"] = hashlib.sha256(b"PK not an archive").hexdigest()
    path.write_text(json.dumps(content))
    assert "a.similarities.npz: holds no similarities" in told(run("compare", path, path))


# csekit encode


@pytest.fixture
def encode(tmp_path: Path, tiny_folder: Path) -> Callable[..., Any]:
    (tmp_path / "texts.txt").write_text("a dog\na cat\nthe man\n" * 40)
    words = ["encode", tmp_path / "texts.txt", "--model", tiny_folder, "--pooling", "mean", "--no_progress"]
    return lambda *more: run(*words, "-o", tmp_path / "out.npy", *more)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "meta", "cpu:3", "", "cuda:x"])
def test_a_device_that_is_not_there(encode: Callable[..., Any], tmp_path: Path, device: str) -> None:
    assert f"device must be cpu, cuda or cuda:1 and be there, got {device!r}" in told(encode("--device", device))
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("settings"), "settings is missing"),
        (lambda record: record.update(settings=[]), "settings must be an object, got []"),
        (lambda record: record["settings"].pop("shard"), "settings.shard is missing"),
        (lambda record: record.update(done="all"), "done must be a whole number, got 'all'"),
        (lambda record: record.update(done=-1), "done"),
        (lambda record: record.update(done=10**9), "done must fit the shard of 120 rows, got 1000000000"),
        (lambda record: record.update(complete="yes"), "complete must be true or false, got 'yes'"),
    ],
)
def test_a_record_that_is_none(
    encode: Callable[..., Any], tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    assert encode("--device", "cpu").exit_code == 0
    path = tmp_path / "out.npy.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    assert f"out.npy.json: {message}" in told(encode("--device", "cpu"))


def test_a_finished_output_that_was_deleted(encode: Callable[..., Any], tmp_path: Path) -> None:
    """The record alone used to be enough for exit code 0."""
    assert encode("--device", "cpu").exit_code == 0
    (tmp_path / "out.npy").unlink()
    assert "out.npy: missing, out.npy.json says that it is complete" in told(encode("--device", "cpu"))


@pytest.mark.slow
def test_a_worker_that_is_killed(encode: Callable[..., Any]) -> None:
    own, stop = psutil.Process(), threading.Event()

    def kill() -> None:
        while not stop.wait(0.05):
            for child in own.children():
                if "spawn_main" in " ".join(child.cmdline()) and child.memory_info().rss > 300e6:  # torch is imported
                    os.kill(child.pid, signal.SIGKILL)
                    return

    before = time.monotonic()
    killer = threading.Thread(target=kill)
    killer.start()
    found = encode("--device", "cpu", "--num_workers", "2", "--chunk_rows", "1")
    stop.set()
    killer.join()
    assert "a worker process died" in told(found)
    assert time.monotonic() - before < 120


# Outputs that cannot be written


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["encode", "TEXTS", "--model", "MODEL", "-o"], "file/out.npy"),
        (["encode", "TEXTS", "--model", "MODEL", "-o"], "folder.npy"),
        (["encode", "TEXTS", "--model", "MODEL", "-o"], "file.parquet"),
        (["eval", "MODEL", "--pairs", "PAIRS", "--output"], "file/a.json"),
        (["eval", "MODEL", "--pairs", "PAIRS", "--output"], "folder.json"),
        (["eval", "MODEL", "--pairs", "PAIRS", "--output"], "beside.json"),
        (["figures", "--results", "DATA", "--output"], "file"),
        (["convert", "MODEL", "--backbone", "MODEL", "-o"], "file/out"),
        (["report", "MODEL", "-o"], "file/a.html"),
        (["neighbors", "MODEL", "MODEL", "--corpus", "TEXTS", "-o"], "file/a.tsv"),
        (["label", "TEXTS", "--model", "MODEL", "-o"], "folder.tsv"),
        (["geometry", "MODEL", "--data_dir", "DATA", "--output"], "file/a.json"),
        (["card", "MODEL", "-o"], "file/README.md"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, no_encoder: None, words: list[str], output: str
) -> None:
    monkeypatch.setattr("csekit.evaluation.sts_data.load_sts", None)
    (tmp_path / "texts.txt").write_text("a dog\na cat\nthe man\n")
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\ne\tf\t3\n")
    for name in ("file", "file.parquet"):
        (tmp_path / name).touch()
    for name in ("folder.npy", "folder.json", "folder.tsv", "beside.similarities.npz"):
        (tmp_path / name).mkdir()
    given = {"TEXTS": "texts.txt", "MODEL": tiny_folder, "PAIRS": "pairs.tsv", "DATA": tmp_path}
    found = run(*(tmp_path / given.get(word, word) if word.isupper() else word for word in words), tmp_path / output)
    line = told(found)
    assert Path(output).stem in line
    assert "cannot be written" in line or "must be a f" in line


def test_a_full_disk_of_the_cache_of_datasets(tmp_path: Path, tiny_folder: Path, monkeypatch: Any) -> None:
    """It was told as a file that is not readable as parquet."""
    texts = [f"the dog {'runs ' * 40}{i}" for i in range(2000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "texts.parquet")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        found = run("check", tmp_path / "texts.parquet", "--model", tiny_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cache: no space left on the disk" in told(found)


@pytest.mark.parametrize("output", ["out.npy", "pairs.csv", "pairs.jsonl"])
def test_a_full_disk_under_an_output_names_path_and_space(tmp_path: Path, tiny_folder: Path, output: str) -> None:
    """Regression: the line was the system's, "No space left on device", without a path."""
    texts, documents = tmp_path / "texts.txt", tmp_path / "documents.jsonl"
    texts.write_text("a dog\n" * 500)
    documents.write_text(json.dumps({"text": "the red dog runs\n" * 2000}) + "\n")
    encode = ("encode", texts, "--model", tiny_folder, "--pooling", "mean", "--device", "cpu", "--no_progress")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        found = run(*(encode if output == "out.npy" else ("pairs", documents)), "-o", tmp_path / output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.search(rf"{output}: no space left on the disk, [\d,.]+ MB free", told(found))
    assert not (tmp_path / output).exists()
    if output == "out.npy":  # the same command goes on
        assert run(*encode, "-o", tmp_path / output).exit_code == 0
        assert np.load(tmp_path / output).any(axis=1).all()


def test_a_full_disk_under_any_file_of_a_static_encoder(tmp_path: Path, tiny_folder: Path) -> None:
    """Regression: a tokenizer that found no room ended in a traceback, also under csekit export and a training."""
    words = ("distill-static", tiny_folder, "--pooling", "mean", "--dims", 16, "--no_progress", "-o", tmp_path / "out")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (10, 600, 1200, 3000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            found = run(*words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert re.search(r"no space left on the disk, [\d,.]+ MB free", told(found))
    assert run(*words).exit_code == 0


# The files of a model's folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "[" * 5000 + "]" * 5000),
        ("modules.json", '[{"type": 3, "path": ""}]'),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}'),
        ("config_sentence_transformers.json", '{"prompts": {"query": 3}}'),
        ("sentence_bert_config.json", '{"max_seq_length": "long"}'),
        ("sentence_bert_config.json", '{"max_seq_length": -1}'),
        ("1_Pooling/config.json", '{"pooling_mode": {"a": 1}}'),
    ],
)
def test_small_files_of_a_model(tmp_path: Path, tiny_folder: Path, name: str, content: str) -> None:
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (tiny_folder / "1_Pooling").mkdir()
    (tiny_folder / "modules.json").write_text(json.dumps(modules))
    (tiny_folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (tiny_folder / name).write_text(content)
    (tmp_path / "texts.txt").write_text("a dog\na cat\nthe man\n")
    words = ["encode", tmp_path / "texts.txt", "--model", tiny_folder, "-o", tmp_path / "out.npy", "--no_progress"]
    assert f"tiny-bert/{name}" in told(run(*words))
