"""examples/run_unsup.py from a text file to a folder that loads everywhere, and what it says when that cannot be."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from csekit.cli import main
from csekit.encoding import encode, load_encoder
from csekit.evaluation import transfer_data
from csekit.evaluation.pairs import read_pairs
from csekit.modeling import METHODS

ROOT = Path(__file__).parents[2]
RUN_UNSUP = ROOT / "examples" / "run_unsup.py"
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))
TEXTS = ["the man plays guitar .", "a red ball was in the house", "dog"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    small.write_texts(folder / "texts.txt", 60)
    small.write_pairs(folder / "dev.tsv")
    small.write_pairs(folder / "test.tsv", seed=2)
    return folder


def words(data: Path, output_dir: Path, **changes: Any) -> list[str]:
    """A command line of 8 steps; None takes an argument out."""
    arguments = {
        "model_name_or_path": data / "tiny-bert",
        "train_file": data / "texts.txt",
        "dev_file": data / "dev.tsv",
        "test_file": data / "test.tsv",
        "output_dir": output_dir,
        "per_device_train_batch_size": 8,
        "eval_steps": 4,
        "logging_steps": 2,
        "learning_rate": 1e-3,
        "use_cpu": True,
    } | changes
    return [str(word) for name, value in arguments.items() if value is not None for word in (f"--{name}", value)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, data: Path) -> Callable[..., int]:
    """The script's main in this process, with the arguments of ``words``."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(data / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", data / "cache")

    def start(output_dir: Path, *more: str, **changes: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["run_unsup.py", *words(data, output_dir, **changes), *more])
        try:
            return int(runpy.run_path(str(RUN_UNSUP))["main"]())
        except SystemExit as end:
            return int(end.code or 0)

    return start


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that was started as users start it, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "encoder"
    environment = {**os.environ, "HF_DATASETS_CACHE": str(data / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(RUN_UNSUP), *words(data, folder)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=data,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
def test_a_compiled_run_scores_dev_and_test_sets_of_many_tokens(
    run: Callable[..., int], data: Path, tmp_path: Path
) -> None:
    """Regression: the scores before training ran in compiled layers, which cannot hold encoding's linear layers."""
    small.write_pairs(tmp_path / "dev.tsv", rows=200)
    options = {"torch_compile": True, "dev_file": tmp_path / "dev.tsv"}
    assert run(tmp_path / "run", **options, test_file=tmp_path / "dev.tsv", max_steps=2, eval_steps=1) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["dev"]["after"]) == set(results["dev"]["before"])
    assert results["test"]["tasks"]


def test_a_run_leaves_what_it_promises(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling", "README.md"} <= names
    assert {"training", "results.json", "results.similarities.npz"} <= names
    training = {path.name for path in (folder / "training").iterdir()}
    assert {"checkpoint-8", "config.json", "model.safetensors", "trainer_state.json"} <= training
    assert "test Spearman" in printed
    assert str(folder) in printed
    assert "60 of 60 rows used" in printed


def test_the_results_hold_setting_scores_and_log(finished: tuple[Path, str], data: Path) -> None:
    results = json.loads((finished[0] / "results.json").read_text(encoding="utf-8"))
    expected = {"name", "method", "backbone", "corpus", "config", "arguments", "seed", "dev", "before", "test", "log"}
    expected |= {"environment", "seconds", "similarities", "format", "positives", "overlap"}
    assert expected == results.keys()
    assert results["positives"] == "dropout"
    assert set(results["overlap"]["sets"]) == {"dev", "test"}
    assert results["overlap"]["filtered"] is False
    assert (results["name"], results["method"], results["backbone"]) == ("encoder", "simcse", "tiny-bert")
    assert results["corpus"]["name"] == "texts.txt"
    assert results["corpus"]["used"] == 60
    dev = results["dev"]
    assert dev["metric"] == "dev_spearman"
    assert [entry["step"] for entry in dev["history"]] == [4, 8]
    assert dev["best"] == max(entry["value"] for entry in dev["history"])
    assert dev["after"]["dev_spearman"] == pytest.approx(dev["best"], abs=1e-6)  # the best was restored
    assert set(results["test"]["tasks"]) == set(results["before"]["tasks"]) == {"test"}
    assert [entry["step"] for entry in results["log"]] == [2, 4, 6, 8]
    assert all(entry["loss"] == pytest.approx(entry["loss/contrastive"], abs=1e-5) for entry in results["log"])
    assert results["arguments"]["learning_rate"] == 1e-3
    assert results["seconds"].keys() == {"train", "total"}
    assert str(data) not in json.dumps(results)
    assert str(finished[0].parent) not in json.dumps(results)


@pytest.mark.parametrize("best", [True, False])
def test_an_encoder_that_training_made_worse_is_told(
    run: Callable[..., int], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], best: bool
) -> None:
    """The gold scores are the untrained encoder's own similarities: any training makes them worse.

    Where the last checkpoint was kept, card and report ended in a traceback."""
    pairs = read_pairs(str(data / "dev.tsv"))
    backbone = load_encoder(data / "tiny-bert", pooling="cls")
    first, second = (torch.tensor(backbone.encode(texts)) for texts in (pairs.sentences1, pairs.sentences2))
    gold = torch.cosine_similarity(first, second)
    rows = zip(pairs.sentences1, pairs.sentences2, gold.tolist(), strict=True)
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score:.6f}" for a, b, score in rows)]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = tmp_path / "worse"
    files = {"dev_file": tmp_path / "dev.tsv", "test_file": None}
    assert run(folder, **files, learning_rate=1e-2, load_best_model_at_end=best) == 0
    dev = json.loads((folder / "results.json").read_text(encoding="utf-8"))["dev"]
    before, after = dev["before"]["dev_spearman"], dev["after"]["dev_spearman"]
    assert before > 95
    assert dev["worse_than_untrained"] is True
    assert (dev["metric"], dev["compared_by"]) == ("dev_spearman" if best else None, "dev_spearman")
    said = f"{before:.2f} before, {after:.2f} after"
    assert said in capsys.readouterr().err
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{before:.2f} for the untrained encoder and {after:.2f} for this one" in card
    assert main(["report", str(folder), "--output", str(tmp_path / "report.html")], standalone_mode=False) in (0, None)
    assert f"worse than the untrained encoder, whose dev_spearman is {before:.2f}" in (
        tmp_path / "report.html"
    ).read_text(encoding="utf-8")


def test_the_card_is_valid_and_names_the_pooling(finished: tuple[Path, str], data: Path) -> None:
    card = ModelCard.load(finished[0] / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert "csekit" in card.data.tags
    assert card.data.base_model is None  # a folder of this machine is no Hub id
    assert "**Pooling: cls.**" in card.text
    assert str(data) not in card.content


def test_all_ways_of_loading_give_the_same_embeddings(finished: tuple[Path, str]) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from transformers import AutoModel, AutoTokenizer

    folder = str(finished[0])
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        plain = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state[:, 0].numpy()
    there = sentence_transformers.SentenceTransformer(folder, device="cpu").encode(TEXTS)
    ours = load_encoder(folder).encode(TEXTS)
    np.testing.assert_allclose(there, plain, atol=1e-5)
    np.testing.assert_allclose(ours, plain, atol=1e-5)


def test_the_training_folder_reloads_to_the_same_encoder(finished: tuple[Path, str]) -> None:
    from csekit.modeling import SimCSEModel

    model = SimCSEModel.from_pretrained(finished[0] / "training")
    tokenizer = small.BertTokenizer.from_pretrained(finished[0] / "training")
    exported = load_encoder(str(finished[0])).encode(TEXTS)
    np.testing.assert_allclose(encode(model, tokenizer, TEXTS), exported, atol=1e-6)


def test_informin_with_a_masked_lm_and_without_dev_set(run: Callable[..., int], tmp_path: Path) -> None:
    folder = tmp_path / "informin"
    more = ["--method", "informin", "--reconstruction_weight", "1.0", "--mlm_weight", "0.1", "--hub_token", "secret"]
    assert run(folder, *more, dev_file=None, test_file=None) == 0
    text = (folder / "results.json").read_text(encoding="utf-8")
    results = json.loads(text)
    assert {"loss/contrastive", "loss/reconstruction", "loss/mlm"} <= results["log"][0].keys()
    assert results["dev"]["metric"] is None
    assert results["test"] is None
    assert "secret" not in text
    assert "secret" not in (folder / "README.md").read_text(encoding="utf-8")


def test_a_pooling_without_a_plain_form_is_loaded_by_csekit(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "encoder"
    assert run(folder, "--pooling", "first_last_mean", max_steps=2, dev_file=None, test_file=None) == 0
    printed = capsys.readouterr().out
    assert f"csekit.load_encoder({str(folder / 'training')!r})" in printed


@pytest.mark.slow
def test_a_fraction_trains_for_the_steps_of_the_whole_corpus(run: Callable[..., int], tmp_path: Path) -> None:
    results = {}
    for name, changes in {
        "whole": {},
        "part": {"train_fraction": 0.2},
        "given": {"train_fraction": 0.2, "max_steps": 3},
    }.items():
        assert run(tmp_path / name, do_predict=False, augmentation="delete", **changes) == 0
        results[name] = json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
    corpus = results["part"]["corpus"]
    assert (corpus["used"], corpus["rows"], corpus["fraction"]) == (12, 60, 0.2)
    assert [entry["log"][-1]["step"] for entry in results.values()] == [8, 8, 3]
    assert results["part"]["log"][-1]["epoch"] == pytest.approx(4.0)  # 12 rows are two batches
    assert results["whole"]["corpus"]["used"] == 60
    assert results["whole"]["positives"] == "delete"


@pytest.mark.parametrize(
    "method",
    [m if m in ("simcse", "diffcse", "msse") else pytest.param(m, marks=pytest.mark.slow) for m in METHODS],
)
def test_every_method_trains_on_a_share(run: Callable[..., int], tmp_path: Path, method: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "infocse": {"aux_mlm_head_init": "top_layers"},
        "joint": {"objectives": "mlm"},
        "msse": {"max_seq_length": 16},  # its template comes on top
    }
    own = settings.get(method, {})
    assert run(tmp_path / method, method=method, train_fraction=0.2, do_predict=False, **own) == 0
    results = json.loads((tmp_path / method / "results.json").read_text(encoding="utf-8"))
    assert (results["method"], results["corpus"]["used"], results["log"][-1]["step"]) == (method, 12, 8)


def test_a_transfer_task_selects_the_checkpoint(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(transfer_data, "COUNTS", {"CR": {"CR/custrev.pos": 10, "CR/custrev.neg": 10}})
    (tmp_path / "CR").mkdir()
    for name, word in (("pos", "dog"), ("neg", "cat")):
        (tmp_path / f"CR/custrev.{name}").write_text("".join(f"a {word} runs {'in ' * i}\n" for i in range(10)))
    assert run(tmp_path / "run", "--select_on", "CR", data_dir=tmp_path) == 0
    dev = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["dev"]
    assert dev["metric"] == "transfer_accuracy"
    assert dev["best"] == max(entry["transfer_accuracy"] for entry in dev["history"]) == dev["after"]["CR_accuracy"]
    assert "dev Spearman" in (printed := capsys.readouterr().out)
    assert "transfer accuracy" in printed
    (tmp_path / "CR/custrev.neg").write_text("a cat\n")
    assert run(tmp_path / "other", "--select_on", "CR", data_dir=tmp_path) == 2
    assert "custrev.neg: expected 10 examples, found 1" in capsys.readouterr().err


# What is wrong is said in one line, before the model loads


def error_lines(capsys: pytest.CaptureFixture) -> list[str]:
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return [line for line in text.splitlines() if line.startswith("run_unsup.py: error: ")]


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("", None, {"train_file": "nowhere.txt"}, "nowhere.txt"),
        ("one.txt", b"a man plays\n", {"train_file": "one.txt"}, "needs at least 2"),
        ("blank.txt", b"\n\n", {"train_file": "blank.txt"}, "no usable row"),
        ("latin.txt", "a caf\u00e9\nb\n".encode("latin-1"), {"train_file": "latin.txt"}, "UTF-8"),
        ("", None, {"dev_file": "nowhere.tsv"}, "nowhere.tsv: no such file"),
        ("d.tsv", b"sentence1\tscore\na\t1\n", {"dev_file": "d.tsv"}, "sentence2"),
        ("d.tsv", b"a\tb\tx\na\tb\t1\n", {"dev_file": "d.tsv", "dev_columns": "0"}, "dev_columns must name 3"),
        (
            "columns.yaml",
            b"dev_columns: [a, b, c]\n",
            {"dev_file": None, "test_file": None, "config": "columns.yaml"},
            "--dev_columns must be left out without --dev_file and --test_file, whose columns they are, got ['a', 'b'",
        ),
        ("", None, {"model_name_or_path": None}, "--model_name_or_path is missing"),
        ("", None, {"train_file": None}, "either --train_file or --dataset_name"),
        ("", None, {"data_dir": "nowhere", "dev_file": None}, "nowhere"),
        ("", None, {"method": "simsce"}, "method must be one of 'simcse'"),
        ("", None, {"columns": "title"}, "title"),
        ("", None, {"train_fraction": 1.5}, "train_fraction must lie in (0, 1], got 1.5"),
        ("", None, {"train_fraction": 0.01}, "train_fraction 0.01 of the 60 rows of texts.txt is 1, 2 are needed"),
        ("", None, {"train_fraction": 0.5, "streaming": True}, "--train_fraction must be left out with --streaming"),
        ("", None, {"filter_overlap": True, "streaming": True}, "--filter_overlap must be left out with --streaming"),
        ("", None, {"filter_overlap": True, "dev_file": None, "test_file": None}, "the sets to compare with"),
        ("", None, {"select_on": "transfer"}, "--select_on transfer needs --data_dir"),
        ("", None, {"select_on": "CR,SST"}, "tasks must be 'transfer' or names among ['MR',"),
        ("a.txt", b"a red ball\nis in\n", {"augmentation": "swap"}, "augmentation must be one of 'none', 'shuffle'"),
    ],
)
def test_an_error_before_the_model_is_one_line_and_status_2(
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    name: str,
    content: bytes | None,
    changes: dict[str, Any],
    message: str,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("csekit.modeling.CSEModel.from_backbone", refuse)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(tmp_path / "run", **changes) == 2
    errors = error_lines(capsys)
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "run" / "training").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of 'cls'"),
        ({"dropout": 0.0}, "differ by dropout alone"),
        ({"metric_for_best_model": "accuracy"}, "metric_for_best_model must be one of ['alignment', 'dev_spearman'"),
        ({"per_device_train_batch_size": 1}, "per_device_train_batch_size must be at least 2"),
        ({"max_seq_length": 64}, "max_seq_length must be at most 32"),
        ({"model_name_or_path": "no/such/model"}, "no/such/model"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_too(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture, changes: dict[str, Any], message: str
) -> None:
    assert run(tmp_path / "run", **changes) == 2
    errors = error_lines(capsys)
    assert len(errors) == 1
    assert message in errors[0]


# A folder that holds a run already


def test_a_second_run_into_the_same_folder_is_refused_continued_or_replaced_as_asked(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "run"
    assert run(folder) == 0
    first = (folder / "model.safetensors").read_bytes()
    scores = json.loads((folder / "results.json").read_text(encoding="utf-8"))["dev"]["after"]
    capsys.readouterr()

    assert run(folder, seed=1) == 2
    assert "already holds a run" in (message := capsys.readouterr().err)
    assert "--output_dir" in message
    assert "--resume_from_checkpoint" in message
    assert "--overwrite" in message
    (folder / "results.json").unlink()  # one that was killed before its end
    assert run(folder, seed=1) == 2
    assert (folder / "model.safetensors").read_bytes() == first

    assert run(folder, resume_from_checkpoint=True) == 0  # finished: nothing is trained, all is written again
    assert (folder / "model.safetensors").read_bytes() == first
    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["dev"]["after"] == scores

    assert run(folder, "--overwrite", seed=1, max_steps=4) == 0
    assert (folder / "model.safetensors").read_bytes() != first
    assert [path.name for path in (folder / "training").glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_method_s_own_template_is_counted_exported_and_told(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "encoder"
    assert run(folder, method="msse", do_predict=False, dev_file=None, max_steps=2, max_seq_length=16) == 0
    printed = capsys.readouterr().out
    assert f"csekit.load_encoder({str(folder)!r})" in printed
    card = ModelCard.load(folder / "README.md").text
    assert "**Pooling: mask.**" in card
    assert 'prompt template `"{sentence}" means {mask}.`' in card
    assert "trust_remote_code=True" in card
    assert 'batch["attention_mask"].sum(1) - 3' in card
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert {"loss/contrastive", "loss/dcm", "loss/icm", "metrics/icm_gap"} <= results["log"][0].keys()
    encoder = load_encoder(folder)
    assert (encoder.pooling, encoder.prompt_template) == ("mask", results["config"]["prompt_template"])
    plain = run(tmp_path / "plain", do_predict=False, dev_file=None, max_steps=2, max_seq_length=16)
    mean = [float(text.split(" tokens a text")[0].split()[-1]) for text in (printed, capsys.readouterr().out)]
    assert plain == 0
    assert mean[0] > mean[1] + 3  # the report counts the template
