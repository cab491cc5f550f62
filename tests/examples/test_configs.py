"""Presets in examples/configs: they parse, and every key is known."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from csekit.trainers.scripts.runs import SUPERVISED

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
PRESETS = sorted(CONFIGS.glob("*.yaml"))

KNOWN = {
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
    "aux_mlm_head_init": str,
    "rtd_weight": float,
    "rtd_probability": float,
    "rtd_generator": str,
    "rtd_edit_scope": str,
    "rtd_edit_sampling": str,
    "rtd_generator_dropout": bool,
    "rtd_positions": str,
    "warmup_steps": int,
    "dcm_weight": float,
    "dcm_reduction": str,
    "icm_weight": float,
    "icm_decoder": str,
    "icm_target": str,
    "icm_decoder_layers": int,
    "icm_decoder_heads": int,
    "icm_element_dropout": float,
}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_names_its_table_and_has_known_keys(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    preset = yaml.safe_load(text)
    assert next(iter(preset)) == "method"
    backbone = preset["model_name_or_path"].removesuffix("-uncased")
    stem = path.stem.removesuffix("-released").removesuffix("-transfer").removesuffix("-supervised")
    stem = stem.removesuffix("-few-shot")
    assert path.stem.startswith(preset["method"])
    assert stem.endswith(backbone)
    assert "Table" in text[: text.index("method:")]
    for key, value in preset.items():
        assert type(value) is KNOWN[key], f"{key}: {value!r}"  # 3e-5 without a dot is a string in YAML


@pytest.fixture(scope="module")
def presets() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PRESETS}


def test_every_published_setting_has_a_preset(presets: dict[str, dict[str, Any]]) -> None:
    published = {  # learning rate, batch, λ: SimCSE's Appendix A, InforMin-CL's Table 3
        "simcse-bert-base": (3e-5, 64, None),
        "simcse-bert-large": (1e-5, 64, None),
        "simcse-roberta-base": (1e-5, 512, None),
        "simcse-roberta-large": (3e-5, 512, None),
        "informin-bert-base": (3e-5, 128, 0.4),
        "informin-roberta-base": (1e-5, 128, 4.0),
        "informin-roberta-large": (3e-5, 128, 4.0),
    }
    for name, wanted in published.items():
        got = presets[name]
        assert (got["learning_rate"], got["per_device_train_batch_size"], got.get("reconstruction_weight")) == wanted
    infocse = {  # InfoCSE's §4.2 and Tables 7 and 8; the released script
        "infocse-bert-base": (3e-5, 1, 0.4, "scaled", "pretrained"),
        "infocse-bert-large": (3e-5, 1, 0.4, "scaled", "pretrained"),
        "infocse-bert-large-released": (7e-6, 2, 0.3, "plain", "random"),
    }
    for name, own in infocse.items():
        got = presets[name]
        assert (got["projector"], got["per_device_train_batch_size"]) == ("batchnorm", 64)
        found = [got[f"aux_mlm_{field}"] for field in ("probability", "gradient", "head_init", "weight")]
        assert (got["learning_rate"], got["num_train_epochs"], *found) == (*own, 1e-5)
    published = {  # learning rate, batch, λ, masking ratio: DiffCSE's Tables 12 and 13
        "diffcse-bert-base": (7e-6, 64, 0.005, 0.30),
        "diffcse-bert-base-released": (7e-6, 64, 0.005, 0.30),
        "diffcse-roberta-base": (1e-5, 64, 0.005, 0.20),
        "diffcse-bert-base-transfer": (2e-6, 64, 0.05, 0.15),
        "diffcse-roberta-base-transfer": (3e-6, 128, 0.05, 0.15),
    }
    names = ("learning_rate", "per_device_train_batch_size", "rtd_weight", "rtd_probability")
    for name, wanted in published.items():
        assert tuple(presets[name][key] for key in names) == wanted
        assert presets[name]["num_train_epochs"] == 2
        assert presets[name]["projector"] == "batchnorm"


def test_msse_few_shot_and_supervised_settings_have_presets(presets: dict[str, dict[str, Any]]) -> None:
    published = {  # learning rate, batch, epochs, warm-up: MSSE's Table 5 and Appendix A
        "msse-bert-base": (3e-5, 256, 1, 500),
        "msse-bert-large": (1e-5, 256, 1, 500),
        "msse-denoising-bert-base": (3e-5, 256, 1, 500),
        "msse-bert-base-supervised": (5e-5, 512, 3, None),
        "msse-bert-large-supervised": (5e-5, 512, 3, None),
    }
    for name, wanted in published.items():
        names = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "warmup_steps")
        assert tuple(presets[name].get(key) for key in names) == wanted
        found = [presets[name][key] for key in ("dcm_weight", "icm_weight", "temperature", "pooling", "projector")]
        assert found == [0.8, 0.2, 0.05, "mask", "linear"]
        assert "prompt_template" not in presets[name]
    decoder = [presets["msse-denoising-bert-base"][f"icm_{key}"] for key in ("decoder_layers", "decoder_heads")]
    assert decoder == [16, 1]
    assert presets["msse-denoising-bert-base"]["icm_decoder"] == "denoising"
    supervised = {  # learning rate: SimCSE's Appendix A; batch 512, three epochs, the projector kept
        "simcse-bert-base-supervised": 5e-5,
        "simcse-bert-large-supervised": 1e-5,
        "simcse-roberta-base-supervised": 5e-5,
        "simcse-roberta-large-supervised": 1e-5,
    }
    for name, rate in supervised.items():
        assert {key: presets[name][key] for key in SUPERVISED} == SUPERVISED | {"learning_rate": rate}
    for name in ("simcse-bert-base", "msse-bert-base"):
        few = presets[f"{name}-few-shot"]
        assert few == presets[name] | {"train_fraction": 0.001}
    for name in published.keys() & {name for name in presets if name.endswith("-supervised")}:
        kept = [presets[name][key] for key in ("projector_at_inference", "columns")]
        assert kept == [True, ["sent0", "sent1", "hard_neg"]]
    for name, preset in presets.items():
        assert ("mlm" in name) == ("mlm_weight" in preset)
        assert ("mse" in name) == (preset.get("reconstruction") == "mse")


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
