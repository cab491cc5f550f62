"""examples/run_sup.py: triplets with every method, the projector at test time, sentences of evaluation sets."""

import json
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from csekit.encoding import load_encoder
from csekit.modeling import METHODS
from csekit.trainers import parse_run_arguments
from csekit.trainers.scripts.runs import SUPERVISED

ROOT = Path(__file__).parents[2]
RUN_SUP = ROOT / "examples" / "run_sup.py"
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))
TEXTS = ["the man plays guitar .", "a red ball was in the house", "dog"]
OWN = {"infocse": {"aux_mlm_head_init": "top_layers"}, "joint": {"objectives": "mlm"}, "msse": {"max_seq_length": 16}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    for columns, name in enumerate(("texts.txt", "pairs.tsv", "triplets.tsv"), 1):
        small.write_texts(folder / name, 30, columns)
    small.write_pairs(folder / "dev.tsv")
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, data: Path) -> Callable[..., int]:
    """The script's main in this process: 30 triplets, 2 steps of 16 rows. None takes an argument out."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", data / "cache")

    def start(output_dir: Path, **changes: Any) -> int:
        arguments = {
            "model_name_or_path": data / "tiny-bert",
            "train_file": data / "triplets.tsv",
            "dev_file": data / "dev.tsv",
            "output_dir": output_dir,
            "per_device_train_batch_size": 16,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "use_cpu": True,
            "disable_tqdm": True,
        } | changes
        words = [str(w) for name, value in arguments.items() if value is not None for w in (f"--{name}", value)]
        monkeypatch.setattr(sys, "argv", ["run_sup.py", *words])
        try:
            return int(runpy.run_path(str(RUN_SUP))["main"]())
        except SystemExit as end:
            return int(end.code or 0)

    return start


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_the_defaults_are_those_of_labelled_data(tmp_path: Path) -> None:
    _, args, fields = parse_run_arguments([], SUPERVISED)
    assert (args.per_device_train_batch_size, args.learning_rate, args.num_train_epochs) == (512, 5e-5, 3)
    assert fields == {"projector_at_inference": True}
    (tmp_path / "preset.yaml").write_text("num_train_epochs: 2\nprojector_at_inference: false\n")
    _, args, fields = parse_run_arguments(["--config", str(tmp_path / "preset.yaml")], SUPERVISED)
    assert (args.num_train_epochs, fields) == (2, {"projector_at_inference": False})


@pytest.mark.parametrize(
    "method",
    [m if m in ("simcse", "diffcse", "msse") else pytest.param(m, marks=pytest.mark.slow) for m in METHODS],
)
def test_every_method_trains_on_triplets(run: Callable[..., int], tmp_path: Path, method: str) -> None:
    assert run(tmp_path / method, method=method, **OWN.get(method, {})) == 0
    results = results_of(tmp_path / method)
    terms = {f"loss/{objective['name']}" for objective in results["config"]["objectives"]} | {"loss/contrastive"}
    assert terms <= results["log"][0].keys()
    assert (len(terms) > 1) is (method != "simcse")
    assert all(np.isfinite(entry["loss"]) for entry in results["log"])
    assert len(results["log"]) == 2
    assert (results["positives"], results["method"]) == ("triplets", method)
    card = ModelCard.load(tmp_path / method / "README.md")
    assert "trained on triplets of sentence, positive and hard negative by" in card.text


def test_the_hard_negatives_are_in_the_loss(run: Callable[..., int], tmp_path: Path) -> None:
    lines = small.write_texts(tmp_path / "triplets.tsv", 30, 3).read_text().splitlines()
    (tmp_path / "pairs.tsv").write_text("".join(line.rpartition("\t")[0] + "\n" for line in lines))
    settings: dict[str, dict[str, Any]] = {
        "triplets": {},
        "heavy": {"hard_negative_weight": 5.0},
        "pairs": {"train_file": tmp_path / "pairs.tsv"},
    }
    first = {}
    for name, changes in settings.items():
        assert run(tmp_path / name, dropout=0.0, **changes) == 0
        first[name] = results_of(tmp_path / name)["log"][0]["loss/contrastive"]
    assert first["pairs"] < first["triplets"] < first["heavy"]
    assert results_of(tmp_path / "pairs")["positives"] == "pairs"


@pytest.mark.parametrize("kept", [True, False])
def test_the_projector_stays_at_test_time_or_not(run: Callable[..., int], tmp_path: Path, kept: bool) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "encoder"
    assert run(folder, projector_at_inference=None if kept else False, learning_rate=1e-2) == 0
    assert (folder / "2_Dense").is_dir() is kept
    there = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    trained = load_encoder(str(folder / "training")).encode(TEXTS)  # the model that csekit scored
    np.testing.assert_allclose(there, trained, atol=1e-5)
    assert bool(np.abs(there).max() < 1) is kept  # tanh


def test_sentences_of_evaluation_sets_are_counted_told_and_left_out_where_asked(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rng = random.Random(0)
    rows = [[small.sentence(rng) + " tree" for _ in range(3)] for _ in range(30)]
    rows[3][1], rows[17][2], rows[17][0] = "A man plays !", "the Dog  sings", "The cat runs."
    (tmp_path / "t.tsv").write_text("\n".join("\t".join(row) for row in [["a", "p", "n"], *rows]) + "\n")
    scored = [["a man plays .", "x"], ["the dog sings", "THE CAT RUNS"], ["a man plays .", "house"]]
    lines = ["\t".join([*pair, str(i)]) for i, pair in enumerate(scored)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    files = {"train_file": tmp_path / "t.tsv", "dev_file": tmp_path / "dev.tsv"}

    assert run(tmp_path / "plain", **files) == 0
    assert "2 rows hold a sentence of an evaluation set (dev 4 of 6)" in capsys.readouterr().out
    assert run(tmp_path / "filtered", filter_overlap=True, **files) == 0
    assert "28 of 30 rows used; 2 with a sentence of an evaluation set left out" in capsys.readouterr().out
    plain, filtered = results_of(tmp_path / "plain"), results_of(tmp_path / "filtered")
    found = {"rows": 2, "texts": 3, "sets": {"dev": {"sentences": 4, "of": 6}}}
    assert plain["overlap"] == found | {"filtered": False}
    assert filtered["overlap"] == found | {"filtered": True}
    assert (plain["corpus"]["used"], filtered["corpus"]["used"], filtered["corpus"]["filtered"]) == (30, 28, 2)
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("plain", "filtered")]
    assert "2 of the training rows hold a sentence of an evaluation set (dev)" in cards[0]
    assert "training rows hold" not in cards[1]

    assert run(tmp_path / "share", filter_overlap=True, train_fraction=0.5, **files) == 0
    share = results_of(tmp_path / "share")  # half of the rows that are left
    assert (share["corpus"]["used"], share["overlap"]) == (14, found | {"filtered": True})


def test_what_cannot_be_is_one_line(
    run: Callable[..., int], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    wanted = {
        "texts.txt must have two or three columns": {"train_file": data / "texts.txt"},
        "augmentation 'shuffle' makes the positive of a single sentence": {"augmentation": "shuffle"},
        "--model_name_or_path is missing": {"model_name_or_path": None},
    }
    for message, changes in wanted.items():
        assert run(tmp_path / "run", **changes) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run_sup.py: error: ")]
        assert message in line
    assert not (tmp_path / "run" / "training").exists()
