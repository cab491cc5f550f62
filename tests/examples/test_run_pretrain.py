"""examples/run_pretrain.py from a text file to a checkpoint that loads everywhere: from nothing, from a checkpoint."""

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from csekit.modeling import InfoCSEForPreTraining, RTDForPreTraining, SimCSEModel
from csekit.trainers import PretrainingTrainer
from csekit.trainers.scripts.pretraining_runs import load_texts, new_encoder_config, parse_pretrain_arguments

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "examples" / "configs" / "pretraining").glob("*.yaml"))
SCRIPT = ROOT / "examples" / "run_pretrain.py"
SIZES = "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32,max_position_embeddings=40"
small = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "trainers" / "small_runs.py")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    small.write_backbone(folder / "tiny-bert")
    small.write_texts(folder / "texts.txt", 120)
    small.write_texts(folder / "unseen.txt", 20)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, data: Path) -> Callable[..., int]:
    """The script's main in this process: 8 steps on ``texts.txt``; None takes an argument out."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", data / "cache")

    def start(output_dir: Path, **changes: Any) -> int:
        arguments = {
            "train_file": data / "texts.txt",
            "output_dir": output_dir,
            "heldout_share": 0.1,
            "block_length": 16,
            "per_device_train_batch_size": 4,
            "max_steps": 8,
            "eval_steps": 4,
            "logging_steps": 2,
            "learning_rate": 1e-3,
            "disable_tqdm": True,
            "use_cpu": True,
        } | changes
        words = [str(word) for name, value in arguments.items() if value is not None for word in (f"--{name}", value)]
        monkeypatch.setattr(sys, "argv", ["run_pretrain.py", *words])
        try:
            return int(runpy.run_path(str(SCRIPT))["main"]())
        except SystemExit as end:
            return int(end.code or 0)

    return start


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes() + (folder / "training" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("share", "texts"), [(0.4, 48), (0.3, 36), (0.1, 12), (0.01, 2)])
def test_the_share_that_is_held_out_is_the_one_that_was_asked_for(
    data: Path, monkeypatch: pytest.MonkeyPatch, share: float, texts: int
) -> None:
    """Regression: 0.4 held out every second text."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", data / "cache")
    run, _ = parse_pretrain_arguments(
        ["--train_file", str(data / "texts.txt"), "--output_dir", "out", "--heldout_share", str(share)]
    )
    _, kept, held = load_texts(run)
    lines = (data / "texts.txt").read_text().splitlines()
    assert len(held) == texts and held[0] == lines[0]
    assert sorted([*kept, *held]) == sorted(lines)
    if share == 0.1:
        assert held == lines[::10]


@pytest.mark.parametrize("objective", ["condenser", "mlm"])
def test_from_nothing(
    run: Callable[..., int], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture, objective: str
) -> None:
    folder = tmp_path / "own"
    fresh = {"vocab_size": 60, "config_overrides": SIZES, "small_budget_init": True, "dropout": 0.2}
    assert run(folder, objective=objective, **fresh) == 0
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (
        AutoModel.from_pretrained(folder)(**tokenizer("the cat", return_tensors="pt"))
        .last_hidden_state.isfinite()
        .all()
    )
    assert (model.config.hidden_size, model.config.hidden_dropout_prob) == (16, 0.2)
    assert model.config.vocab_size == len(tokenizer) <= 60
    assert tokenizer.model_max_length == 40
    assert (folder / "auxiliary_head").is_dir() == (objective == "condenser")
    results = results_of(folder)
    assert results["backbone"] is None
    assert results["steps"] == 8
    assert results["config"]["objective"] == objective
    assert results["config"]["small_budget_init"] is True
    assert results["config"]["trained_tokenizer"] is True
    terms = {"mlm", "aux_mlm"} if objective == "condenser" else {"mlm"}
    expected = {"loss", *terms, *(f"{term}_accuracy" for term in terms)}
    assert results["heldout"]["before"].keys() == results["heldout"]["after"].keys() == expected
    assert [entry["step"] for entry in results["heldout"]["history"]] == [4, 8]
    assert results["heldout"]["history"][-1]["loss"] == pytest.approx(results["heldout"]["after"]["loss"], abs=1e-5)
    assert [entry["step"] for entry in results["log"]] == [2, 4, 6, 8]
    assert {f"loss/{term}" for term in terms} <= results["log"][0].keys()
    assert results["blocks"]["heldout"] > 0
    assert results["corpus"]["name"] == "texts.txt"
    assert str(data) not in json.dumps(results)
    assert str(tmp_path) not in json.dumps(results)
    assert "held-out text" in (printed := capsys.readouterr().out)
    assert str(folder) in printed


def test_stage_1_from_a_checkpoint_feeds_contrastive_training(
    run: Callable[..., int], data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stage1"
    assert run(folder, model_name_or_path=data / "tiny-bert", heldout_file=data / "unseen.txt", head_layers=1) == 0
    results = results_of(folder)
    assert results["backbone"] == "tiny-bert"
    assert results["config"]["split_layer"] == 1
    trained = InfoCSEForPreTraining.from_pretrained(folder / "training")
    again = InfoCSEForPreTraining.from_backbone(folder, head_layers=1)
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in again.state_dict().items())
    encoder = SimCSEModel.from_backbone(folder, mlm_weight=0.1)
    state = trained.backbone.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in encoder.backbone.state_dict().items())


@pytest.mark.parametrize("trained", [True, False])
def test_a_discriminator_from_a_checkpoint_starts_diffcse(
    run: Callable[..., int], data: Path, tmp_path: Path, trained: bool, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "rtd"
    assert run(folder, model_name_or_path=data / "tiny-bert", objective="rtd", train_generator=trained) == 0
    assert f"csekit train --method diffcse --objectives_from {folder}" in capsys.readouterr().out
    results = results_of(folder)
    own = {
        "objective": "rtd",
        "generator_name_or_path": "tiny-bert",
        "train_generator": trained,
        "discriminator_weight": 50.0,
    }
    assert own.items() <= results["config"].items()
    assert str(tmp_path) not in json.dumps(results)
    expected = {"loss", "rtd", "rtd_accuracy_replaced", "rtd_accuracy_kept", "replaced"}
    expected |= {"mlm", "mlm_accuracy"} if trained else set()
    assert results["heldout"]["before"].keys() == results["heldout"]["after"].keys() == expected
    assert [entry["step"] for entry in results["heldout"]["history"]] == [4, 8]
    assert results["heldout"]["history"][-1]["rtd"] == pytest.approx(results["heldout"]["after"]["rtd"], abs=1e-5)
    assert {"loss/rtd", "metrics/rtd_accuracy_replaced"} <= results["log"][0].keys()
    assert ("loss/mlm" in results["log"][0]) == trained
    assert json.loads((folder / "objectives" / "objectives.json").read_text())["steps"] == 8

    model = RTDForPreTraining.from_pretrained(folder / "training")
    state = model.backbone.state_dict()
    plain = AutoModel.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in state.items())
    texts = {"backbone": data / "tiny-bert", "texts": data / "texts.txt", "method": "diffcse"}
    trainer = small.make_trainer(**texts, output_dir=tmp_path / "diffcse", objectives_from=str(folder))
    rtd = trainer.model.objectives["rtd"]
    assert all(torch.equal(value, state[name]) for name, value in rtd.discriminator.model.state_dict().items())
    assert torch.equal(rtd.head.weight, model.head.weight)
    encoder = AutoModel.from_pretrained(data / "tiny-bert").state_dict()
    assert all(torch.equal(value, encoder[name]) for name, value in trainer.model.backbone.state_dict().items())

    assert run(folder, model_name_or_path=data / "tiny-bert", objective="mlm", overwrite=True) == 0
    assert not (folder / "objectives").exists()  # the earlier discriminator does not belong to these weights


@pytest.mark.parametrize("own", [{}, {"objective": "rtd"}, {"objective": "rtd", "train_generator": False}])
def test_sigterm_saves_and_the_resumed_run_ends_as_one_that_was_not_stopped(
    run: Callable[..., int],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    own: dict[str, Any],
) -> None:
    start = {"model_name_or_path": data / "tiny-bert", **own}
    assert run(tmp_path / "straight", **start) == 0
    step = PretrainingTrainer.training_step

    def kicked(self: PretrainingTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(PretrainingTrainer, "training_step", kicked)
        assert run(tmp_path / "stopped", **start) == 143
    assert not (tmp_path / "stopped" / "results.json").exists()
    capsys.readouterr()
    assert run(tmp_path / "stopped", **start) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert run(tmp_path / "stopped", **start, resume_from_checkpoint=True) == 0
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    assert (
        results_of(tmp_path / "stopped")["heldout"]["after"] == results_of(tmp_path / "straight")["heldout"]["after"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": "nowhere.txt"}, "nowhere.txt"),
        ({"train_file": None}, "either --train_file or --dataset_name"),
        ({"objective": "electra"}, "objective must be one of 'condenser', 'mlm', 'rtd', got 'electra'"),
        ({"objective": "rtd"}, "objective 'rtd' needs --model_name_or_path"),
        ({"generator_name_or_path": "bert"}, "--generator_name_or_path must be left out with objective 'condenser'"),
        (
            {"objective": "mlm", "head_layers": 1},
            "--head_layers must be left out with objective 'mlm': it is for 'condenser', got 1",
        ),
        ({"objective": "mlm", "head_init": "new"}, "--head_init must be left out with objective 'mlm'"),
        ({"objective": "mlm", "split_layer": 1}, "--split_layer must be left out with objective 'mlm'"),
        (
            {"objective": "rtd", "model_name_or_path": "bert", "split_layer": 1},
            "--split_layer must be left out with objective 'rtd': it is for 'condenser', got 1",
        ),
        ({"train_generator": False}, "--train_generator must be left out with objective 'condenser': it is for 'rtd'"),
        ({"objective": "mlm", "discriminator_weight": 2.0}, "--discriminator_weight must be left out with objective"),
        ({"discriminator_weight": -1}, "discriminator_weight must be a number of at least 0, got -1.0"),
        ({"vocab_size": None}, "give --model_name_or_path, or for a new model either --vocab_size"),
        ({"model_name_or_path": "bert"}, "--config_overrides must be left out with --model_name_or_path"),
        (
            {"vocab_size": None, "config_overrides": None, "model_name_or_path": "bert", "model_type": "roberta"},
            "--model_type must be left out with --model_name_or_path: it is for a new model",
        ),
        ({"config_overrides": "width=3"}, "config_overrides of 'bert': 'width=3': key width isn't in"),
        ({"config_overrides": "hidden_size=wide"}, "'hidden_size=wide'"),
        ({"config_overrides": "hidden_size"}, "'hidden_size'"),
        ({"model_type": "berd"}, "berd"),
        ({"model_type": "roberta", "small_budget_init": True}, "model_type must be 'bert' for small_budget_init"),
        ({"vocab_size": 8}, "vocab_size must hold 5 special tokens"),
        ({"block_length": 64}, "block_length must be at most 40"),
        ({"split_layer": 5}, "split_layer must be one of the encoder's layers 1..2, got 5"),
        ({"heldout_share": 0.9}, "heldout_share must lie in [0, 0.5]"),
        ({"heldout_share": 0, "load_best_model_at_end": True}, "must be False without held-out text"),
        ({"mlm_probability": 2}, "mlm_probability must lie between 0 and 1"),
        ({"pooling": "cls"}, "unknown argument 'pooling'"),
        ({"whole_word_maskin": True}, "did you mean whole_word_masking?"),
    ],
)
def test_an_error_is_one_line_and_status_2(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture, changes: dict[str, Any], message: str
) -> None:
    assert run(tmp_path / "run", **({"vocab_size": 60, "config_overrides": SIZES} | changes)) == 2
    text = capsys.readouterr().err
    errors = [line for line in text.splitlines() if line.startswith("run_pretrain.py: error: ")]
    assert "Traceback" not in text
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_family_without_the_head_says_so(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    sizes = {"vocab_size": 60, "model_type": "albert", "config_overrides": SIZES}
    assert run(tmp_path / "run", **sizes) == 2
    assert "an auxiliary head is not possible; objective 'mlm' trains every family" in capsys.readouterr().err
    assert run(tmp_path / "run", **sizes, objective="mlm") == 0


def test_a_generator_that_does_not_fit_is_refused_before_the_texts_are_read(
    run: Callable[..., int], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = small.write_backbone(tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["elsewhere"])
    tokenizer.save_pretrained(other)
    start = {"model_name_or_path": data / "tiny-bert", "objective": "rtd"}
    for generator, message in (
        (other, "generator_name_or_path must have the vocabulary of the encoder"),
        (tmp_path / "nowhere", "nowhere"),
    ):
        assert run(tmp_path / "run", **start, generator_name_or_path=generator) == 2
        printed = capsys.readouterr()
        (line,) = [line for line in printed.err.splitlines() if line.startswith("run_pretrain.py: error: ")]
        assert message in line
        assert "texts.txt" not in printed.out


def test_a_new_config_takes_the_tokenizer_s_special_ids(data: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data / "tiny-bert")
    config = new_encoder_config(tokenizer, "roberta", "hidden_size=32,num_attention_heads=2")
    assert (config.pad_token_id, config.vocab_size, config.hidden_size) == (0, len(tokenizer), 32)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_parse_to_what_they_say(path: Path) -> None:
    preset = yaml.safe_load(path.read_text(encoding="utf-8"))
    run, args = parse_pretrain_arguments(["--config", str(path), "--train_file", "texts.txt"])
    run.check()
    values = {**vars(args), **vars(run)}
    for name, value in preset.items():
        assert values[name] == value and isinstance(value, str) == isinstance(values[name], str), name


@pytest.mark.parametrize(
    ("preset", "objective"), [("infocse-bert-base", "mlm"), ("rtd-bert-base", "mlm"), ("rtd-bert-base", "condenser")]
)
def test_another_objective_than_the_preset_s_goes_without_its_settings(preset: str, objective: str) -> None:
    """Regression: they were refused, and no word of the command line takes them out."""
    words = ["--config", f"pretraining/{preset}", "--train_file", "texts.txt", "--objective", objective]
    run, _ = parse_pretrain_arguments(words)
    run.check()
    assert (run.split_layer, run.head_layers, run.generator_name_or_path) == (None, 2, None)
    run, args = parse_pretrain_arguments([*words[:-1], "mlm", "--split_layer", "3"])
    with pytest.raises(ValueError, match="--split_layer must be left out with objective 'mlm'"):
        run.check()
    assert args.learning_rate == 1e-4  # the preset's


def test_the_published_stage_1_has_a_preset() -> None:
    """InfoCSE §4.2 and Condenser."""
    preset = yaml.safe_load((PRESETS[0].parent / "infocse-bert-base.yaml").read_text(encoding="utf-8"))
    published = {"learning_rate": 1e-4, "weight_decay": 0.01, "warmup_steps": 0.1, "num_train_epochs": 8}
    published |= {"block_length": 128, "mlm_probability": 0.15, "whole_word_masking": True, "split_layer": 6}
    assert {name: preset[name] for name in published} == published
    assert preset["per_device_train_batch_size"] * 8 == 1024
