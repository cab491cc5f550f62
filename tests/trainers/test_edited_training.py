"""Trainings with edited texts: what is logged, what moves, next sentences, presets."""

from pathlib import Path

import pytest
import torch

from csekit.modeling import METHODS, DiffCSEConfig
from csekit.trainers import parse_run_arguments
from csekit.trainers.run_record import without_folders

PRESETS = sorted((Path(__file__).parents[2] / "examples" / "configs").glob("diffcse-*.yaml"))


def test_diffcse_trains_and_logs(small_run, tmp_path):
    trainer = small_run(tmp_path / "run", method="diffcse", max_steps=4, dev=True)
    rtd = trainer.model.objectives["rtd"]
    generator = {name: value.clone() for name, value in rtd.generator.networks.state_dict().items()}
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss/rtd" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"] + entry["loss/rtd"], rel=1e-3)
    assert 0 <= entry["metrics/rtd_accuracy_replaced"] <= 1
    assert 0 <= entry["metrics/rtd_accuracy_kept"] <= 1
    after = dict(trainer.model.named_parameters())
    assert [name for name, value in before.items() if torch.equal(after[name], value)] == []
    assert all(torch.equal(value, generator[name]) for name, value in rtd.generator.networks.state_dict().items())
    folder = trainer.save_run()
    assert folder == tmp_path / "run"
    again = METHODS["diffcse"].from_pretrained(folder / "training", training=True)
    assert all(torch.equal(value, after[name]) for name, value in again.named_parameters())


def test_a_results_file_names_networks_without_their_folders(small_backbone):
    model = METHODS["diffcse"].from_backbone(small_backbone, discriminator=str(small_backbone))
    told = without_folders(model.config.to_dict()["objectives"][0])
    assert told["generator"] == told["discriminator"] == small_backbone.name
    assert told["probability"] == 0.3
    assert "/" not in str(told)


def test_the_trainer_fetches_the_generator(small, small_backbone, tmp_path):
    model = METHODS["diffcse"].from_backbone(small_backbone)
    model.save_pretrained(tmp_path / "saved")
    bare = METHODS["diffcse"].from_pretrained(tmp_path / "saved")
    trainer = small.make_trainer(small_backbone, small.write_texts(tmp_path / "t.txt", 24), tmp_path / "run")
    again = type(trainer)(bare, trainer.args, trainer.corpus, trainer.tokenizer)
    assert again.model.objectives["rtd"].generator.name_or_path == str(small_backbone)


@pytest.mark.parametrize("sentence", ["next", "both"])
def test_next_sentences(small_run, tmp_path, sentence):
    fields = {"condition_sentence": sentence, "edit_operation": "insert"}
    trainer = small_run(tmp_path / "run", method="diffcse", columns=2, max_steps=2, fields=fields)
    trainer.train()
    assert any("loss/rtd" in entry for entry in trainer.state.log_history)
    with pytest.raises(ValueError, match=r"need one more column after the sentence's, texts\.txt has only text"):
        small_run(tmp_path / "one", method="diffcse", columns=1, fields=fields)
    with pytest.raises(ValueError, match="differ by dropout alone"):
        small_run(tmp_path / "none", method="diffcse", columns=2, fields=fields | {"dropout": 0.0})


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_are_settings_of_the_method(path):
    run, _, fields = parse_run_arguments(["--config", str(path), "--train_file", "wiki.txt", "--output_dir", "out"])
    config = DiffCSEConfig(**fields)
    (rtd,) = config.objectives
    assert run.method == "diffcse"
    assert config.projector == "batchnorm"
    released = (rtd.edit_scope, rtd.edit_sampling, rtd.generator_dropout, rtd.rtd_positions)
    assert released == (
        ("all", "argmax", True, "all") if "released" in path.stem else ("masked", "sample", False, "real")
    )
    assert rtd.probability == fields["rtd_probability"]
    assert rtd.generator.startswith("distil")


def test_command_line_of_joint_objectives():
    words = ["--method", "joint", "--objectives", "reconstruction", "rtd", "--edit_operation", "all"]
    _, _, fields = parse_run_arguments([*words, "--rtd_generator", "tiny", "--output_dir", "out"])
    config = METHODS["joint"].config_class(**fields)
    assert [objective.name for objective in config.objectives] == ["reconstruction", "rtd"]
    assert (config.edit_operation, config.generator) == ("all", "tiny")
