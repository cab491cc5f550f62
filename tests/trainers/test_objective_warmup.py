"""The objectives' own weights, trained before the encoder and saved for later runs."""

import json
import os
import re
import resource
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from csekit.trainers.objective_warmup import load_objectives, save_objectives


@pytest.fixture
def base(small: ModuleType, small_backbone: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "backbone": str(small_backbone),
        "texts": str(small.write_texts(tmp_path / "texts.txt", 123)),
        "method": "msse",
        "fields": {"icm_weight": 1.0, "projector": "batchnorm", "pooling": "cls"},
        "max_steps": 4,
        "eval_steps": 4,
        "logging_steps": 1,
    }


def differing(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def test_the_warm_up_trains_the_objectives_alone(small: ModuleType, base: dict[str, Any], tmp_path: Path) -> None:
    trainer = small.make_trainer(
        **base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])},
        output_dir=tmp_path / "run",
        objective_warmup_steps=6,
        objective_learning_rate=1e-2,
    )
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    state = torch.get_rng_state()
    trainer.warm_up_objectives()
    assert torch.equal(torch.get_rng_state(), state)
    changed = differing(trainer.model, before)
    assert changed
    assert {name for name in changed if not name.startswith("objectives.icm")} == set()
    assert {name for name, p in trainer.model.named_parameters() if p.requires_grad} == trained
    saved = load_file(tmp_path / "run/objectives/objectives.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in trainer.model.objectives.state_dict().items())
    record = json.loads((tmp_path / "run/objectives/objectives.json").read_text(encoding="utf-8"))
    assert (record["steps"], record["learning_rate"]) == (6, 1e-2)
    losses = [entry["metrics/icm_cross_entropy"] for entry in record["log"]]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert not (tmp_path / "run/objectives/training").exists()


def test_the_objectives_have_a_rate_of_their_own(small: ModuleType, base: dict[str, Any], tmp_path: Path) -> None:
    trainer = small.make_trainer(
        **base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])},
        output_dir=tmp_path / "run",
        objective_learning_rate=0.0,
    )
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    changed = differing(trainer.model, before)
    assert not any(name.startswith("objectives.") for name in changed)
    assert any(name.startswith("backbone.") for name in changed)


def test_weights_that_do_not_fit_are_refused(small: ModuleType, base: dict[str, Any], tmp_path: Path) -> None:
    paths = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])}
    trainer = small.make_trainer(**paths, output_dir=tmp_path / "run", objective_warmup_steps=1)
    trainer.warm_up_objectives()
    good = tmp_path / "run" / "objectives" / "objectives.safetensors"

    def refused(change: Any, words: str) -> None:
        folder = tmp_path / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        change(folder / good.name)
        with pytest.raises(ValueError, match=words):
            load_objectives(trainer.model, folder)

    def changed(**tensors: Any) -> Any:
        return lambda path: save_file({k: v for k, v in (load_file(good) | tensors).items() if v is not None}, path)

    name = "icm.decoder.bias"
    refused(lambda path: None, "must be a folder with objectives.safetensors")
    refused(lambda path: path.write_bytes(good.read_bytes()[:2000]), "not a whole safetensors file")
    refused(changed(**{name: None}), f"lacks weights of the objectives: {re.escape(name)}")
    refused(changed(**{name: torch.zeros(3)}), rf"{re.escape(name)} must have the shape \[\d+\], got \[3\]")
    refused(changed(**{name: load_file(good)[name] * float("nan")}), "not finite")


def test_objectives_without_weights_of_their_own_need_not_be_in_the_folder(
    small: ModuleType, base: dict[str, Any], tmp_path: Path
) -> None:
    """Regression: the memories of queue and smoothing counted as weights that the folder lacks."""
    paths = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])}
    small.make_trainer(**paths, output_dir=tmp_path / "first", objective_warmup_steps=1).warm_up_objectives()
    memories = {"queue_weight": 1.0, "queue_size": 16, "smoothing_weight": 0.1, "smoothing_size": 16}
    fields = base["fields"] | memories | {"smoothing_neighbors": 2}
    options = paths | {"fields": fields, "objectives_from": str(tmp_path / "first")}
    trainer = small.make_trainer(**options, output_dir=tmp_path / "second")
    saved = load_file(tmp_path / "first/objectives/objectives.safetensors")
    own = trainer.model.objectives.state_dict()
    assert saved and all(torch.equal(own[name], tensor) for name, tensor in saved.items())
    assert int(own["queue.count"]) == int(own["smoothing.count"]) == 0
    assert trainer.train().global_step == 4
    alone = options | {"method": "simcse", "fields": {"queue_weight": 1.0, "queue_size": 16}}
    with pytest.raises(ValueError, match=r"holds no weights of the objectives \['queue'\]"):
        small.make_trainer(**alone, output_dir=tmp_path / "third")


def test_a_full_disk_leaves_the_record_of_an_earlier_warm_up(
    small: ModuleType, base: dict[str, Any], tmp_path: Path
) -> None:
    """Regression: a piece of the new record stayed beside the earlier weights, and the end of a run could not read
    it."""
    paths = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])}
    trainer = small.make_trainer(**paths, output_dir=tmp_path / "run", objective_warmup_steps=1)
    trainer.warm_up_objectives()
    files = {path: path.read_bytes() for path in (tmp_path / "run" / "objectives").glob("objectives.*")}
    assert len(files) == 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large|no space left on the disk"):
            save_objectives(trainer.model.objectives.state_dict(), tmp_path / "run" / "objectives", {"log": 99 * [1]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "objectives").glob("objectives.*")} == files


def test_a_warm_up_needs_weights_to_train(small: ModuleType, base: dict[str, Any], tmp_path: Path) -> None:
    options = base | {
        "backbone": Path(base["backbone"]),
        "texts": Path(base["texts"]),
        "method": "simcse",
        "fields": {},
    }
    with pytest.raises(ValueError, match=r"no objective of .* has weights of its own"):
        small.make_trainer(**options, output_dir=tmp_path / "run", objective_warmup_steps=1)
    assert not os.path.exists(tmp_path / "run" / "objectives" / "objectives.safetensors")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective_warmup_steps": -1}, "objective_warmup_steps must be at least 0, got -1"),
        ({"objective_learning_rate": float("nan")}, "objective_learning_rate must be at least 0 and finite, got nan"),
        ({"objective_warmup_steps": 1, "objectives_from": "x"}, "give objective_warmup_steps or objectives_from"),
        ({"objectives_from": "no-such-folder"}, "objectives_from must be a folder with objectives.safetensors"),
    ],
)
def test_wrong_values(
    small: ModuleType, base: dict[str, Any], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    paths = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])}
    with pytest.raises(ValueError, match=words):
        small.make_trainer(**paths, output_dir=tmp_path / "run", **options)


@pytest.mark.parametrize("fields", [{}, {"reconstruction_weight": 0.4}])
@pytest.mark.parametrize("name", ["objective_learning_rate", "objectives_from"])
def test_options_for_own_weights_need_some(
    small: ModuleType, base: dict[str, Any], tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    """Regression: both were ignored."""
    paths = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"])}
    save_file({}, tmp_path / "objectives.safetensors")
    options = {name: 1e-2 if name == "objective_learning_rate" else str(tmp_path)}
    with pytest.raises(ValueError, match=f"{name} must be left out without an objective that has weights of its own"):
        small.make_trainer(**paths | {"method": "simcse", "fields": fields}, output_dir=tmp_path / "run", **options)


def test_a_warm_up_that_is_longer_than_the_training_is_told(
    small: ModuleType, base: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The learning rate never reached its value, and nothing said so."""
    job = base | {"backbone": Path(base["backbone"]), "texts": Path(base["texts"]), "learning_rate": 2e-3}
    small.make_trainer(**job, output_dir=tmp_path / "fits", warmup_steps=4).train()
    constant = {"warmup_steps": 500, "lr_scheduler_type": "constant"}
    small.make_trainer(**job, output_dir=tmp_path / "unread", **constant).train()
    assert "warmup_steps" not in caplog.text
    long = small.make_trainer(**job, output_dir=tmp_path / "long", warmup_steps=5, objective_warmup_steps=3)
    long.train()
    told = [record.getMessage() for record in caplog.records if "warmup_steps 5" in record.getMessage()]
    of_objectives = "warmup_steps 5 is longer than the objectives' warm-up (objective_warmup_steps) of 3 steps: "
    assert told == [
        f"{of_objectives}the learning rate ends at about 0.0008 and never reaches 0.002",
        "warmup_steps 5 is longer than the training of 4 steps: the learning rate ends at about 0.0012 and never "
        "reaches 0.002",
    ]
    rates = [entry["learning_rate"] for entry in long.state.log_history if "learning_rate" in entry]
    assert max(rates) == pytest.approx(0.0012)
