"""Presets in examples/configs: they parse, and every key is known."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from csekit.trainers.scripts.runs import SUPERVISED

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
PRESETS = sorted(CONFIGS.glob("*.yaml"))

KNOWN: dict[str, Any] = {
    "method": str,
    "model_name_or_path": str,
    "learning_rate": float,
    "per_device_train_batch_size": int,
    "num_train_epochs": int,
    "max_steps": int,
    "eval_steps": int,
    "max_seq_length": int,
    "bf16": bool,
    "train_file": str,
    "data_dir": str,
    "columns": list,
    "objectives": list,
    "select_on": str,
    "train_fraction": float,
    "filter_overlap": bool,
    "augmentation": str,
    "pooling": str,
    "projector": str,
    "projector_at_inference": bool,
    "contrastive_weight": float,
    "temperature": float,
    "dropout": float,
    "reconstruction": str,
    "reconstruction_weight": float,
    "mlm_weight": float,
    "mlm_probability": float,
    "aux_mlm_weight": float,
    "aux_mlm_probability": float,
    "aux_mlm_views": int,
    "aux_mlm_gradient": str,
    "aux_mlm_layer": int,
    "aux_mlm_head_init": str,
    "aux_mlm_lower_dropout": bool,
    "mlm_tied": bool,
    "mask_contrastive_input": bool,
    "rtd_weight": float,
    "rtd_probability": float,
    "rtd_generator": str,
    "rtd_edit_scope": str,
    "rtd_edit_sampling": str,
    "rtd_generator_dropout": bool,
    "rtd_positions": str,
    "warmup_steps": (int, float),
    "dcm_weight": float,
    "dcm_reduction": str,
    "icm_weight": float,
    "icm_decoder": str,
    "icm_target": str,
    "icm_representation": str,
    "icm_decoder_layers": int,
    "icm_decoder_heads": int,
    "icm_element_dropout": float,
    "teachers": list,
    "rank_teachers": int,
    "rank_mixture": float,
    "rank_loss": str,
    "rank_temperature": float,
    "rank_teacher_temperature": float,
    "rank_weight": float,
    "rank_against": str,
    "rank_references": int,
    "rank_low": float,
    "rank_high": float,
    "rank_shuffle": float,
    "rank_shuffle_temperature": float,
    "guided_rule": str,
    "guided_threshold": float,
    "guided_weight": float,
    "noise_weight": float,
    "noise_times": float,
    "noise_steps": int,
    "noise_step_size": float,
    "noise_temperature": float,
    "queue_size": int,
    "queue_momentum": float,
    "queue_weight": float,
    "augmentation_rate": float,
    "consistency_weight": float,
    "consistency_temperature": float,
    "prompt_template": str,
    "second_prompt_template": str,
    "subtract_template": bool,
    "angular_margin": float,
    "triplet_weight": float,
    "triplet_margin": float,
    "triplet_mask_rate": float,
    "triplet_longer_mask_rate": float,
    "triplet_dropout": bool,
    "further_positives": str,
    "further_positives_weight": float,
    "group_weight": float,
    "peer_weight": float,
    "peer_own_contrast": float,
    "peer_own_group": float,
    "composition": str,
    "second_view_weight": float,
    "contrast_dims": int,
    "smoothing_weight": float,
    "smoothing_size": int,
    "smoothing_neighbors": int,
    "smoothing_temperature": float,
    "smoothing_start": float,
    "smoothing_ramp_steps": int,
    "attention_weight": float,
    "attention_first_layer": int,
    "attention_last_layer": int,
    "attention_groups": int,
    "attention_samples": int,
    "whitening_groups": int,
    "whitening_shuffle": bool,
    "bidirectional": bool,
    "lora": int,
    "margin_weight": float,
    "margin_similarity": str,
    "distill_weight": float,
    "distill_loss": str,
    "projector_size": int,
    "tsdae_weight": float,
    "matryoshka_dims": list,
    "tsdae_deletion": float,
    "tsdae_decoder": str,
    "augmentation_span": int,
    "symmetric": bool,
    "same_view_negatives": bool,
    "perturb_first": str,
    "perturb_second": str,
    "towers_weight": float,
    "towers_negatives": int,
    "towers_dropout": bool,
    "optim": str,
    "token_information_weight": float,
    "token_information_kernels": str,
    "token_information_channels": int,
    "token_information_activation": str,
    "token_information_sentence": str,
    "lr_scheduler_type": str,
    "weight_decay": float,
}


#: The Condenser checkpoints that InfoCSE's scripts start from, and their encoders.
CONDENSER = {
    "princeton-nlp/Sheared-LLaMA-1.3B": "sheared-llama",
    "Luyu/condenser": "bert-base",
    "ffgcc/condenser-bert-large": "bert-large",
}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_names_its_table_and_has_known_keys(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    preset = yaml.safe_load(text)
    assert next(iter(preset)) == "method"
    backbone = preset["model_name_or_path"].removesuffix("-uncased")
    stem = path.stem.removesuffix("-released").removesuffix("-transfer").removesuffix("-supervised")
    stem = stem.removesuffix("-few-shot")
    assert preset["method"] == "joint" or path.stem.startswith(preset["method"])
    assert stem.endswith(CONDENSER.get(backbone, backbone))
    assert "Table" in text[: text.index("method:")]
    for key, value in preset.items():
        kinds = KNOWN[key] if isinstance(KNOWN[key], tuple) else (KNOWN[key],)
        assert type(value) in kinds, f"{key}: {value!r}"  # 3e-5 without a dot is a string in YAML


@pytest.fixture(scope="module")
def presets() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PRESETS}


def published_settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Preset and what is printed, of every row of published_settings.yaml."""
    text = (Path(__file__).parent / "published_settings.yaml").read_text(encoding="utf-8")
    for group in yaml.safe_load(text).values():
        for name, printed in group["rows"].items():
            yield name, group["common"] | printed


@pytest.mark.parametrize(("name", "printed"), published_settings(), ids=[name for name, _ in published_settings()])
def test_every_published_setting_has_a_preset(name: str, printed: dict[str, Any]) -> None:
    preset = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    wanted = {key: value for key, value in printed.items() if key != "source"}
    assert {key: preset.get(key) for key in wanted} == wanted


def test_presets_follow_the_conventions_of_their_names(presets: dict[str, dict[str, Any]]) -> None:
    for name, preset in presets.items():
        assert ("mlm" in name) == ("mlm_weight" in preset), name
        if not name.endswith("-released"):
            assert ("mse" in name) == (preset.get("reconstruction") == "mse"), name
        if preset["method"] == "msse":
            assert "prompt_template" not in preset, name  # the method's own
        if name.endswith("-supervised") and preset["method"] == "simcse":
            rate = {"learning_rate": preset["learning_rate"]}
            assert {key: preset[key] for key in SUPERVISED} == SUPERVISED | rate, name
        if name.endswith("-supervised"):
            assert preset["columns"] == ["sent0", "sent1", "hard_neg"], name
            assert preset["projector_at_inference"] is True, name
        if name.endswith("-few-shot"):
            assert preset == presets[name.removesuffix("-few-shot")] | {"train_fraction": 0.001}, name


PAGE = (CONFIGS.parents[1] / "docs" / "presets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("**/*.yaml")), ids=lambda path: path.stem)
def test_the_page_lists_it_with_the_numbers_of_its_header(path: Path) -> None:
    name = path.relative_to(CONFIGS).as_posix()
    if name.startswith("accelerate/"):
        pytest.skip("no preset: a launch configuration")
    (line,) = [line for line in PAGE.splitlines() if f"](../examples/configs/{name})" in line]
    header = " ".join(line[1:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    numbers = re.findall(r"\d+\.\d\d", line)
    assert all(number in header for number in numbers), f"{numbers} in the page, not all in the header of {name}"
